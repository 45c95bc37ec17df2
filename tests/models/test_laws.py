"""`bestfirst.testing`: each law accepts models and scores that obey it, and names the violation of others."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, nan

import numpy
import pytest

from bestfirst import Context, FunctionModel, Model, Query, Score, Scored
from bestfirst.scoring import (
    GNMT,
    BoundedLengthReward,
    Coverage,
    LengthNormalized,
    LengthReward,
    LogProbability,
    MutualInformation,
)
from bestfirst.testing import check_model, check_score
from toys import KINDS, random_toy

# -- models ----------------------------------------------------------------------------------------------------------------


class Counting(Model):
    """A distribution over four tokens that depends on the sum of the tokens so far, which is its state."""

    eos = (0,)

    def start(self, source: object) -> int:
        return 0

    def row(self, total: int) -> list[float]:
        weights = [1.0, 2.0 + total % 3, 3.0, 1.0 + total % 5]
        return [log(weight / sum(weights)) for weight in weights]

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        totals = [query.state + (query.prefix[-1] if query.prefix else 0) for query in batch]
        return [Scored(self.row(total), total) for total in totals]


def test_a_correct_model_obeys_every_law():
    check_model(Counting())
    check_model(Counting(), [1, 2, 3], prefixes=50)


@pytest.mark.parametrize("kind", KINDS)
def test_toy_models_obey_their_laws(kind):
    check_model(FunctionModel(random_toy(kind, 5, 1), eos=0), normalized=kind in ("peaked", "flat"))


def test_a_model_that_allows_nothing_is_not_normalized():
    model = FunctionModel(lambda prefix: [-inf, -inf], eos=0)
    check_model(model, normalized=False)
    with pytest.raises(AssertionError, match=r"normalized: the probabilities after \[\] sum to 0, not 1; .*normalized=False"):
        check_model(model)


class Unnormalized(Counting):
    def row(self, total: int) -> list[float]:
        return [value - 0.1 * (total % 2) for value in super().row(total)]


def test_scores_that_do_not_sum_to_1_are_caught():
    with pytest.raises(AssertionError, match=r"normalized: the probabilities after \[.*\] sum to 0\.904837, not 1"):
        check_model(Unnormalized())
    check_model(Unnormalized(), normalized=False)


class Rising(Counting):
    def row(self, total: int) -> list[float]:
        return [0.5 if total % 4 == 3 and token == 2 else -1.0 for token in range(4)]


def test_scores_that_rise_are_caught():
    with pytest.raises(AssertionError, match=r"monotonic: token 2 after \[.*\] adds 0\.5, more than 0; .*strategy='beam'"):
        check_model(Rising(), normalized=False)
    check_model(Rising(), normalized=False, monotonic=False)


class Contagious(Counting):
    """Its scores depend on the rest of the batch, as with a wrong batched softmax or unmasked padding."""

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        longest = max(len(query.prefix) for query in batch)
        answers = super().score(batch)
        padded = [longest > len(query.prefix) for query in batch]
        return [
            Scored(answer.logprobs[::-1], answer.state) if pad else answer for answer, pad in zip(answers, padded, strict=True)
        ]


def test_scores_that_depend_on_the_batch_are_caught():
    message = r"batch-independent: token 0 after \[.*\] scores .* alone and .* in a batch of 23"
    with pytest.raises(AssertionError, match=message):
        check_model(Contagious())


class Mixed(Counting):
    """Returns correct scores, but the states of a batch in the wrong order."""

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        answers = super().score(batch)
        states = [answer.state for answer in answers]
        return [Scored(answer.logprobs, state) for answer, state in zip(answers, states[1:] + states[:1], strict=True)]


def test_states_that_depend_on_the_batch_are_caught():
    message = r"batch-independent: token . after \[.*\] scores .* alone and .* from states made in a batch, in one of 23"
    with pytest.raises(AssertionError, match=message):
        check_model(Mixed())


class Overwriting(Counting):
    """Writes into the list that is its state, as a cache that is updated in place."""

    def start(self, source: object) -> list[int]:
        return []

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        out = []
        for query in batch:
            query.state.extend(query.prefix[-1:])
            out.append(Scored(self.row(sum(query.state)), query.state))
        return out


def test_a_state_that_is_overwritten_is_caught():
    message = r"consistent: token . after \[.*\] scores .* from a kept state and .* from the start"
    with pytest.raises(AssertionError, match=message):
        check_model(Overwriting())


class Forgetful(Counting):
    """Answers differently when asked again."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        self.asked += 1
        return [Scored(self.row(self.asked), None) for _ in batch]


def test_a_model_that_is_not_deterministic_is_caught():
    with pytest.raises(AssertionError, match="consistent: "):
        check_model(Forgetful())


