"""Scores: formulas, bounds, names, arrays and tensors, user-defined scores, and invalid parameters."""

from __future__ import annotations

import inspect
import subprocess
import sys
from math import exp, inf, log, nan

import numpy
import pytest

from bestfirst import BrokenLaw, Decoding, FunctionModel, Score, decode
from bestfirst.scoring import (
    GNMT,
    SCORES,
    BoundedLengthReward,
    Coverage,
    LengthNormalized,
    LengthReward,
    LogProbability,
    MutualInformation,
    WrappedScore,
    by_length_penalty,
    named_score,
    score_parameters,
)
from bestfirst.search import Context
from bestfirst.testing import check_score
from reference import EOS
from toys import random_toy

MODEL = FunctionModel(random_toy("flat", 6, 1), EOS)
LANGUAGE_MODEL = FunctionModel(random_toy("flat", 6, 2), EOS)
ALL = [
    LogProbability(),
    LengthReward(0.5),
    BoundedLengthReward(0.5, 1.3),
    BoundedLengthReward(0.5, 9.0),
    LengthNormalized(1.0),
    LengthNormalized(-0.5),
    GNMT(0.6),
    GNMT(-0.6),
    MutualInformation(LANGUAGE_MODEL, 0.3, 0.01),
]


def test_final_scores_equal_their_formulas():
    context = Context(n_max=20, source_length=4)
    assert LogProbability().final(-6.0, 3, context) == -6.0
    assert LengthReward(0.5).final(-6.0, 3, context) == -4.5
    assert BoundedLengthReward(0.5, 1.5).final(-6.0, 3, context) == -4.5
    assert BoundedLengthReward(0.5, 1.5).final(-6.0, 8, context) == -3.0
    assert LengthNormalized(1.0).final(-6.0, 3, context) == -2.0
    assert GNMT(1.0).final(-6.0, 7, context) == -3.0
    assert MutualInformation(LANGUAGE_MODEL, 2.0, exp(-1)).final(-6.0, 3, context) == 0.0


@pytest.mark.parametrize("score", ALL, ids=lambda score: f"{score.name} {vars(score)}"[:40])
def test_closed_form_bounds_are_the_tightest(score):
    for n_max in (1, 5, 9):
        context = Context(n_max=n_max, source_length=4)
        for length in range(n_max):
            for value in (0.0, -0.3, -7.0):
                best = max(score.final(value, longer, context) for longer in range(length + 1, n_max + 1))
                assert score.bound(value, length, context) == pytest.approx(best)
                assert Score.bound(score, value, length, context) == pytest.approx(best)


@pytest.mark.parametrize("score", [*ALL, LogProbability(2.0), Coverage(0.5, GNMT(0.6))], ids=lambda score: score.name)
def test_increments_are_the_same_for_arrays_and_tensors(score):
    torch = pytest.importorskip("torch")
    rng = numpy.random.default_rng(1)
    logprobs, aux = -rng.exponential(2.0, (3, 6)), -rng.exponential(2.0, (3, 6))
    logprobs[1, 2] = -inf
    from_array = score.increment(logprobs, aux)
    from_tensor = score.increment(torch.from_numpy(logprobs), torch.from_numpy(aux))
    assert isinstance(from_tensor, torch.Tensor)
    assert numpy.allclose(from_tensor.numpy(), from_array, atol=1e-12)
    assert (from_array <= 0).all()
    assert score.plain == (from_array is logprobs)
    if "attention" in score.needs:
        coverage = rng.random((3, 4)) * 2
        assert numpy.allclose(score.ending(torch.from_numpy(coverage)).numpy(), score.ending(coverage))


