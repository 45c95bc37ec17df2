"""Diverse beam search: the beam is split into groups, which are searched one after another at each level."""

from __future__ import annotations

import random

import pytest

from bestfirst import FunctionModel, Model, Scored, decode
from bestfirst.scoring import Diverse, LengthNormalized
from reference import EOS
from scoring.references import diverse
from toys import random_cases, random_toy

MODEL = FunctionModel(random_toy("flat", 8, 1), EOS)


def best_of_each(found):
    best = {}
    for tokens, score in sorted(found, key=lambda pair: pair[1]):
        best[tokens] = score
    return best


def test_groups_equal_hugging_faces_group_beam_search(cases, tally):
    mismatches = 0
    numbers = cases(150, full=3000)
    for case in random_cases(numbers, title="diverse"):
        rng = random.Random(case.seed)
        groups, each, penalty = rng.randint(1, 4), rng.randint(1, 3), rng.choice((0.0, 0.5, 1.0, 3.0))
        k = groups * each
        theirs = best_of_each(diverse(case.toy, k=k, groups=groups, penalty=penalty, n_max=case.n_max))
        result = decode(
            FunctionModel(case.toy, EOS),
            [None],
            score=Diverse(groups, penalty),
            strategy="beam",
            stop="exhausted",
            beam=k,
            nbest=k,
            max_length=case.n_max,
            row_budget=rng.choice((1, 3, 50)),
        )[0]
        mismatches += {answer.tokens: answer.score for answer in result.hypotheses} != theirs
        assert not result.exact
        assert [answer.score for answer in result.hypotheses] == sorted(theirs.values(), reverse=True)
    tally("diverse groups = Hugging Face", len(numbers), mismatches)
    assert mismatches == 0


def test_a_penalty_makes_first_tokens_differ_between_groups():
    same = decode(MODEL, [None], score=Diverse(4, 0.0), strategy="beam", beam=4, nbest=4)[0]
    apart = decode(MODEL, [None], score=Diverse(4, 100.0), strategy="beam", beam=4, nbest=4)[0]
    assert len(same.hypotheses) == 1, "what several groups find counts once"
    assert len({answer.tokens[0] for answer in apart.hypotheses}) == len(apart.hypotheses) > 2


def test_one_group_equals_beam_search():
    for score in (None, LengthNormalized(1.0)):
        grouped = decode(MODEL, [None], score=Diverse(1, 1.0, score), strategy="beam", nbest=3)[0]
        plain = decode(MODEL, [None], score=score or "logprob", strategy="beam", nbest=3)[0]
        assert grouped.hypotheses == plain.hypotheses
        assert grouped.calls == plain.calls


def test_max_calls_limits_all_groups_together():
    result = decode(MODEL, [None], score=Diverse(2, 1.0), strategy="beam", beam=6, max_calls=5, row_budget=50)[0]
    assert (result.status, result.rows) == ("budget", 5)


def test_the_result_has_a_partial_hypothesis_when_nothing_finishes():
    endless = FunctionModel(lambda prefix: [float("-inf"), -1.0, -2.0], EOS)
    result = decode(endless, [None], score=Diverse(2, 1.0), strategy="beam", beam=4, max_length=3)[0]
    assert (result.status, result.partial.tokens) == ("incomplete", (1, 1, 1))


@pytest.mark.parametrize(
    ("score", "settings", "message"),
    [
        (lambda: Diverse(3, 1.0), {"strategy": "beam", "beam": 4}, "3 groups do not divide a beam of 4; use a multiple of 3"),
        (lambda: Diverse(2, 1.0), {"beam": 4}, "diverse groups go level by level, strategy 'best-first' does not"),
        (lambda: Diverse(0, 1.0), {}, "groups must be at least 1, got 0"),
        (lambda: Diverse(2, -1.0), {}, "penalty must be a number of at least 0, got -1.0"),
    ],
)
def test_invalid_groups_and_penalties_are_refused(score, settings, message):
    with pytest.raises(ValueError, match=message):
        decode(MODEL, [None], score=score(), **settings)


class Alike(Model):
    """The eight likeliest first tokens lead to one state."""

    eos = 0

    def start(self, source):
        return None

    def score(self, batch):
        first, then = [-5.0, *(-1 - 0.01 * i for i in range(8)), -2.0, -2.1], [-0.1] + [-4.0] * 10
        return [Scored(then if query.prefix else first) for query in batch]

    def merge_key(self, source, prefix):
        return prefix[-1] if prefix[-1] > 8 else 0


def test_groups_request_enough_successors_where_states_merge():
    """Any number of the best successors may merge into one state."""
    groups, alone = (
        decode(Alike(), [None], strategy="beam", max_length=2, nbest=2, **settings)[0]
        for settings in ({"beam": 4, "score": Diverse(2, 0.0)}, {"beam": 2})
    )
    assert [answer.tokens for answer in groups.hypotheses] == [answer.tokens for answer in alone.hypotheses] == [(1, 0), (9, 0)]
