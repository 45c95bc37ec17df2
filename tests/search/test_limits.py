"""The ends of a search (n_max, nothing finished, out of budget), ties, and broken laws."""

from __future__ import annotations

from math import inf

import pytest

from bestfirst.search import BrokenLaw, Strategy, beam, best_first, best_first_beam
from reference import EOS, Toy, beam_keep, beam_leave
from toys import RULES, Case, run


def both_strategies(case: Case) -> list[Strategy]:
    return [best_first_beam(case.k, case.finished), beam(case.k, case.finished)]


def test_no_answer_is_longer_than_n_max_and_nothing_that_long_is_scored(for_all):
    def claim(case: Case) -> bool:
        for strategy in both_strategies(case):
            done = run(case.toy, strategy, case.n_max, n=case.n)
            if any(len(tokens) > case.n_max or tokens.index(EOS) != len(tokens) - 1 for tokens, _ in done.answers):
                return False
            if any(y.length >= case.n_max or y.finished for y in done.scored):
                return False
        return True

    for_all(claim, normal=64, full=640, searches=2)


def test_truncated_hypotheses_of_rank_below_k_are_answers_where_that_is_asked(for_all):
    """As Hugging Face does at `max_length`; with `accept_truncated=True`."""

    def claim(case: Case) -> bool:
        reference = beam_leave(case.toy, case.k, case.n_max, case.n, accept_truncated=True)
        done = run(case.toy, best_first_beam(case.k), case.n_max, n=case.n, accept_truncated=True)
        return done.answers == [(y.tokens, y.value) for y in reference.answers] and done.result.calls <= reference.calls

    for_all(claim, normal=128, full=1280)


# -- nothing finished ----------------------------------------------------------------------------------------------------


def without_eos(toy: Toy) -> Toy:
    return lambda prefix: (-inf, *toy(prefix)[1:])


def test_nothing_finished_is_incomplete_and_the_partial_is_what_algorithm_1_returns(for_all):
    def claim(case: Case) -> bool:
        toy = without_eos(case.toy)
        best = next(level[0] for level in reversed(beam_keep(toy, case.k, case.n_max).beams) if level)
        for strategy in both_strategies(case):
            result = run(toy, strategy, case.n_max, n=case.n).result
            if result.status != "incomplete" or result.hypotheses or result.text is not None or result.partial is None:
                return False
            if (result.partial.tokens, result.partial.score) != (best.tokens, best.value):
                return False
        return True

    for_all(claim, normal=128, full=1280, searches=2)


@pytest.mark.parametrize("finished", RULES)
def test_a_model_that_allows_nothing_is_incomplete_with_an_empty_partial(finished):
    result = run(lambda prefix: [-inf, -inf], best_first_beam(2, finished), 5).result
    assert (result.status, result.calls, result.partial.tokens) == ("incomplete", 1, ())


def test_a_complete_result_has_no_partial():
    result = run(lambda prefix: [-0.5, -1.0], best_first_beam(2), 5).result
    assert (result.status, result.partial) == ("complete", None)


# -- out of budget -------------------------------------------------------------------------------------------------------


def test_max_calls_gives_up_in_time_and_only_then(for_all):
    """A budget of at least its calls does not change a search; with less it makes exactly `max_calls` calls, status `budget`."""

    def claim(case: Case) -> bool:
        for strategy in both_strategies(case):
            free = run(case.toy, strategy, case.n_max, n=case.n)
            for max_calls in {1, free.result.calls - 1, free.result.calls, free.result.calls + 1} - {0}:
                done = run(case.toy, strategy, case.n_max, n=case.n, max_calls=max_calls)
                if max_calls >= free.result.calls:
                    if (done.answers, done.result.status, done.result.exact) != (free.answers, free.result.status, True):
                        return False
                elif (done.result.status, done.result.calls, done.result.exact) != ("budget", max_calls, False):
                    return False
                if done.search.frontier(9) or done.search.result() != done.result:  # a driver may ask again
                    return False
        return True

    for_all(claim, normal=64, full=320, searches=10)


def test_an_answer_known_when_the_budget_ran_out_counts_however_it_ended():
    toy, ends = (lambda prefix: [-9.0, -0.1, -3.0, -4.0]), (lambda tokens: tokens[-1] == 2)
    for strategy in (best_first_beam(4), beam(4)):
        assert run(toy, strategy, 6, max_calls=2, ends=ends).answers[0] == ((2,), -3.0)


def test_a_search_out_of_budget_creates_no_children_that_it_cannot_return():
    """A wide beam has millions of them."""
    search = run(lambda prefix: [-9.0, *(-1 - token / 9 for token in range(60))], best_first_beam(20), 6, max_calls=10).search
    scored = [y for level in search.agenda.beams for y in level.members if not y.finished and y.successors is not None]
    created = [child for y in scored for child in y.children.values()]
    assert len(scored) == 10
    assert sum(not child.finished for child in created) <= 10


def test_an_unpruned_search_stays_within_its_budget():
    result = run(lambda prefix: [-inf, -0.1, -0.1, -0.1], best_first(), 50, max_calls=100).result
    assert (result.status, result.calls, result.exact) == ("budget", 100, False)
    assert result.partial is not None


# -- ties ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", RULES)
@pytest.mark.parametrize("make", [beam, best_first_beam])
def test_ties_go_to_the_shorter_then_to_the_smaller_tokens(make, finished):
    """Every token has p = 1, so that only the rule for ties decides."""
    answers = run(lambda prefix: [0.0, 0.0, 0.0], make(4, finished), 4, n=4).answers
    expected = {  # keep: `0` holds one of four slots; leave: the first four of each length, `0` included
        "keep": [(0,), (1, 0), (1, 1, 0), (1, 1, 1, 0)],
        "leave": [(0,), (1, 0), (2, 0), (1, 1, 0)],
    }[finished]
    assert answers == [(tokens, 0.0) for tokens in expected]


def test_the_same_search_twice_is_the_same_search(for_all):
    def claim(case: Case) -> bool:
        for strategy in both_strategies(case):
            one, two = (run(case.toy, strategy, case.n_max, n=case.n) for _ in range(2))
            if (one.answers, one.prefixes) != (two.answers, two.prefixes):
                return False
        return True

    for_all(claim, normal=64, full=320, searches=4, kinds=("ties",))


# -- a broken law --------------------------------------------------------------------------------------------------------


def rising(prefix: tuple[int, ...]) -> list[float]:
    return [-1.0, 0.25, -0.5]


def test_a_rising_score_raises_broken_law_under_best_first_search():
    message = r"the model gives token 1 after \[\] a score of 0\.25; log-probabilities are at most 0.*use strategy='beam'"
    with pytest.raises(BrokenLaw, match=message):
        run(rising, best_first_beam(2), 3)


@pytest.mark.parametrize("finished", RULES)
def test_beam_search_accepts_a_rising_score(finished):
    reference = beam_keep(rising, 2, 4) if finished == "keep" else beam_leave(rising, 2, 4, n=100)
    assert run(rising, beam(2, finished), 4).answers == [(y.tokens, y.value) for y in reference.answers[:1]]