def test_a_temperature_divides_log_probabilities_and_normalises_again():
    logprobs = numpy.log(numpy.array([0.7, 0.2, 0.1]))
    cold = LogProbability(0.5).increment(logprobs)
    assert numpy.exp(cold).sum() == pytest.approx(1.0)
    assert cold[0] - cold[1] == pytest.approx(2 * (logprobs[0] - logprobs[1]))
    result = decode(MODEL, [None], score=LogProbability(2.0))[0]
    own = sum(MODEL.next_logprobs(result.hypotheses[0].tokens[:i])[t] for i, t in enumerate(result.hypotheses[0].tokens))
    assert result.hypotheses[0].logprob == pytest.approx(own)
    assert result.hypotheses[0].score != pytest.approx(own)


# -- user-defined scores -----------------------------------------------------------------------------------------------------


class UniformInformation(Score):
    """Log-probability less the squared surprisal of every token (Meister et al. 2020, "If beam search is the answer")."""

    name = "uniform-information"
    monotonic = True

    def __init__(self, weight):
        self.weight = weight

    def increment(self, logprobs, aux=None):
        return logprobs - self.weight * logprobs**2


def test_a_new_score_is_one_class_of_at_most_20_lines():
    assert len(inspect.getsource(UniformInformation).splitlines()) <= 20
    settings = {"score": UniformInformation(0.3), "nbest": 3, "max_length": 12}
    for finished in ("keep", "leave"):
        result = decode(MODEL, [None], finished=finished, **settings)[0]
        beam = decode(MODEL, [None], finished=finished, strategy="beam", **settings)[0]
        assert result.hypotheses == beam.hypotheses
        assert result.exact
        assert result.calls <= beam.calls
    best = result.hypotheses[0]
    steps = [MODEL.next_logprobs(best.tokens[:i])[token] for i, token in enumerate(best.tokens)]
    assert best.score == pytest.approx(sum(lp - 0.3 * lp**2 for lp in steps))


@pytest.mark.parametrize(
    "score", [*ALL, LogProbability(2.0), Coverage(0.5, GNMT(0.6)), UniformInformation(0.3)], ids=lambda score: score.name
)
def test_every_score_obeys_the_laws(score):
    check_score(score)


class Rising(Score):
    monotonic = True

    def final(self, value, length, context):
        return value + length


class Gaining(LogProbability):
    def increment(self, logprobs, aux=None):
        return logprobs + 1.0

    plain = False


class Squared(LogProbability):
    def final(self, value, length, context):
        return -(value**2)

    def bound(self, value, length, context):
        return -(value**2)


@pytest.mark.parametrize("score", [Rising(), Gaining()], ids=["final rises", "increments are positive"])
def test_a_score_that_wrongly_claims_monotonicity_raises_broken_law(score):
    with pytest.raises(BrokenLaw, match=r"the score of \[\d+(, \d+)*\] can reach .* above the bound .* of its prefix \["):
        decode(MODEL, [None], score=score)
    assert decode(MODEL, [None], score=score, strategy="beam")[0].status == "complete", "the way out that the message names"


def made(**methods):
    return type("Made", (Score,), methods)()


@pytest.mark.parametrize("strategy", ["beam", "best-first"])
@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            made(bound=lambda self, v, n, c: nan),
            r"Made\.bound of a hypothesis of value 0 and length 0 is nan; it must be a number",
        ),
        (made(bound=lambda self, v, n, c: None), r"Made\.bound .* is None; it must be a number"),
        (made(final=lambda self, v, n, c: nan if n > 2 else v), r"Made\.bound .* length 0 is nan"),
        (made(final=lambda self, v, n, c: None if n > 2 else v, monotonic=True), r"Made\.(final|bound) .* is None"),
        (made(final=lambda self, v, n, c: inf), r"Made\.final of a hypothesis of value .* and length 1 is inf"),
        (
            made(increment=lambda self, logprobs, aux=None: None),
            r"Made\.increment returned None for log-probabilities of shape \(",
        ),
        (made(increment=lambda self, logprobs, aux=None: logprobs[:1]), r"Made\.increment returned shape \(1,\) for log-prob"),
    ],
)
def test_a_score_that_returns_no_numbers_is_named(score, message, strategy):
    with pytest.raises(BrokenLaw, match=message):
        decode(MODEL, [None], score=score, strategy=strategy, max_length=4)


