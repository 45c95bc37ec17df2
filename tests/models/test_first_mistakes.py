"""What a new user gets wrong first: a line that says what was given, what is expected, and the way out."""

from __future__ import annotations

import numpy as np
import pytest

import bestfirst
from bestfirst import FunctionModel
from bestfirst.scoring import Score
from bestfirst.search import BrokenLaw
from bestfirst.testing import check_score
from strict import no_warnings


def model(prefix):
    return [-1.0, -0.5, -2.0]


MODEL = FunctionModel(model, eos=0)


def test_logits_for_log_probabilities_are_the_models_fault_not_the_scores():
    with pytest.raises(BrokenLaw, match=r"gives token 2 after \[\] a score of 3; .*of logits return the log_softmax"):
        bestfirst.decode(FunctionModel(lambda prefix: [2.0, -1.0, 3.0], eos=0), [None])


@pytest.mark.parametrize("kind", [list, np.array])
def test_probabilities_for_log_probabilities_are_warned_of_where_scores_may_rise(kind):
    given = FunctionModel(lambda prefix: kind([0.2, 0.5, 0.3]), eos=0)
    with pytest.warns(RuntimeWarning, match=r"scores after \[\] look like probabilities \(from 0 up, 1 together\); return their"):
        bestfirst.decode(given, [None], strategy="beam", max_length=4)


def test_scores_that_are_none_are_not_warned_of():
    with no_warnings():
        bestfirst.decode(MODEL, [None], beam=2)
        bestfirst.decode(FunctionModel(lambda prefix: [0.0], eos=0), [None])  # one token, and certain


class PerToken(Score):
    """The most natural one: it divides by a length that must not be 0."""

    name = "per-token"

    def final(self, value, length, context):
        return value / length


def test_a_score_is_never_asked_for_a_length_of_nothing():
    check_score(PerToken())
    settings = {"beam": 3, "max_length": 6}
    ours = bestfirst.decode(MODEL, [None], score=PerToken(), **settings)[0]
    assert ours.hypotheses == bestfirst.decode(MODEL, [None], length_penalty=1.0, **settings)[0].hypotheses
    for more in ({"strategy": "beam"}, {"strategy": "beam", "stop": "hf-true"}, {"strategy": "a-star"}, {"max_calls": 2}):
        bestfirst.decode(MODEL, [None], score=PerToken(), **settings, **more)


class Forgetful(Score):
    name = "forgetful"

    def final(self, value, length, context):
        value / length


class NoEos(bestfirst.Model):
    def start(self, source):
        return None

    def score(self, batch):
        return []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: bestfirst.decode(MODEL, [None], score=Forgetful()), r"Forgetful\.final returned None; it must return a number"),
        (lambda: bestfirst.decode(MODEL, [None], score=PerToken), r"the score is the class PerToken; make one of it: PerToken"),
        (
            lambda: bestfirst.decode(MODEL, [None], score=max),
            r"a score is a name or an object .*Score, got builtin",
        ),
        (lambda: bestfirst.decode(MODEL, [None], num_beams=3), r"unknown setting 'num_beams'; did you mean 'beam'\?"),
        (lambda: bestfirst.decode(MODEL, [None], max_lenght=3), r"unknown setting 'max_lenght'; did you mean 'max_length'\?"),
        (lambda: bestfirst.decode(MODEL, [None], zzz=3), r"unknown setting 'zzz'; there are strategy, beam,"),
        (lambda: bestfirst.decode(MODEL, None), r"inputs must be a list of inputs, got None; write decode\(model, \[input\]\)"),
        (lambda: bestfirst.decode(NoEos(), [None]), r"NoEos has no eos; set it to the token that ends a hypothesis"),
    ],
)
def test_a_line_says_what_to_do(asked, says):
    with pytest.raises((TypeError, ValueError), match=says):
        asked()


def test_bytes_are_no_token_ids():
    (result,) = bestfirst.decode(bestfirst.load(), [b"Hallo Welt!"])
    assert (result.status, result.message) == (
        "error",
        "an input is a text or token ids, got bytes; write raw.decode('utf-8')",
    )
