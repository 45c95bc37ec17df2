"""Combinations of models: ensembles and shallow fusion."""

from __future__ import annotations

from math import exp, inf, log

import pytest

import bestfirst
from bestfirst import FunctionModel, decode
from bestfirst.models import Ensemble, Query, ShallowFusion
from bestfirst.scoring import GNMT
from reference import EOS
from scoring.test_mutual_information import Recurrent
from toys import random_toy

ONE, TWO = random_toy("peaked", 5, 1), random_toy("flat", 5, 2)


def test_an_ensemble_is_the_weighted_mean_of_probabilities():
    model = Ensemble([Recurrent(ONE), Recurrent(TWO)], [3, 1])
    logprobs = model.score([Query(model.start(None), ())])[0].logprobs
    expected = [log(0.75 * exp(a) + 0.25 * exp(b)) for a, b in zip(ONE(()), TWO(()), strict=True)]
    assert logprobs == pytest.approx(expected)
    assert sum(exp(logprob) for logprob in logprobs) == pytest.approx(1.0)


def test_combined_models_keep_their_states_and_search_is_exact():
    for model in (
        Ensemble([Recurrent(ONE), Recurrent(TWO)]),
        ShallowFusion(Recurrent(ONE), Recurrent(TWO), 0.5),
        Ensemble([ShallowFusion(Recurrent(ONE), Recurrent(TWO), 0.5), Recurrent(TWO)]),
    ):
        for score in ("logprob", GNMT(0.6)):
            result = decode(model, [None], score=score, nbest=3)[0]
            assert result.hypotheses == decode(model, [None], score=score, nbest=3, strategy="beam")[0].hypotheses
            assert result.exact


def test_an_ensemble_of_one_model_twice_equals_that_model():
    toy = random_toy("dead-ends", 6, 5)
    twice = decode(Ensemble([FunctionModel(toy, EOS)] * 2), [(1, 2)], nbest=3)[0]
    once = decode(FunctionModel(toy, EOS), [(1, 2)], nbest=3)[0]
    assert [answer.tokens for answer in twice.hypotheses] == [answer.tokens for answer in once.hypotheses]
    assert [answer.score for answer in twice.hypotheses] == pytest.approx([answer.score for answer in once.hypotheses])


def test_shallow_fusion_adds_weighted_log_probabilities_of_the_language_model():
    answer = decode(ShallowFusion(Recurrent(ONE), Recurrent(TWO), 0.3), [None])[0].hypotheses[0]
    steps = [(ONE(answer.tokens[:i])[token], TWO(answer.tokens[:i])[token]) for i, token in enumerate(answer.tokens)]
    assert answer.score == pytest.approx(sum(own + 0.3 * lm for own, lm in steps))
    no_weight = ShallowFusion(FunctionModel(ONE, EOS), FunctionModel(lambda prefix: [-inf] * 5, EOS), 0.0)
    assert decode(no_weight, [None])[0].hypotheses == decode(FunctionModel(ONE, EOS), [None])[0].hypotheses


def test_lengths_and_text_come_from_the_first_model():
    class Spoken(FunctionModel):
        def text(self, source, tokens):
            return f"{source}: {list(tokens)}"

        def max_length(self, source):
            return 7

    for model in (Ensemble([Spoken(ONE, EOS)]), ShallowFusion(Spoken(ONE, EOS), FunctionModel(TWO, EOS), 0.1)):
        assert model.max_length("ab") == 7
        assert model.source_length("ab") == 2
        assert decode(model, ["ab"])[0].text.startswith("ab: [")


def test_hugging_face_models_can_be_combined():
    import bestfirst

    model = bestfirst.load()
    alone = decode(model, ["Guten Morgen!"], beam=2, max_length=8)[0]
    together = decode(Ensemble([model, model]), ["Guten Morgen!"], beam=2, max_length=8)[0]
    assert together.text == alone.text
    assert together.hypotheses[0].score == pytest.approx(alone.hypotheses[0].score, abs=1e-4)
    assert Ensemble([model]).source_length("Guten Morgen!") == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, b: Ensemble([]), "at least one model"),
        (lambda a, b: Ensemble([a, b], [1]), "2 models need as many weights, got 1"),
        (lambda a, b: Ensemble([a, b], [1, -1]), r"must be numbers above 0, got \[1, -1\]"),
        (lambda a, b: Ensemble([a, FunctionModel(TWO, 3)]), r"same vocabulary, these end sequences with \[0\] and \[3\]"),
        (lambda a, b: ShallowFusion(a, b, -0.5), "weight must be a number of at least 0, got -0.5; MutualInformation"),
        (lambda a, b: ShallowFusion(a, FunctionModel(random_toy("flat", 9, 1), EOS), 0.5), "these have 5, 9 tokens"),
    ],
)
def test_incompatible_models_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        decode(make(FunctionModel(ONE, EOS), FunctionModel(TWO, EOS)), [None])


def test_required_words_token_names_and_targets_come_from_the_first_model():
    """For required words, token names and targets. A forced prefix is refused; it used to be ignored silently."""
    model = bestfirst.load()
    both = Ensemble([model, model])
    line = "Wo ist der Bahnhof?"
    assert decode(both, [line], must_contain=["train"])[0].text == decode(model, [line], must_contain=["train"])[0].text
    assert (both.special_token("</s>"), both.piece(5)) == (model.special_token("</s>"), model.piece(5))
    assert both.target("a train") == model.target("a train")
    (refused,) = decode(both, [line], prefix="The station")
    assert (refused.status, "a forced prefix needs a Hugging Face model by itself" in refused.message) == ("error", True)
