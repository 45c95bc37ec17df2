"""The three searches (strict, any order, on a device) give the same answers, scores and calls, and beam search's answers."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec
from itertools import cycle
from math import inf

import pytest

from bestfirst.scoring import LengthNormalized, LogProbability
from bestfirst.search import (
    AnyOrderSearch,
    BrokenLaw,
    Context,
    LevelSearch,
    Patience,
    StrictSearch,
    Trace,
    beam,
    best_first,
    best_first_beam,
)
from reference import EOS, Toy, beam_search, certificate, exhaustive
from toys import KINDS, Case, Chooser, Run, late_answers, one_at_a_time, random_cases, random_subsets, run

SEARCHES = [pytest.param(StrictSearch, id="strict"), pytest.param(AnyOrderSearch, id="any order")]
each_search = pytest.mark.parametrize("kind", SEARCHES)


def best_first_run(case: Case, kind: type, choose: Chooser = one_at_a_time, **settings: object) -> Run:
    return run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, choose=choose, kind=kind, **settings)


def expected(case: Case, toy: Toy) -> tuple[list[tuple[tuple[int, ...], float]], set[tuple[int, ...]]]:
    """Beam search's answers with their scores, and the certificate: the prefixes that any exact method must score."""
    answers = beam_search(toy, case.k, case.n_max, case.n, case.finished).answers
    return [(y.tokens, y.value) for y in answers], certificate(toy, case.k, case.n_max, case.n, case.finished)


@each_search
def test_calls_equal_the_certificate(kind, for_all):
    """Beam search's answers; strict order scores exactly the prefixes of the certificate, each once."""

    def claim(case: Case) -> bool:
        done, (answers, needed) = best_first_run(case, kind), expected(case, case.toy)
        once = len(done.scored) == len(needed) == done.result.calls == done.result.rows
        return done.answers == answers and set(done.prefixes) == needed and once and done.result.exact

    for_all(claim, normal=640, full=12_800)


@each_search
def test_any_order_of_scoring_gives_the_same_answers_and_calls(kind, for_all):
    def claim(case: Case) -> bool:
        rng, (answers, needed) = random.Random(case.seed), expected(case, case.toy)
        for order in (random_subsets(rng), late_answers(rng)):
            ahead = best_first_run(case, kind, order)
            if ahead.answers != answers or ahead.result.calls != len(needed):
                return False
            if ahead.result.rows != len(set(ahead.prefixes)) or ahead.result.rows < ahead.result.calls:
                return False
        return True

    for_all(claim, normal=320, full=3200, searches=3)


@each_search
def test_a_frontier_of_k_takes_exactly_the_steps_of_optimally_stopped_beam_search(kind, for_all):
    """With k or more rows per step, one input needs as few forward passes as optimally stopped beam search."""

    def claim(case: Case) -> bool:
        steps = len(beam_search(case.toy, case.k, case.n_max, case.n, case.finished).beams) - 1
        widths = (case.k, 2 * case.k, 100)
        return all(best_first_run(case, kind, lambda search, m=m: search.frontier(m)).steps == steps for m in widths)

    for_all(claim, normal=192, full=2560, searches=3)


@each_search
def test_unpruned_it_finds_the_best_of_all(kind, for_all):
    def claim(case: Case) -> bool:
        done = run(case.toy, best_first(), case.n_max, n=case.n, kind=kind)
        return done.answers == [(y.tokens, y.value) for y in exhaustive(case.toy, case.n_max)[: case.n]]

    for_all(claim, normal=64, full=640, small=True)