def test_a_bound_of_minus_infinity_is_broken_like_any_other():
    with pytest.raises(BrokenLaw, match=r"above the bound -inf of its prefix \[\]"):
        decode(MODEL, [None], score=made(bound=lambda self, v, n, c: -inf))


def test_a_subclass_of_log_probability_may_override_final_and_bound():
    answer = decode(MODEL, [None], score=Squared())[0].hypotheses[0]
    assert answer.score == pytest.approx(-(answer.logprob**2))


@pytest.mark.parametrize("base", [LogProbability, WrappedScore, GNMT], ids=lambda base: base.__name__)
def test_a_subclass_of_a_score_may_override_its_increments(base):
    class Tenfold(base):
        def increment(self, logprobs, aux=None):
            return 10 * super().increment(logprobs, aux)

    score = Tenfold(0.0) if base is GNMT else Tenfold()
    answer = decode(MODEL, [None], score=score)[0].hypotheses[0]
    assert not score.plain
    assert answer.score == pytest.approx(10 * answer.logprob)


class FlatAtFirst(Score):
    """Monotone in the length, but independent of the value before the third token."""

    name = "flat-at-first"
    one_way = True

    def final(self, value, length, context):
        return max(value, -1000.0) if length >= 3 else -1000.0


def test_a_score_that_goes_one_way_must_rise_strictly_with_the_value():
    """Under `keep` beams rank by score: of two equal scores the one of lower value may win the slot, which no bound shows."""
    with pytest.raises(
        AssertionError, match=r"it claims to go one way, so `final` must rise strictly .* at length 1 .* both worth -1000"
    ):
        check_score(FlatAtFirst())
    with pytest.raises(
        BrokenLaw, match=r"of children of \[\] have the same score, -1000: .* use finished='leave' or strategy='beam'"
    ):
        decode(MODEL, [None], score=FlatAtFirst(), finished="keep", max_length=6)
    for settings in ({"finished": "leave"}, {"finished": "keep", "strategy": "beam"}):  # the alternatives in the message
        assert decode(MODEL, [None], score=FlatAtFirst(), max_length=6, **settings)[0].exact


def test_a_length_penalty_becomes_a_score():
    assert type(by_length_penalty(0.0)) is LogProbability
    assert type(by_length_penalty(0.6)) is LengthNormalized
    assert by_length_penalty(0.6).alpha == 0.6


# -- names and invalid input -------------------------------------------------------------------------------------------------


