"""First mistakes of a new user: the error says what was given, what is expected, and what to do."""

from __future__ import annotations

import json
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest

import bestfirst
from bestfirst import FunctionModel
from bestfirst.scoring import Coverage, Score
from bestfirst.search import Answered, BrokenLaw
from bestfirst.search.stops import Patience
from bestfirst.search.table_1 import a_star_beam, beam, best_first_beam
from bestfirst.strategies import STOPS
from bestfirst.testing import check_score
from strict import no_warnings


def model(prefix):
    return [-1.0, -0.5, -2.0]


MODEL = FunctionModel(model, eos=0)


def test_logits_instead_of_log_probabilities_are_reported_as_an_error_of_the_model():
    with pytest.raises(BrokenLaw, match=r"gives token 2 after \[\] a score of 3; .*of logits return the log_softmax"):
        bestfirst.decode(FunctionModel(lambda prefix: [2.0, -1.0, 3.0], eos=0), [None])


@pytest.mark.parametrize("kind", [list, np.array])
def test_probabilities_instead_of_log_probabilities_give_a_warning_in_beam_search(kind):
    given = FunctionModel(lambda prefix: kind([0.2, 0.5, 0.3]), eos=0)
    with pytest.warns(RuntimeWarning, match=r"scores after \[\] look like probabilities \(from 0 up, 1 together\); return their"):
        bestfirst.decode(given, [None], strategy="beam", max_length=4)


def test_log_probabilities_give_no_warning():
    with no_warnings():
        bestfirst.decode(MODEL, [None], beam=2)
        bestfirst.decode(FunctionModel(lambda prefix: [0.0], eos=0), [None])  # one token, p = 1


class PerToken(Score):
    """The simplest length normalisation: it divides by a length that must not be 0."""

    name = "per-token"

    def final(self, value, length, context):
        return value / length


def test_a_score_is_never_evaluated_at_length_0():
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


class Nowhere(Score):
    def final(self, value, length, context):
        return float("nan")


class Allows(bestfirst.Constraint):
    signature = "allows"

    def __init__(self, tokens):
        self.tokens = tokens

    def start(self):
        return 0

    def advance(self, states, tokens):
        return states

    def allowed(self, states, eos):
        return [self.tokens for _ in states]


def test_a_constraint_may_say_that_nothing_follows_with_an_empty_list():
    result = bestfirst.decode(MODEL, [None], allowed=Allows([]))[0]
    assert (result.status, result.exact) == ("incomplete", True)


class Flat(Allows):
    def allowed(self, states, eos):
        return self.tokens


class Stateless(Allows):
    def advance(self, states, tokens):
        return None


class Needs(Score):
    def __init__(self, needs):
        self.needs = needs


FUSED = bestfirst.MutualInformation("lm", 0.5, 0.1)


