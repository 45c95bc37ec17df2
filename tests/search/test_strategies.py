"""Table 1 of the paper (every search strategy), section 3.1, and "A Note on Heuristics": answers and claims of exactness."""

from __future__ import annotations

from functools import cache
from math import inf, nan

import pytest

from bestfirst import Decoding, FunctionModel, decode
from bestfirst.scoring import Diverse, LengthNormalized, LogProbability
from bestfirst.search import (
    Context,
    Heuristic,
    Hypothesis,
    Strategy,
    a_star,
    a_star_beam,
    beam,
    best_first,
    best_first_beam,
    breadth_first,
    greedy,
)
from reference import EOS, Toy, beam_keep, exhaustive
from toys import RULES, Case, random_cases, run

TIE_FREE = ("peaked", "flat")


def perfect_heuristic(toy: Toy, n_max: int) -> Heuristic:
    """The perfect heuristic: the score that the best completion of a hypothesis adds."""

    @cache
    def rest(prefix: tuple[int, ...]) -> float:
        if prefix and prefix[-1] == EOS:
            return 0.0
        if len(prefix) == n_max:
            return -inf
        return max((inc + rest((*prefix, token)) for token, inc in enumerate(toy(prefix)) if inc > -inf), default=-inf)

    def h(y: Hypothesis, context: Context) -> float:
        return rest(y.tokens)

    h.admissible = True
    return h


def expected(items) -> list[tuple[tuple[int, ...], float]]:
    return [(y.tokens, y.value) for y in items]


def test_greedy_takes_the_best_token_until_it_is_eos(for_all):
    def claim(case: Case) -> bool:
        toy, tokens, value = case.toy, (), 0.0
        while len(tokens) < case.n_max and max(toy(tokens)) > -inf and EOS not in tokens:
            best = max(range(case.vocabulary), key=lambda token: (toy(tokens)[token], -token))
            tokens, value = (*tokens, best), value + toy(tokens)[best]
        answers = [(tokens, value)] if EOS in tokens else []
        return run(toy, greedy(case.finished), case.n_max).answers == answers

    for_all(claim, normal=128, full=1280)


def test_greedy_is_beam_search_with_k_1(for_all):
    def claim(case: Case) -> bool:
        by_greedy = run(case.toy, greedy(case.finished), case.n_max)
        by_beam, by_best_first = (run(case.toy, make(1, case.finished), case.n_max) for make in (beam, best_first_beam))
        return by_greedy.answers == by_beam.answers == by_best_first.answers and by_greedy.result.calls == by_beam.result.calls

    for_all(claim, normal=128, full=1280, searches=3)


def test_unpruned_best_first_and_breadth_first_find_what_exhaustive_search_finds(for_all):
    def claim(case: Case) -> bool:
        answers = expected(exhaustive(case.toy, case.n_max)[: case.n])
        by_score, by_length = (run(case.toy, strategy, case.n_max, n=case.n) for strategy in (best_first(), breadth_first()))
        same = by_score.answers == by_length.answers == answers
        return same and by_score.result.exact and by_length.result.exact and by_score.result.calls <= by_length.result.calls

    for_all(claim, normal=192, full=1280, searches=2, small=True)


@pytest.mark.parametrize("slack", [0.0, 0.5, 2.0])
def test_a_star_with_an_admissible_heuristic_finds_what_exhaustive_search_finds(for_all, slack):
    def claim(case: Case) -> bool:
        perfect = perfect_heuristic(case.toy, case.n_max)

        def h(y: Hypothesis, context: Context) -> float:
            return min(0.0, perfect(y, context) + slack * (1 + sum(y.tokens) % 3))

        h.admissible = True
        done = run(case.toy, a_star(h), case.n_max, n=case.n)
        return done.result.exact and done.answers == expected(exhaustive(case.toy, case.n_max)[: case.n])

    for_all(claim, normal=64, full=640, kinds=("ties", "peaked", "flat") if slack else ("ties",), small=True)


def test_a_star_with_a_perfect_heuristic_expands_only_the_answers_path(for_all):
    def claim(case: Case) -> bool:
        done = run(case.toy, a_star(perfect_heuristic(case.toy, case.n_max)), case.n_max)
        answer = done.result.hypotheses[0].tokens
        return done.prefixes == [answer[:length] for length in range(len(answer))]

    for_all(claim, normal=128, full=1280, kinds=TIE_FREE, small=True)


def test_a_star_with_a_perfect_heuristic_expands_only_paths_to_a_best_answer_where_several_tie(for_all):
    def claim(case: Case) -> bool:
        h = perfect_heuristic(case.toy, case.n_max)
        done = run(case.toy, a_star(h), case.n_max)
        best = done.result.hypotheses[0].score
        return all(y.value + h(y, Context(case.n_max)) == best for y in done.scored)

    for_all(claim, normal=128, full=1280, kinds=("ties",), small=True)


def test_a_star_beam_without_a_heuristic_is_best_first_beam_search(for_all):
    def claim(case: Case) -> bool:
        done = run(case.toy, a_star_beam(case.k, None, case.finished), case.n_max, n=case.n)
        same = run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n)
        return (done.answers, done.prefixes, done.result.exact) == (same.answers, same.prefixes, True)

    for_all(claim, normal=128, full=640, searches=2)


# -- "A Note on Heuristics" (the paper, end of section 4.1) ------------------------------------------------------------------


