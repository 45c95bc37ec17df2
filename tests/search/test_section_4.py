"""Section 4 of the paper: each lemma, corollary and theorem, as a property of `AnyOrderSearch` in strict order."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestfirst.search import AnyOrderSearch, beam, best_first_beam
from reference import beam_keep, beam_leave, beam_search
from scale import FULL
from toys import RULES, Case, Run, run


def best_first_run(case: Case, **settings: object) -> Run:
    return run(case.toy, best_first_beam(case.k, case.finished), case.n_max, **{"n": case.n, **settings})


def run_to_the_end(case: Case):
    """Beam search without early stopping: Algorithm 1 (`keep`), or a pool that collects until n_max (`leave`)."""
    if case.finished == "keep":
        return beam_keep(case.toy, case.k, case.n_max)
    return beam_leave(case.toy, case.k, case.n_max, n=case.n_max * (case.k + 1))


def expected(items) -> list[tuple[tuple[int, ...], float]]:
    return [(y.tokens, y.value) for y in items]


def test_lemma_4_1_hypotheses_of_a_length_are_evaluated_in_order_of_their_score(for_all):
    def claim(case: Case) -> bool:
        by_length = defaultdict(list)
        for y in best_first_run(case).scored:
            by_length[y.length].append((-y.value, y.tokens))
        return all(places == sorted(places) for places in by_length.values())

    for_all(claim, normal=192, full=1920)


def test_lemma_4_2_the_first_finished_hypothesis_popped_is_k_optimal(for_all):
    def claim(case: Case) -> bool:
        return best_first_run(case, n=1).answers == expected(run_to_the_end(case).answers[:1])

    for_all(claim, normal=192, full=1920)


def test_lemma_4_3_beam_search_pops_whatever_best_first_pops(for_all):
    def claim(case: Case) -> bool:
        popped_by_beam_search = {y.tokens for level in run_to_the_end(case).beams for y in level if not y.finished}
        return popped_by_beam_search >= set(best_first_run(case).prefixes)

    for_all(claim, normal=192, full=1920)


def test_corollary_4_3_1_best_first_never_pops_more_than_beam_search(for_all):
    """Nor more than optimally stopped beam search, which stops as soon as its n answers are certain."""

    def claim(case: Case) -> bool:
        calls = best_first_run(case).result.calls
        level_by_level = run(case.toy, beam(case.k, case.finished), case.n_max, n=case.n).result.calls
        optimal = beam_search(case.toy, case.k, case.n_max, case.n, case.finished).calls
        return calls <= optimal <= run_to_the_end(case).calls and calls <= level_by_level

    for_all(claim, normal=192, full=1920, searches=2)


def test_theorem_4_4_after_k_pops_of_a_length_nothing_shorter_is_popped(for_all):
    """Under `keep`, the paper's rule: a finished hypothesis counts as popped at its own and every greater length."""

    def claim(case: Case) -> bool:
        case = case._replace(finished="keep", n=min(case.n, case.k))
        pops, floor, done = Counter(), -1, set()

        def in_strict_order(search: AnyOrderSearch):
            nonlocal floor
            y = search.needed()
            if y is None:
                return []
            for answer in search.answers:
                if answer.key < y.key and answer not in done:
                    done.add(answer)
                    pops.update(range(answer.length, case.n_max + 1))
            floor = max([t for t in pops if pops[t] >= case.k], default=-1)
            shorter.append(y.length <= floor)
            pops[y.length] += 1
            return [y]

        shorter: list[bool] = []
        best_first_run(case, choose=in_strict_order)
        return not any(shorter)

    for_all(claim, normal=192, full=1920)


def test_theorem_4_4_what_is_pruned_did_not_need_to_be_popped(for_all):
    """A search that pops it nevertheless, under either rule, gives the same answers and the same `calls`."""

    def claim(case: Case) -> bool:
        def unpruned(search: AnyOrderSearch):
            y = search.first()
            return [] if y is None or search.strategy.stop(search, y) else [y]

        pruned, popped = best_first_run(case), best_first_run(case, choose=unpruned)
        return popped.answers == pruned.answers and popped.result.calls == pruned.result.calls <= popped.result.rows

    for_all(claim, normal=192, full=1920, searches=2)


def test_theorem_4_5_best_first_returns_the_same_set_as_beam_search(for_all):
    """The n best with their scores and their order, n from 1 to k (and, under `leave`, beyond)."""

    def claim(case: Case) -> bool:
        answers = expected(run_to_the_end(case).answers[: case.n])
        best_first = best_first_run(case)
        level_by_level = run(case.toy, beam(case.k, case.finished), case.n_max, n=case.n)
        return best_first.answers == answers == level_by_level.answers and best_first.result.exact

    for_all(claim, normal=640, full=12_800, searches=2)


@pytest.mark.parametrize("finished", RULES)
@settings(max_examples=2000 if FULL else 60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_theorem_4_5_has_no_small_counterexample(finished, data):
    """As above, on models of a few small integers, so that a counterexample would come out as small as it gets."""
    vocabulary = data.draw(st.integers(2, 4), label="vocabulary")
    increments = st.lists(st.integers(-3, 0).map(float), min_size=vocabulary, max_size=vocabulary)
    table = data.draw(st.lists(increments, min_size=1, max_size=12), label="table")
    k = data.draw(st.integers(1, 8), label="k")
    n = data.draw(st.integers(1, k), label="n")
    n_max = data.draw(st.integers(1, 6), label="n_max")

    def toy(prefix: tuple[int, ...]) -> list[float]:
        return table[sum((i + 1) * token for i, token in enumerate(prefix)) % len(table)]

    reference = beam_search(toy, k, n_max, n, finished)
    best_first = run(toy, best_first_beam(k, finished), n_max, n=n)
    assert best_first.answers == expected(reference.answers)
    assert best_first.result.calls <= reference.calls


def test_theorem_4_6_what_can_be_counted_of_the_runtime(for_all):
    """At most n_max * k pops with |V| children each; at most k members (`leave`: unfinished) per beam, n_max * k in the queue."""

    def claim(case: Case) -> bool:
        within_limits = []

        def in_strict_order(search: AnyOrderSearch):
            within_limits.append(search.agenda.queued() <= case.n_max * case.k)
            for level in search.agenda.beams:
                within_limits.append((len(level.members) if case.finished == "keep" else level.unfinished) <= case.k)
                within_limits.append(len(level.members) < 2 * case.k or case.k == 1)
            y = search.needed()
            return [] if y is None else [y]

        done = best_first_run(case, choose=in_strict_order)
        made = [len(y.children) for y in done.scored]
        return all(within_limits) and len(done.scored) <= case.n_max * case.k and max(made) <= case.vocabulary

    for_all(claim, normal=192, full=1920)


def test_theorem_4_7_beam_search_pops_at_most_k_of_each_length(for_all):
    def claim(case: Case) -> bool:
        lengths = Counter(y.length for y in run(case.toy, beam(case.k, case.finished), case.n_max, n=case.n).scored)
        return lengths.total() <= case.n_max * case.k and max(lengths.values()) <= case.k and max(lengths) < case.n_max

    for_all(claim, normal=192, full=1920)
