"""Memory-reduced search (the paper, section 3.3): a queue of at most `queue_capacity` hypotheses."""

from __future__ import annotations

import random
from math import inf

from bestfirst.search import AnyOrderSearch, Hypothesis, Trace, best_first_beam
from reference import beam_search
from toys import Case, run


def run_capped(case: Case, capacity: int, **settings: object):
    strategy = best_first_beam(case.k, case.finished, queue_capacity=capacity)
    return run(case.toy, strategy, case.n_max, **{"n": case.n, **settings})


def test_a_queue_large_enough_gives_best_first_search(for_all):
    """gamma = n_max: nothing is evicted; answers, calls and the order of scoring are those of best-first beam search."""

    def claim(case: Case) -> bool:
        free = run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n)
        done = run_capped(case, case.n_max * case.k)
        return (done.answers, done.prefixes, done.result.calls) == (
            free.answers,
            free.prefixes,
            free.result.calls,
        ) and done.result.exact

    for_all(claim, normal=192, full=1920, searches=2)


def test_a_small_queue_never_holds_more_than_its_capacity(for_all):
    def claim(case: Case) -> bool:
        capacity, within_capacity = random.Random(case.seed).randint(1, 2 * case.k), []

        def in_strict_order(search: AnyOrderSearch) -> list[Hypothesis]:
            within_capacity.append(search.agenda.queued() <= capacity)
            y = search.needed()
            return [] if y is None else [y]

        done = run_capped(case, capacity, choose=in_strict_order)
        return all(within_capacity) and done.result.calls == len(done.scored) <= case.n_max * case.k

    for_all(claim, normal=192, full=1920)


def test_without_eviction_the_result_is_exact_and_with_it_there_is_no_claim(for_all):
    def claim(case: Case) -> bool:
        trace = Trace()
        done = run_capped(case, random.Random(case.seed).randint(1, 2 * case.k), trace=trace)
        evictions = sum(line["event"] == "evict" for line in trace.events)
        answers = [(y.tokens, y.value) for y in beam_search(case.toy, case.k, case.n_max, case.n, case.finished).answers]
        return done.result.exact == (evictions == 0) and (evictions > 0 or done.answers == answers)

    for_all(claim, normal=192, full=1920)


def test_section_3_3_the_worst_hypothesis_of_the_shortest_length_is_evicted():
    """By hand: of `1`, `2`, `3` in a queue of two, `3` is evicted; then `1` is scored, and `2` is evicted for its children."""
    increments = {(): [-9.0, -1.0, -2.0, -3.0], (1,): [-9.0, -1.5, -1.6, -9.0]}

    def toy(prefix: tuple[int, ...]) -> list[float]:
        return increments.get(prefix, [-0.1, -inf, -inf, -inf])

    trace = Trace()
    done = run(toy, best_first_beam(3, queue_capacity=2), 4, trace=trace)
    made = {line["id"]: (line["parent"], line["token"]) for line in trace.events if line["event"] == "push"}
    root = next(number for number, (parent, _) in made.items() if parent is None)
    assert [made[line["id"]] for line in trace.events if line["event"] == "evict"][:2] == [(root, 3), (root, 2)]
    assert not done.result.exact


def test_scoring_ahead_does_not_change_what_a_small_queue_finds(for_all):
    """Evictions depend on the order of scoring, so nothing is scored ahead of its turn."""

    def claim(case: Case) -> bool:
        capacity = random.Random(case.seed).randint(1, 2 * case.k)
        strict, ahead = run_capped(case, capacity), run_capped(case, capacity, choose=lambda search: search.frontier(16))
        return (ahead.answers, ahead.prefixes) == (strict.answers, strict.prefixes)

    for_all(claim, normal=192, full=1280, searches=2)
