"""`StrictSearch` is `AnyOrderSearch`, cheaper: the same answers, calls and partial results, whatever is scored ahead."""

from __future__ import annotations

import random

import pytest

from bestfirst.scoring import LengthNormalized, LogProbability
from bestfirst.search import (
    AnyOrderSearch,
    BrokenLaw,
    Context,
    StrictSearch,
    Successors,
    Trace,
    beam,
    begin,
    best_first,
    best_first_beam,
)
from reference import beam_search, certificate
from toys import EOS, Case, Chooser, late_answers, one_at_a_time, random_subsets, run


def strict_run(case: Case, choose: Chooser = one_at_a_time):
    return run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, choose=choose, kind=StrictSearch)


def test_it_finds_what_search_finds_and_scores_what_search_scores(for_all):
    def claim(case: Case) -> bool:
        mine, its = strict_run(case), run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n)
        return mine.result == its.result and mine.prefixes == its.prefixes

    for_all(claim, normal=640, full=12_800, searches=2)


def test_hypotheses_cut_off_at_the_limit_are_answers_where_that_is_asked(for_all):
    def claim(case: Case) -> bool:
        strategy, n_max = best_first_beam(case.k, case.finished), max(1, case.n_max - 2)
        mine, its = (
            run(case.toy, strategy, n_max, n=case.n, accept_truncated=True, kind=kind) for kind in (StrictSearch, AnyOrderSearch)
        )
        return mine.result == its.result and mine.prefixes == its.prefixes

    for_all(claim, normal=320, full=3200, searches=2)


def test_its_calls_equal_the_certificate(for_all):
    def claim(case: Case) -> bool:
        done = strict_run(case)
        return (
            set(done.prefixes) == certificate(case.toy, case.k, case.n_max, case.n, case.finished)
            and len(done.scored) == done.result.calls == done.result.rows
        )

    for_all(claim, normal=320, full=6400)


def test_unpruned_it_is_dijkstra(for_all):
    def claim(case: Case) -> bool:
        mine, its = (run(case.toy, best_first(), case.n_max, n=case.n, kind=kind) for kind in (StrictSearch, AnyOrderSearch))
        return mine.result == its.result and mine.prefixes == its.prefixes

    for_all(claim, normal=64, full=640, searches=2, small=True)


def test_any_order_of_scoring_gives_the_same_answers_and_calls(for_all):
    def claim(case: Case) -> bool:
        rng = random.Random(case.seed)
        strict = strict_run(case)
        for order in (random_subsets(rng), late_answers(rng)):
            ahead = strict_run(case, order)
            if ahead.answers != strict.answers or ahead.result.calls != strict.result.calls:
                return False
            if ahead.result.rows != len(set(ahead.prefixes)) or ahead.result.rows < ahead.result.calls:
                return False
        return True

    for_all(claim, normal=320, full=3200, searches=3)


def test_a_frontier_of_k_takes_exactly_the_steps_of_optimally_stopped_beam_search(for_all):
    def claim(case: Case) -> bool:
        steps = len(beam_search(case.toy, case.k, case.n_max, case.n, case.finished).beams) - 1
        return all(strict_run(case, lambda search, m=m: search.frontier(m)).steps == steps for m in (case.k, 2 * case.k, 100))

    for_all(claim, normal=192, full=2560, searches=3)


def test_a_score_that_rises_is_caught_and_named():
    search = StrictSearch(best_first_beam(2), score=LogProbability(), eos={EOS}, context=Context(n_max=5))
    with pytest.raises(BrokenLaw, match=r"the score of \[3\] can reach 1, above the bound 0 of its prefix \[\]"):
        search.commit(search.root, Successors([1.0], [3]))


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
    ],
)
def test_begin_takes_it_for_the_common_case_alone(wish, kind):
    usual = {"strategy": best_first_beam(3), "score": LogProbability(), "eos": {EOS}, "context": Context(n_max=5)}
    settings = usual | wish
    assert type(begin(settings.pop("strategy"), **settings)) is kind