@pytest.mark.parametrize(
    ("row", "eos", "message"),
    [
        (lambda prefix: [-1.0, nan], 0, r"numbers: the score of token 1 after \[\] is nan"),
        (lambda prefix: [-1.0, inf], 0, r"numbers: the score of token 1 after \[\] is inf"),
        (lambda prefix: [-1.0] * (2 + len(prefix)), 0, r"one vocabulary: there are 3 scores after \[1\] but 2 after \[\]"),
        (lambda prefix: [-1.0, -1.0], 2, r"EOS in the vocabulary: eos is \[2\], and the vocabulary has 2 tokens"),
    ],
)
def test_malformed_answers_are_caught(row, eos, message):
    with pytest.raises(AssertionError, match=message):
        check_model(FunctionModel(row, eos), normalized=False)


class Silent(Counting):
    def score(self, batch: Sequence[Query]) -> list[Scored]:
        return super().score(batch)[:-1]


def test_a_missing_answer_is_caught():
    with pytest.raises(
        AssertionError, match=r"one answer a query: Silent.score was asked about 1 hypotheses and returned 0 answers"
    ):
        check_model(Silent())


# -- scores ----------------------------------------------------------------------------------------------------------------

TOY = FunctionModel(random_toy("flat", 4, 0), eos=0)


@pytest.mark.parametrize(
    "score",
    [
        Score(),
        LogProbability(),
        LogProbability(temperature=0.5),
        LengthReward(0.5),
        BoundedLengthReward(0.5, 1.5),
        LengthNormalized(1.0),
        LengthNormalized(-0.5),
        GNMT(0.6),
        MutualInformation(TOY, 0.3, 0.02),
        Coverage(0.2, GNMT(0.6)),
    ],
    ids=lambda score: score.name,
)
def test_the_packages_own_scores_obey_every_law(score):
    check_score(score)


class Bonus(Score):
    name = "bonus"

    def increment(self, logprobs, aux=None):
        return logprobs + 0.25


class Downhill(Score):
    name = "downhill"

    def final(self, value: float, length: int, context: Context) -> float:
        return -value


class Unbounded(LengthReward):
    name = "unbounded"

    def bound(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * (length + 1)  # ignores that more than one token may follow


class Swinging(Score):
    name = "swinging"

    def bound(self, value: float, length: int, context: Context) -> float:
        return value + length % 2


class Boastful(LengthReward):
    name = "boastful"

    def __init__(self) -> None:
        super().__init__(0.5)
        self.monotonic = True


class Zigzag(Score):
    name = "zigzag"
    one_way = True

    def final(self, value: float, length: int, context: Context) -> float:
        return value + length % 2


class MoreThanItsValue(Score):
    name = "more"
    value_only = True

    def final(self, value: float, length: int, context: Context) -> float:
        return 2 * value


class Reward(Score):
    name = "reward"
    needs = frozenset({"attention"})

    def ending(self, coverage):
        return numpy.clip(coverage, 0, 1).sum(-1)


def made(**methods):
    return type("Made", (Score,), {"name": "made", **methods})()


class NotANumber(Score):
    name = "nan"

    def final(self, value: float, length: int, context: Context) -> float:
        return nan


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Bonus(), r"bonus: increments are never positive, but a token of log-probability .* adds 0\.\d+; take off"),
        (Downhill(), r"downhill: `final` never falls when the value rises, but at length 1 .* value -.* is worth .*, and one of"),
        (
            Unbounded(0.5),
            r"unbounded: `bound` is not exceeded by any longer `final`, but .* length 0 .* at length 2 it can be worth",
        ),
        (
            Swinging(),
            r"swinging: `bound` never rises along a path, but a hypothesis of value -.* and length 0 .*, and one free token",
        ),
        (Boastful(), r"boastful: it claims to be monotonic, but .* is worth .* at length 1 and .* at length 2"),
        (Zigzag(), r"zigzag: it claims to go one way, but .* rises at length 3, to .*, and falls at length 2"),
        (MoreThanItsValue(), r"more: it claims to be the value alone, but of value -.* it makes"),
        (Reward(), r"reward: what finishing adds is never positive, but coverage \[.*\] adds"),
        (made(bound=lambda self, v, n, c: -inf), r"made: `bound` is not exceeded .* has bound -inf, and at length"),
        (made(bound=lambda self, v, n, c: -v), r"made: `bound` never rises along a path, .* and one token of cost .* more"),
        (made(bound=lambda self, v, n, c: None), r"made.bound: it must return a number, but it returned None"),
        (made(final=lambda self, v, n, c: None), r"made.final: it must return a number, but it returned None"),
        (made(final=lambda self, v, n, c: inf if n == 7 else v), r"made: `final` is not infinitely good, but at length 7"),
        (
            made(increment=lambda self, logprobs, aux=None: -1.0),
            r"made: `increment` returns a number for each token, but .* -1\.0",
        ),
        (NotANumber(), r"nan: `final` never falls when the value rises, but .* is worth nan"),
    ],
    ids=lambda value: value.name if isinstance(value, Score) else "",
)
def test_a_score_that_breaks_a_law_is_caught_and_named(score, message):
    with pytest.raises(AssertionError, match=message):
        check_score(score)


def test_mutual_information_of_whole_sequences_breaks_the_law_and_claims_no_exactness():
    score = MutualInformation(TOY, 0.3, 0.02, whole_sequence=True)
    with pytest.raises(AssertionError, match="increments are never positive"):
        check_score(score)
    assert not score.exact("leave")
