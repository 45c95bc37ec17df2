"""What a search costs: `calls`, exactly; and what scoring ahead changes: nothing but `rows` and `steps`."""

from __future__ import annotations

import random

from bestfirst.search import AnyOrderSearch, Hypothesis, beam, best_first_beam
from reference import beam_keep, beam_search, certificate
from toys import Case, Chooser, late_answers, random_subsets, run


def needed_prefixes(case: Case) -> set[tuple[int, ...]]:
    return certificate(case.toy, case.k, case.n_max, case.n, case.finished)


def best_first_run(case: Case, choose: Chooser | None = None):
    ahead = {} if choose is None else {"choose": choose}
    return run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, **ahead)


def test_calls_equal_the_certificate(for_all):
    """In strict order exactly those prefixes are scored, each once, that no exact method can do without (`certificate`)."""

    def claim(case: Case) -> bool:
        done, needed = best_first_run(case), needed_prefixes(case)
        return set(done.prefixes) == needed and len(done.scored) == len(needed) == done.result.calls == done.result.rows

    for_all(claim, normal=640, full=12_800)


def test_calls_of_beam_search_are_those_of_algorithm_1(for_all):
    """Level by level under `keep`; finished hypotheses do not count. It is the baseline of every ratio."""

    def claim(case: Case) -> bool:
        case = case._replace(finished="keep", n=min(case.n, case.k))
        done, reference = run(case.toy, beam(case.k, "keep"), case.n_max, n=case.n), beam_keep(case.toy, case.k, case.n_max)
        return done.result.calls == reference.calls == len(done.scored) and done.steps >= len(reference.beams) - 1

    for_all(claim, normal=192, full=1920)


def test_any_order_of_scoring_gives_the_same_answers_and_calls(for_all):
    def claim(case: Case) -> bool:
        rng = random.Random(case.seed)
        strict = best_first_run(case)
        for order in (random_subsets(rng), late_answers(rng)):
            ahead = best_first_run(case, order)
            if ahead.answers != strict.answers or ahead.result.calls != strict.result.calls:
                return False
            if ahead.result.rows != len(set(ahead.prefixes)) or ahead.result.rows < ahead.result.calls:
                return False
        return True

    for_all(claim, normal=320, full=3200, searches=3)


def test_a_frontier_of_k_takes_exactly_the_steps_of_optimally_stopped_beam_search(for_all):
    """With k rows a step, or more, one input needs as few forward passes as beam search that knows when to stop."""

    def claim(case: Case) -> bool:
        steps = len(beam_search(case.toy, case.k, case.n_max, case.n, case.finished).beams) - 1
        return all(best_first_run(case, lambda search, m=m: search.frontier(m)).steps == steps for m in (case.k, 2 * case.k, 100))

    for_all(claim, normal=192, full=2560, searches=3)


def test_a_frontier_names_the_needed_hypothesis_first(for_all):
    def claim(case: Case) -> bool:
        named = []

        def choose(search: AnyOrderSearch) -> list[Hypothesis]:
            ready, needed = search.frontier(3), search.needed()
            named.append(ready[0] is needed if ready else needed is None)
            return ready[:1]

        best_first_run(case, choose)
        return all(named)

    for_all(claim, normal=64, full=640)