@pytest.mark.parametrize(
    ("unpruned", "shorter", "settings", "normal"),
    [(False, 0, {}, 640), (False, 2, {"accept_truncated": True}, 320), (True, 0, {}, 64)],
    ids=["best-first beam", "cut off at the limit", "unpruned"],
)
def test_strict_and_any_order_give_the_same_result_and_score_the_same_in_the_same_order(
    unpruned, shorter, settings, normal, for_all
):
    """Partial results and the status included."""

    def claim(case: Case) -> bool:
        strategy = best_first() if unpruned else best_first_beam(case.k, case.finished)
        n_max = max(1, case.n_max - shorter)
        one, other = (run(case.toy, strategy, n_max, n=case.n, kind=kind.values[0], **settings) for kind in SEARCHES)
        return one.result == other.result and one.prefixes == other.prefixes

    for_all(claim, normal=normal, full=20 * normal if not settings else 10 * normal, searches=2, small=unpruned)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, whose interpreter runs the kernels without a GPU")
def test_the_device_search_gives_beam_searchs_answers_and_the_certificates_calls(cases, tally):
    """`tests/device/test_search.py` also tests all step widths, inputs that take turns, and nodes that run out."""
    if "triton" in sys.modules and "device.interpreter" not in sys.modules:
        pytest.skip("Triton was imported before its interpreter could be switched on; run this file by itself")
    from device.test_search import Toys, decode

    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("toys are asked by the host: nothing for a graph")
    numbers = cases(4, full=80)
    wrong = 0
    for case, kind in zip(random_cases(numbers, title="device"), cycle(KINDS), strict=False):
        case = case._replace(kind=kind, finished="leave", n_max=min(case.n_max, 4))
        toys = Toys([case.toy])

        def rounded(prefix: tuple[int, ...], toys: Toys = toys, size: int = case.vocabulary) -> list[float]:
            """The toy with the numbers of the device: 32 bits, normalised again."""
            found = toys.successors(0, prefix, size)
            values = dict(zip(found.tokens, found.values, strict=True))
            return [values.get(token, -inf) for token in range(size)]

        (result,) = decode(toys, case.vocabulary, case.k, case.n, case.n_max)[0].values()
        answers, needed = expected(case, rounded)
        wrong += [(each.tokens, each.score) for each in result.hypotheses] != answers
        wrong += result.calls != len(needed) and kind != "ties"  # at equal scores the device may stop a call earlier
    tally("searches on the device", len(numbers), wrong)
    assert wrong == 0


# -- which search class is used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        ({}, StrictSearch),
        ({"accept_truncated": False, "max_calls": None, "trace": None}, StrictSearch),
        ({"strategy": best_first_beam(3, "keep")}, StrictSearch),
        ({"strategy": best_first()}, StrictSearch),
        ({"accept_truncated": True}, StrictSearch),
        ({"max_calls": 3}, AnyOrderSearch),
        ({"trace": Trace()}, AnyOrderSearch),
        ({"strategy": beam(3)}, AnyOrderSearch),
        ({"strategy": best_first_beam(3, queue_capacity=6)}, AnyOrderSearch),
        ({"score": LengthNormalized(1.0)}, AnyOrderSearch),
        ({"strategy": beam(3).using(stop=Patience()), "score": LengthNormalized(1.0)}, LevelSearch),
        ({"strategy": beam(3).using(stop=Patience()), "max_calls": 3}, AnyOrderSearch),
        ({"strategy": beam(3, "keep").using(stop=Patience())}, AnyOrderSearch),
    ],
)
def test_a_score_chooses_the_strict_search_only_in_the_plain_case(wish, kind):
    usual = {"strategy": best_first_beam(3), "score": LogProbability(), "eos": {EOS}, "context": Context(n_max=5)}
    settings = usual | wish
    strategy = settings.pop("strategy")
    search = settings.pop("score").search(strategy, **settings)
    assert type(search) is kind
    assert search.width == strategy.k + 1


@each_search
def test_a_rising_score_raises_broken_law_and_names_the_token(kind):
    with pytest.raises(BrokenLaw, match=r"the model gives token 3 after \[\] a score of 1; log-probabilities are at most 0"):
        run(lambda prefix: [-inf, -inf, -inf, 1.0], best_first_beam(2), 5, kind=kind)
