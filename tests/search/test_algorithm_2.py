"""Algorithm 2 as printed is not beam search; as corrected, it equals `AnyOrderSearch` in strict order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bestfirst.search import algorithm_2, best_first_beam
from reference import Toy, beam_keep
from toys import Case, random_toy, run


def test_search_in_strict_order_is_algorithm_2_mended(for_all):
    """The same answers and the same pops in the same order, under both rules."""

    def claim(case: Case) -> bool:
        corrected = algorithm_2.keep if case.finished == "keep" else algorithm_2.leave
        done = run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n)
        return (done.answers, done.prefixes) == corrected(case.toy, case.k, case.n_max, case.n)

    for_all(claim, normal=320, full=3200)


@pytest.fixture
def mismatches(cases, tally) -> Callable[..., float]:
    """The share of peaked models on which an algorithm's best score differs from that of Algorithm 1."""

    def share(title: str, algorithm: Callable[[Toy, int, int], tuple[tuple[int, ...], float] | None], k: int) -> float:
        numbers, wrong = cases(400, full=2000), 0
        for number in numbers:
            toy = random_toy("peaked", vocabulary=6, seed=number)
            best, found = beam_keep(toy, k, 7).answers[:1], algorithm(toy, k, 7)
            wrong += (best[0].value if best else None) != (found[1] if found else None)
        tally(f"Algorithm 2 {title}, k = {k}", len(numbers), wrong)
        return wrong / len(numbers)

    return share


@pytest.mark.parametrize(("k", "low", "high"), [(1, 0.45, 0.6), (2, 0.2, 0.35), (3, 0.08, 0.18), (5, 0.01, 0.06)])
def test_algorithm_2_as_printed_is_not_beam_search(mismatches, k, low, high):
    """`stop` peeks before the test `pops >= k`, so a finished hypothesis that is off the beam may be returned."""
    assert low < mismatches("as printed (wrong)", algorithm_2.as_printed, k) < high


@pytest.mark.parametrize(("k", "low", "high"), [(1, -1, 1e-9), (2, 0.01, 0.06), (3, 0.01, 0.06), (5, 0.005, 0.04)])
def test_a_slot_check_alone_does_not_correct_algorithm_2(mismatches, k, low, high):
    """Without the prune of Theorem 4.4 an answer may descend from a hypothesis that was off the beam; for k = 1 it cannot."""
    assert low < mismatches("with a slot check (wrong)", algorithm_2.with_a_slot_check, k) < high


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_slot_check_and_the_prune_of_theorem_4_4_correct_algorithm_2(mismatches, k):
    def corrected(toy: Toy, k: int, n_max: int) -> tuple[tuple[int, ...], float] | None:
        answers, _ = algorithm_2.keep(toy, k, n_max, n=1)
        return answers[0] if answers else None

    assert mismatches("mended", corrected, k) == 0


def test_algorithm_2_as_printed_returns_a_hypothesis_that_beam_search_prunes():
    """By hand, k = 1: greedy search extends `1`; the printed algorithm returns its pruned sibling `0`."""
    table = {(): [-2.0, -1.0], (1,): [-5.0, -4.0], (1, 1): [-0.5, -9.0]}

    def toy(prefix: tuple[int, ...]) -> list[float]:
        return table.get(prefix, [-1.0, -1.0])

    assert beam_keep(toy, 1, 5).answers[0][2:] == ((1, 1, 0), -5.5)
    assert algorithm_2.as_printed(toy, 1, 5) == ((0,), -2.0)
    assert run(toy, best_first_beam(1, "keep"), 5).answers == [((1, 1, 0), -5.5)]