def test_every_name_makes_its_score():
    assert list(SCORES) == [
        "logprob", "length-reward", "bounded-length-reward", "length-normalized", "gnmt", "mutual-information",
    ]  # fmt: skip
    parameters = {"beta": 0.5, "ratio": 1.0, "alpha": 0.6, "weight": 0.1, "epsilon": 0.02, "language_model": LANGUAGE_MODEL}
    for name, kind in SCORES.items():
        options = {key: parameters[key] for key, required in score_parameters(name).items() if required}
        score = named_score(name, **options)
        assert type(score) is kind
        by_name, by_object = (
            decode(MODEL, [None], score=name, score_options=options)[0],
            decode(MODEL, [None], score=score)[0],
        )
        assert by_name == by_object
        assert by_name.exact
    assert score_parameters("mutual-information") == {
        "language_model": True, "weight": True, "epsilon": True, "whole_sequence": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthReward(-1.0), "beta must be a number of at least 0, got -1.0"),
        (lambda: LengthReward(nan), "beta must be a number of at least 0, got nan"),
        (lambda: BoundedLengthReward(nan, 1.0), "beta must be a number of at least 0, got nan"),
        (lambda: BoundedLengthReward(1.0, -2.0), "ratio must be a number of at least 0, got -2.0"),
        (lambda: LengthNormalized(inf), "alpha must be a number, got inf"),
        (lambda: GNMT(nan), "alpha must be a number, got nan"),
        (lambda: LogProbability(0.0), "temperature must be a number above 0, got 0.0"),
        (lambda: MutualInformation(LANGUAGE_MODEL, -0.1, 0.1), "weight must be a number of at least 0, got -0.1"),
        (lambda: MutualInformation(LANGUAGE_MODEL, nan, 0.1), "weight must be a number of at least 0, got nan"),
        (lambda: MutualInformation(LANGUAGE_MODEL, 0.1, 1.5), "epsilon must be above 0 and at most 1 .* got 1.5"),
        (lambda: MutualInformation(LANGUAGE_MODEL, 0.1, -0.5), "epsilon must be above 0 and at most 1 .* got -0.5"),
        (lambda: MutualInformation(LANGUAGE_MODEL, 0.1, nan), "epsilon must be above 0 and at most 1 .* got nan"),
        (lambda: LengthReward(1e308), r"beta must be at most 1e\+09, got 1e\+308"),
        (lambda: LengthReward(10**400), r"beta must be at most 1e\+09, got 10000"),
        (lambda: LengthNormalized(-1e308), r"a length penalty must be from -1000 to 1000, got -1e\+308"),
        (lambda: GNMT(10**400), "a length penalty must be from -1000 to 1000, got 10000"),
        (lambda: LengthNormalized(600).norm(8), "a length penalty of 600 at 8 tokens is beyond what numbers hold"),
        (lambda: LengthNormalized(-600).norm(8), "a length penalty of -600 at 8 tokens is beyond what numbers hold"),
        (lambda: GNMT(1000.0).norm(50), r"a length penalty of 1000 at 50 tokens is beyond what numbers hold"),
        (lambda: LogProbability(1e300), r"temperature must be from 1e-09 to 1e\+09, got 1e\+300"),
        (lambda: LogProbability(5e-324), r"temperature must be from 1e-09 to 1e\+09, got 5e-324"),
        (lambda: Decoding(max_length="9" * 400 + "x"), "max_length is a number, or a multiple"),
        (lambda: Coverage(-0.5), "beta must be a number of at least 0, got -0.5"),
        (lambda: named_score("bleu"), "unknown score 'bleu'; choose from logprob, length-reward"),
        (lambda: named_score("length-reward"), "score 'length-reward' needs beta"),
        (lambda: named_score("mutual-information", weight=1), "score 'mutual-information' needs language_model and epsilon"),
        (lambda: named_score("gnmt", beta=1), "score 'gnmt' has no parameter 'beta'; it has alpha"),
        (lambda: named_score(GNMT(0.6), alpha=1), "score 'gnmt' is an object already"),
    ],
)
def test_invalid_parameters_are_refused_and_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_length_scores_need_no_numpy():
    code = (
        "import sys, bestfirst\n"
        "model = bestfirst.FunctionModel(lambda prefix: [-1.0, -2.0], 0)\n"
        "for score in ('length-reward', 'bounded-length-reward'):\n"
        "    options = {'beta': 0.5, 'ratio': 1.0} if 'bounded' in score else {'beta': 0.5}\n"
        "    bestfirst.decode(model, [None], score=score, score_options=options)\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_length_reward_above_the_cost_of_a_token_lengthens_the_output():
    """p(EOS) = 0.6 at every step: stopping at once costs -log 0.6, each further token -log 0.4 - beta = 0.92 - beta."""
    model = FunctionModel(lambda prefix: [log(0.6), log(0.4)], EOS)
    lengths = [len(decode(model, [None], score=LengthReward(beta), max_length=6)[0].hypotheses[0].tokens) for beta in (0, 0.9, 1)]
    assert lengths == [1, 1, 6]