class Listing(FunctionModel):
    """Its merge_key is a list, its text is bytes."""

    def __init__(self):
        super().__init__(model, eos=0)

    def merge_key(self, source, prefix):
        return [*prefix[-1:]]

    def text(self, source, tokens):
        return b"ab"


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
        (lambda: bestfirst.decode(MODEL, [None], alpha=3), r"unknown setting 'alpha'; did you mean 'score_options'\?"),
        (lambda: bestfirst.wrap(MODEL), r"FunctionModel is a model for bestfirst already; give it to decode as it is"),
        (lambda: bestfirst.decode(MODEL, [None], zzz=3), r"unknown setting 'zzz'; there are strategy, beam,"),
        (lambda: bestfirst.decode([None], MODEL), r"inputs .*, got a FunctionModel; write decode\(model, inputs\)"),
        (lambda: bestfirst.decode(MODEL, None), r"inputs must be a list of inputs, got None; write decode\(model, \[input\]\)"),
        (lambda: bestfirst.decode(MODEL, [None], 5), r"settings are given by name, such as beam=5, or as a .*Decoding, got 5"),
        (lambda: bestfirst.decode(MODEL, [None], row_budget=2.5), r"row_budget must be a whole number, got 2\.5"),
        (lambda: bestfirst.decode(MODEL, [None], max_cache_tokens=None), r"max_cache_tokens must be a number above 0, got None"),
        (lambda: bestfirst.decode(MODEL, [None], max_cache_tokens=-3), r"max_cache_tokens must be a number above 0, got -3"),
        (
            lambda: bestfirst.decode(MODEL, [None], stop="ctranslate2", stop_options={"foo": 1}),
            r"stop 'ctranslate2' has no option 'foo'",
        ),
        (
            lambda: bestfirst.decode(MODEL, [None], stop=Answered(), stop_options={"factor": 3}),
            r"factor goes with a stopping rule; name one with stop",
        ),
        (lambda: bestfirst.decode(MODEL, [None], max_length="50"), r"a multiple of \|x\| such as '2x', got '50'"),
        (lambda: bestfirst.decode(MODEL, [None], max_length="-1x"), r"a multiple of \|x\| such as '2x', got '-1x'"),
        (lambda: bestfirst.decode(MODEL, [None], max_length="infx"), r"a multiple of \|x\| such as '2x', got 'infx'"),
        (
            lambda: bestfirst.decode(MODEL, [None], prefix="Where", stop_strings="her"),
            r"the prefix 'Where' has the stop string 'her' in it",
        ),
        (lambda: bestfirst.decode(MODEL, [None], score=FUSED), r"the language model is the text 'lm'; load it: bestfirst\.load"),
        (lambda: bestfirst.decode(MODEL, [None], beam="3"), r"beam must be a whole number, got '3'"),
        (lambda: bestfirst.decode(MODEL, [None], nbest=None), r"nbest must be a whole number, got None"),
        (lambda: bestfirst.decode(MODEL, [None], max_calls="9"), r"max_calls must be a whole number, got '9'; leave it out"),
        (
            lambda: bestfirst.decode(MODEL, [None], stop_strings=None),
            r"stop_strings must be texts that are not empty, got \[None\]",
        ),
        (lambda: bestfirst.decode(MODEL, [None], must_contain=5), r"must_contain is a list of words, got 5; write \[5\]"),
        (lambda: bestfirst.decode(MODEL, [None], score_options=5), r"score_options must be a mapping of names to values, got 5"),
        (
            lambda: bestfirst.decode(MODEL, [None], stop=5),
            r"stop must be an object of a stopping rule, or one of .*hf-true.*, got 5",
        ),
        (lambda: bestfirst.Decoding(stop=lambda search, y: False), r"stop must be an object of a stopping rule"),
        (lambda: bestfirst.Diverse(1.5, 0.5), r"groups must be a whole number, got 1\.5"),
        (lambda: bestfirst.MutualInformation(MODEL, 0.5, "x"), r"epsilon must be .*, got 'x'"),
        (
            lambda: bestfirst.decode(bestfirst.FunctionModel(lambda prefix: [-1.0], eos=[]), [None]),
            r"for the tokens 0 to 0, and FunctionModel\.eos is \[\]: not one of them",
        ),
        (lambda: bestfirst.decode(MODEL, [None], score=Nowhere()), r"Nowhere\.final returned nan; it must return a number"),
        (lambda: bestfirst.decode(MODEL, [None], allowed=Allows([-1])), r"must return token ids for each state, got \[-1\]"),
        (lambda: bestfirst.decode(MODEL, [None], allowed=Allows([0.5])), r"must return token ids for each state, got \[0\.5\]"),
        (
            lambda: bestfirst.decode(MODEL, [None], allowed=Flat([1, 2])),
            r"Flat\.allowed was asked about 1 states and returned 2 ans",
        ),
        (lambda: bestfirst.decode(MODEL, [None], allowed=Stateless([1])), r"Stateless\.advance was asked .* and returned None"),
        (lambda: bestfirst.Decoding(score=Needs("source_length")), r"Needs\.needs must be a set of .*, got 'source_length'"),
        (lambda: bestfirst.Decoding(score=Needs({"source"})), r"Needs\.needs must be a set of attention, .*, got \{'source'\}"),
        (
            lambda: bestfirst.decode(MODEL, [None], strategy="a-star", heuristic=lambda y, context: None),
            r"the heuristic of \[\] is None; it must be a number",
        ),
        (
            lambda: bestfirst.decode(MODEL, [None], strategy="a-star", heuristic=lambda y, context: float("nan")),
            r"the heuristic of \[\] is nan; it must be a number",
        ),
        (lambda: bestfirst.decode(MODEL, [None], allowed=Allows([True])), r"must return token ids for each state, got \[True\]"),
        (lambda: bestfirst.Trie(None), r"a trie is made of sequences of token ids"),
        (lambda: bestfirst.Trie([[1.5]]), r"a trie is made of sequences of token ids, a list of whole numbers"),
        (lambda: bestfirst.Trie([["a"]]), r"a trie is made of sequences of token ids, a list of whole numbers"),
        (lambda: bestfirst.decode(Listing(), [None]), r"merge_key returned \[\d\], which cannot be hashed; return a tuple"),
        (lambda: bestfirst.decode(Listing(), [None], stop_strings="x"), r"need a model that gives text and not b'ab'; name"),
        (lambda: bestfirst.decode(NoEos(), [None]), r"NoEos has no eos; set it to the token that ends a hypothesis"),
    ],
)
def test_errors_for_wrong_arguments_say_what_to_do(asked, says):
    with pytest.raises((TypeError, ValueError), match=says):
        asked()


