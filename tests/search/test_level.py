"""`LevelSearch`: the answers of level-by-level `AnyOrderSearch` with no more calls. `test_audit.py` tests their definitions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bestfirst.scoring import LengthNormalized
from bestfirst.search import AnyOrderSearch, BrokenLaw, Context, LevelSearch, Patience, Search, Strategy, beam, greedy
from bestfirst.strategies import ShortestFirstPruned, as_ctranslate2
from reference import EOS
from scoring.setups import SCORES, Setup, setup
from toys import Chooser, late_answers, one_at_a_time, random_cases, random_subsets, successors

PLANS: dict[str, Callable[[int, float, Setup, int], Strategy]] = {
    "pruned": lambda k, factor, made, n: beam(k).using(stop=Patience(factor), order=ShortestFirstPruned()),
    "ctranslate2": lambda k, factor, made, n: as_ctranslate2(beam(k).using(order=ShortestFirstPruned()), made.score, n, factor),
    "all of a level": lambda k, factor, made, n: beam(k).using(stop=Patience(factor)),
    "greedy": lambda k, factor, made, n: greedy().using(stop=Patience(factor)),
}


def run_plan(kind: Callable[..., Search], plan: Strategy, made: Setup, n: int, truncated: bool, choose: Chooser) -> Search:
    search = kind(plan, score=made.score, eos={EOS}, context=made.context, n=n, accept_truncated=truncated)
    while batch := choose(search):
        for y in batch:
            search.commit(y, successors(made.toy, y)._replace(ending=made.ending(y.tokens)))
    return search


@pytest.mark.parametrize("name", PLANS)
def test_level_search_equals_any_order_search_with_no_more_calls(name, cases, tally):
    """For every score, with n-best, ties, dead ends and truncated outputs; calls do not depend on the order of scoring."""
    numbers, faults, saved = cases(160, full=8000), 0, 0
    for case in random_cases(numbers, title=f"level {name}"):
        rng = random.Random(case.seed)
        made = setup(case, SCORES[rng.choice(list(SCORES))])
        n, truncated = rng.choice((1, 1, case.n)), rng.random() < 0.5
        plan = PLANS[name](case.k, rng.choice((0.5, 1.0, 1.6)), made, n)
        theirs = run_plan(AnyOrderSearch, plan, made, n, truncated, one_at_a_time).result()
        choosers = (one_at_a_time, lambda search, k=case.k: search.frontier(k), random_subsets(rng), late_answers(rng))
        found = [run_plan(LevelSearch, plan, made, n, truncated, choose).result() for choose in choosers]
        calls = {each.calls for each in found}
        saved += theirs.calls - max(calls)
        faults += len(calls) > 1 or found[0].rows != found[0].calls or max(calls) > theirs.calls
        for each in found:
            faults += (each.hypotheses, each.partial, each.status) != (theirs.hypotheses, theirs.partial, theirs.status)
            faults += each.exact != theirs.exact
    tally("level by level = any order", 4 * len(numbers), faults)
    assert faults == 0
    assert saved > 0 if plan.order.relies_on_bound else saved == 0


def test_the_rest_of_the_last_level_is_scored_only_if_it_can_finish_among_the_n_best():
    """k = 2: [1] and [2] are on the beam; [1, EOS] is the one answer needed, and [2, EOS] could only come after it."""
    tree = {(): (-9.0, -0.1, -3.0), (1,): (-0.1, -2.0, -4.0)}
    scored = []

    def run(kind: Callable[..., Search], n: int) -> Search:
        plan = beam(2).using(stop=Patience(0.5), order=ShortestFirstPruned())
        search = kind(plan, score=LengthNormalized(1.0), eos={EOS}, context=Context(n_max=9), n=n)
        scored.clear()
        while ready := search.frontier(1):
            scored.append(ready[0].tokens)
            search.commit(ready[0], successors(lambda prefix: tree.get(prefix, (-0.2, -1.0, -1.0)), ready[0]))
        return search

    assert run(LevelSearch, 1).result().hypotheses == run(AnyOrderSearch, 1).result().hypotheses
    assert run(LevelSearch, 1).result().calls == 2
    assert scored == [(), (1,)]
    assert run(AnyOrderSearch, 1).result().calls == run(LevelSearch, 2).result().calls == 3


def test_a_rising_score_raises_broken_law_and_names_the_token():
    plan = beam(2).using(stop=Patience(), order=ShortestFirstPruned())
    search = LevelSearch(plan, score=LengthNormalized(1.0), eos={EOS}, context=Context(n_max=5))
    with pytest.raises(BrokenLaw, match=r"the model gives token 1 after \[\] a score of 1; log-probabilities are at most 0"):
        search.commit(search.root, successors(lambda prefix: (-1.0, 1.0), search.root))
