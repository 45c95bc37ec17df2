"""The default method, `exact`: best-first search returns the answers of step-synchronous beam search, for every score."""

from __future__ import annotations

import random
from math import floor

import pytest

from bestfirst.scoring import Score
from bestfirst.search import AnyOrderSearch, Context, RecordedSearch, Successors, Trace, beam, best_first_beam
from scoring.references import step_synchronous
from scoring.setups import SCORES, outcome, setup
from toys import RULES, random_cases, random_toy, successors


@pytest.mark.parametrize("finished", RULES)
@pytest.mark.parametrize("name", SCORES)
def test_best_first_returns_beam_searchs_answers_for_every_score(name, finished, cases, tally):
    """1-best and 3-best, in strict and in any order; never more calls than optimally stopped beam search."""
    if name == "coverage" and finished == "keep":
        pytest.skip("a coverage penalty is for leave")
    searches = mismatches = excess = 0
    for case in random_cases(cases(100, full=5000), title=f"{name} {finished}"):
        made, k = setup(case, SCORES[name]), case.k
        strategy, rng = best_first_beam(k, finished), random.Random(case.seed)
        for n in (1, 3 if finished == "leave" else min(3, k)):
            reference = step_synchronous(made.toy, made.score, made.context, k=k, n=n, finished=finished, ending=made.ending)
            optimal = step_synchronous(
                made.toy, made.score, made.context, k=k, n=n, finished=finished, ending=made.ending, optimal=True
            )
            strict, ahead = made.search(strategy, n), made.search(strategy, n, rng=rng)
            assert strict.result().exact
            searches += 2
            mismatches += (outcome(strict) != reference.answers) + (outcome(ahead) != reference.answers)
            mismatches += optimal.answers != reference.answers
            excess += (strict.calls > optimal.calls) + (strict.rows != strict.calls) + (ahead.calls != strict.calls)
    tally(f"exact best-first = beam search, {name}", searches, mismatches)
    assert (mismatches, excess) == (0, 0)


class Bumpy(Score):
    """A length bonus that rises and falls: exact under `leave`, not under `keep`, and `exact` says so."""

    def final(self, value, length, context):
        return value + (0.0, 1.3, 0.2, 2.0, 0.7, 1.1)[length % 6]


def test_a_score_that_rises_and_falls_with_length_is_exact_under_leave_only(cases, tally):
    mismatches = searches = 0
    for case in random_cases(cases(200, full=5000), title="bumpy"):
        made = setup(case, lambda rng: Bumpy())
        search = made.search(best_first_beam(case.k, case.finished), case.n, ahead=4)
        reference = step_synchronous(made.toy, made.score, made.context, k=case.k, n=case.n, finished=case.finished)
        assert search.result().exact == (case.finished == "leave")
        assert case.finished == "leave" or search.calls == search.rows, "without a guarantee nothing is scored ahead"
        if case.finished == "leave":
            searches += 1
            mismatches += outcome(search) != reference.answers
    tally("exact best-first = beam search, any length score under leave", searches, mismatches)
    assert mismatches == 0


class Coarse(Score):
    """Rounded down: different values have the same score, so that beams rank hypotheses by their tokens."""

    monotonic = True

    def final(self, value, length, context):
        return floor(value)


@pytest.mark.parametrize("strategy", [beam, best_first_beam])
def test_values_with_the_same_score_rank_by_their_tokens(strategy, cases, tally):
    """Under `keep` the k best children by value are not the k that rank best."""
    mismatches = searches = 0
    for case in random_cases(cases(200, full=5000), title="coarse", kinds=("flat", "peaked")):
        made, n = setup(case, lambda rng: Coarse()), min(case.n, case.k)
        for ahead in (1, 4):
            search = made.search(strategy(case.k, case.finished), n, ahead=ahead)
            reference = step_synchronous(made.toy, made.score, made.context, k=case.k, n=n, finished=case.finished)
            assert search.result().exact
            searches += 1
            mismatches += outcome(search) != reference.answers
    tally("exact best-first = beam search, equal scores of different values", searches, mismatches)
    assert mismatches == 0


class Shifted(Coarse):
    """Rises strictly with the value, which the search cannot know."""

    def final(self, value, length, context):
        return value - length


@pytest.mark.parametrize("kind", [Coarse, Shifted])
def test_few_successors_settle_which_rank_best_and_else_all_are_asked_for(kind, tally):
    """All successors of every hypothesis would take a model with 6,001 tokens ten to thirty times as long."""
    mismatches = searches = again = 0
    for seed in range(60):
        rng = random.Random(seed)
        toy, k = random_toy(rng.choice(("flat", "peaked", "halfties")), 40, seed), rng.randint(1, 4)
        case = (beam, best_first_beam)[seed % 2](k, "keep")
        context = Context(n_max=4)
        search = AnyOrderSearch(case, score=kind(), eos={0}, context=context, n=rng.randint(1, k))
        search.ask_again()
        while batch := search.frontier(rng.choice((1, 3))):
            width = search.width
            for y in batch:
                full = successors(toy, y)
                few = min(len(full.tokens), width)
                again -= search.rows
                search.commit(y, Successors(full.values[:few], full.tokens[:few]))
                again += search.rows - 1
                assert kind is Coarse or not y.length or width <= k + 2
        found = step_synchronous(toy, kind(), context, k=k, n=search.n, finished="keep")
        searches += 1
        mismatches += outcome(search) != found.answers
        assert search.result().exact
    tally("exact best-first = beam search, few successors at first", searches, mismatches)
    assert mismatches == 0
    assert (again < 0) == (kind is Coarse)  # rows are counted once


def test_a_recording_of_a_search_that_asks_for_all_successors_can_be_replayed():
    toy, trace = random_toy("peaked", 4, 0), Trace()

    def search(**settings):
        return AnyOrderSearch(best_first_beam(2, "keep"), score=Coarse(), eos={0}, context=Context(n_max=4), **settings)

    recorded = RecordedSearch(search())
    while batch := recorded.frontier(3):
        for y in batch:
            recorded.commit(y, successors(toy, y))
    recorded.replay(search(trace=trace))
    assert trace.events