@pytest.mark.parametrize("ids", [[float("inf")], [1.7, 2.2]])
def test_numbers_that_are_not_whole_are_refused_as_token_ids(ids):
    model = bestfirst.load()
    wrong, right = bestfirst.decode(model, [ids, "Ja."])
    assert (wrong.status, right.text) == ("error", "Yes.")
    assert wrong.message == "the input must be a text or token ids, got list"


@pytest.mark.parametrize("limit", [lambda n: n if n > 2 else 1.5 * n, lambda n: 6 // (n - 2)])
def test_an_invalid_max_length_of_one_input_is_an_error_of_that_input(limit):
    wrong, right = bestfirst.decode(MODEL, ["ab", "abcd"], max_length=limit)
    assert (wrong.status, right.status) == ("error", "complete")
    assert "max_length" in wrong.message


@pytest.mark.parametrize("limit", [None, 2.5, "5"])
def test_an_invalid_max_length_of_a_model_is_an_error_of_its_input(limit):
    model = FunctionModel(lambda prefix: [-1.0, -0.5], eos=0)
    model.max_length = lambda source: 4 if source else limit
    wrong, right = bestfirst.decode(model, [None, "ab"])
    assert (wrong.status, right.status) == ("error", "complete")
    assert wrong.message == f"max_length must be a whole number, got {limit!r} for an input of length 0"


class Weighted(Score):
    """Holds a number by a private name, and an array."""

    def __init__(self, weight):
        self._weight, self.table = weight, np.zeros(3)


class Minus:
    """A processor with a parameter."""

    def __init__(self, amount):
        self.amount = amount

    def __call__(self, ids, scores):
        return scores - self.amount


def test_different_settings_have_different_signatures():
    """By all that scores, strategies, stops, heuristics and processors hold, any of which may be objects."""
    names = [
        {"score": bestfirst.LengthNormalized(0.5)},
        {"score": bestfirst.LengthNormalized(1.0)},
        {"strategy": beam(5).using(stop=STOPS["opennmt"]())},
        {"strategy": beam(5)},
        {"strategy": "a-star-beam", "heuristic": lambda y, context: 0.0},
        {"strategy": a_star_beam(5, lambda y, context: 0.0)},
        {"strategy": best_first_beam(5)},
        {"strategy": best_first_beam(5, queue_capacity=3)},
        {"strategy": "beam", "stop": Patience(2.0)},
        {"strategy": "beam", "stop": Patience(3.0)},
        {"score": Weighted(1.0)},
        {"score": Weighted(np.float32(2.0))},
        {"processors": Minus(1.0)},
        {"processors": Minus(2.0)},
    ]
    assert len({bestfirst.Decoding(**each).signature for each in names}) == len(names)


COUNTS = {"beam", "nbest", "max_calls", "queue_capacity", "min_length", "row_budget", "max_length"}
WRONG = [
    *((name, True) for name in sorted(COUNTS)),
    *(("max_length", value) for value in (2.5, [], "0x")),
    *((name, "no") for name in ("accept_truncated", "deterministic")),
    *(("prefix", value) for value in (b"a", 3, ["a"], [-1], [1.0], np.array([[1, 2]]))),
    ("max_cache_tokens", True),
    ("heuristic", 3),
    ("eos", -1),
    ("eos", True),
    ("length_penalty", True),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_settings_of_a_wrong_type_are_errors_with_their_value(name, value):
    with pytest.raises(ValueError, match=rf"{'alpha' if name == 'length_penalty' else name} .*{re.escape(repr(value))}"):
        bestfirst.Decoding(**{name: value})


@pytest.mark.parametrize("asked", [{"progress": True}, {"trace": 5}, {"trace": "x.jsonl"}])
def test_what_a_decode_reports_to_is_checked_before_it_begins(asked):
    with pytest.raises(TypeError, match=f"{next(iter(asked))} must be "):
        bestfirst.decode(MODEL, iter(lambda: pytest.fail("an input was read"), None), **asked)


def test_settings_have_one_signature_however_they_are_written():
    length = [
        {"length_penalty": 0.6},
        {"score": bestfirst.LengthNormalized(0.6)},
        {"score": "length-normalized", "score_options": {"alpha": np.float64(0.6)}},
        {"length_penalty": Fraction(3, 5)},
    ]
    plain = [
        *({}, {"length_penalty": 0}, {"score": "logprob", "score_options": {"temperature": 1.0}}, {"beam": np.int64(5)}),
        *({"beam": 5.0}, {"accept_truncated": np.False_}),
    ]
    gnmt = [{"score": bestfirst.GNMT(1)}, {"score": "gnmt", "score_options": {"alpha": 1}}]
    for ways in (length, plain, gnmt, [{"score": bestfirst.LengthNormalized(0)}]):
        made = [bestfirst.Decoding(**each) for each in ways]
        assert len({each.signature for each in made}) == 1
        assert all(each.identity() == made[0].identity() for each in made)
        assert {bestfirst.Decoding(**json.loads(json.dumps(each.json()))).signature for each in made} == {made[0].signature}
    factors = {"stop": Patience(2.0)}, {"stop": "patience", "stop_options": {"factor": 2}}
    assert len({bestfirst.Decoding(strategy="beam", **each).signature for each in factors}) == 1
    wrapped = bestfirst.Decoding(score=Coverage(0.2, bestfirst.GNMT(0.6)))
    assert "score:coverage(score=gnmt(alpha=0.6),beta=0.2)" in wrapped.signature


def test_settings_are_equal_by_value_and_do_not_change_with_what_they_were_made_of():
    options, prefix = {"alpha": 0.5}, [4, 5]
    made = bestfirst.Decoding(score="length-normalized", score_options=options, prefix=prefix)
    options["alpha"] = 2.0
    prefix.append(6)
    assert made.objective.alpha == made.json()["score_options"]["alpha"] == 0.5
    assert made.json()["prefix"] == [4, 5]
    for each in (made, bestfirst.Decoding(score=Coverage(0.2, bestfirst.GNMT(0.6)))):
        copied = pickle.loads(pickle.dumps(each))
        assert copied == each
        assert hash(copied) == hash(each)
    assert Coverage(0.2) != Coverage(0.3)
    assert PerToken() != Coverage(0.2)


def test_whole_numbers_of_any_kind_are_numbers_of_tokens_and_calls():
    whole = {"beam": 3.0, "nbest": np.float32(2), "max_length": 6.0, "queue_capacity": 9.0, "row_budget": 2.0}
    ints = {name: int(number) for name, number in whole.items()}
    assert bestfirst.decode(MODEL, [None], **whole) == bestfirst.decode(MODEL, [None], **ints)


class InPlace(Score):
    """Computes its increments in the array that it is given."""

    monotonic = True

    def increment(self, logprobs, aux=None):
        return np.multiply(logprobs, 2.0, out=logprobs)


def test_a_score_that_computes_in_place_changes_neither_the_model_nor_log_probabilities():
    row = np.array([-1.0, -2.0])
    answer = bestfirst.decode(bestfirst.FunctionModel(lambda prefix: row, eos=0), [None], score=InPlace())[0].best
    assert (answer.score, answer.logprob, row.tolist()) == (-2.0, -1.0, [-1.0, -2.0])


def test_explain_names_an_unknown_setting_as_decode_does():
    with pytest.raises(TypeError, match=r"unknown setting 'num_beams'; did you mean 'beam'\?"):
        bestfirst.explain(MODEL, "ab", "b", num_beams=3)


def test_bytes_are_refused_as_an_input():
    (result,) = bestfirst.decode(bestfirst.load(), [b"Hallo Welt!"])
    assert (result.status, result.message) == (
        "error",
        "an input is a text or token ids, got bytes; write raw.decode('utf-8')",
    )