@pytest.mark.parametrize("finished", RULES)
def test_note_on_heuristics_an_admissible_heuristic_can_push_beam_searchs_result_off_the_beam(finished):
    """By hand, k = 1. Beam search extends `1`; a heuristic that grossly overestimates `2` gives it the only slot."""
    table = {(): [-9.0, -1.0, -1.5], (1,): [-1.0, -8.0, -8.0], (2,): [-5.0, -8.0, -8.0]}

    def toy(prefix: tuple[int, ...]) -> list[float]:
        return table.get(prefix, [-1.0, -9.0, -9.0])

    def h(y: Hypothesis, context: Context) -> float:
        return 0.0 if y.tokens == (2,) else -1.0 if y.tokens else 0.0  # admissible: the best rest is -5 after 2, -1 after 1

    h.admissible = True
    assert run(toy, beam(1, finished), 3).answers == [((1, 0), -2.0)]
    by_a_star_beam = run(toy, a_star_beam(1, h, finished), 3)
    assert by_a_star_beam.answers == [((2, 0), -6.5)]
    assert not by_a_star_beam.result.exact  # and the result says so
    assert run(toy, a_star(h), 3).answers == [((1, 0), -2.0)]  # without pruning the same heuristic does no harm


def test_note_on_heuristics_a_star_beam_differs_from_beam_search_and_never_claims_otherwise(cases):
    """Even a perfect heuristic changes the result (here for the better): k-optimality refers to beam search, not the model."""
    differ = 0
    for case in random_cases(cases(128, full=1280), title="note on heuristics", kinds=TIE_FREE, small=True):
        by_a_star_beam = run(case.toy, a_star_beam(case.k, perfect_heuristic(case.toy, case.n_max), case.finished), case.n_max)
        best = beam_keep(case.toy, case.k, case.n_max).answers[:1]
        differ += by_a_star_beam.answers != expected(best)
        assert not by_a_star_beam.result.exact
    assert differ > 0


def test_children_are_pruned_by_score_plus_heuristic():
    """k = 1: the two best tokens are dead ends for the heuristic, which Algorithm 2 evaluates for every child."""
    table = {(): [-9.0, -0.5, -1.0, -3.0], (3,): [-0.1, -9.0, -9.0, -9.0]}

    def h(y: Hypothesis, context: Context) -> float:
        return -50.0 if y.token in (1, 2) else 0.0

    model = FunctionModel(lambda prefix: table.get(tuple(prefix), [-inf] * 4), EOS)
    result = decode(model, [None], strategy="a-star-beam", heuristic=h, beam=1, max_length=3)[0]
    assert [answer.tokens for answer in result.hypotheses] == [(3, 0)]
    assert not result.exact


# -- invalid strategies and settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "message"), [(0, "at least 1, got 0"), (-1, "at least 1, got -1"), (2.5, r"a whole number, got 2\.5"), (nan, "got nan")]
)
def test_a_beam_that_is_not_a_whole_number_of_at_least_1_is_refused(k, message):
    with pytest.raises(ValueError, match=f"beam must be .*{message}; use strategy='best-first-unpruned' for no limit"):
        best_first_beam(k)


def test_an_unknown_rule_for_finished_hypotheses_is_refused():
    with pytest.raises(ValueError, match=r"finished must be .*got 'drop'"):
        best_first_beam(2, "drop")


def test_a_queue_capacity_of_0_is_refused():
    with pytest.raises(ValueError, match="queue_capacity must be at least 1, got 0"):
        best_first_beam(2, queue_capacity=0)


@pytest.mark.parametrize(
    ("strategy", "settings", "message"),
    [
        (best_first_beam(2), {"n": 0}, "nbest must be at least 1, got 0"),
        (best_first_beam(2), {"n": 1.5}, r"nbest must be a whole number, got 1\.5"),
        (best_first_beam(2), {"max_calls": 0}, "max_calls must be at least 1, got 0; leave it out for no limit"),
        (best_first_beam(2), {"max_calls": -1}, "max_calls must be at least 1, got -1; leave it out for no limit"),
        (best_first_beam(2), {"max_calls": 1.5}, r"max_calls must be a whole number, got 1\.5"),
        (best_first_beam(2, "keep"), {"n": 3}, r"nbest \(3\) must not exceed beam \(2\)"),
        (best_first_beam(2), {"context": Context(n_max=0)}, "max_length must be at least 1, got 0"),
    ],
)
def test_invalid_nbest_max_calls_and_max_length_are_refused(strategy: Strategy, settings, message):
    settings = {"eos": {EOS}, "context": Context(n_max=3), **settings}
    for score in (LogProbability(), LengthNormalized(1.0), Diverse(1, 0.5)):
        plan = beam(strategy.k, strategy.finished) if isinstance(score, Diverse) else strategy
        with pytest.raises(ValueError, match=message):
            score.search(plan, **settings)


@pytest.mark.parametrize(
    ("contradicting", "own"), [({"beam": 7}, "3"), ({"finished": "keep"}, "'leave'"), ({"heuristic": len}, "None")]
)
def test_settings_that_contradict_a_strategy_object_are_refused(contradicting, own):
    """It used to be ignored silently."""
    with pytest.raises(ValueError, match=f"is not the strategy's own, which is {own}; leave it out"):
        Decoding(best_first_beam(3), **contradicting)
    assert Decoding(best_first_beam(3), beam=3).plan.k == 3
