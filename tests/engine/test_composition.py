"""Models composed of Hugging Face models run on the tree, with the results of scoring each hypothesis from scratch."""

from __future__ import annotations

import gc
from math import exp, inf, log

import numpy
import pytest

import bestfirst
import chat_models
from bestfirst import Ensemble, Model, Scored, ShallowFusion, Stats, decode
from bestfirst.engine import scorer_for
from bestfirst.engine.cached_model import CachedModel, use_caches
from bestfirst.models import Query
from bestfirst.models.score_arrays import FewBest, top_k_of_mean
from bestfirst.models.transformers import TransformersModel
from bestfirst.scoring import LogProbability, MutualInformation
from engine.builders import ARCHITECTURES

PROMPTS = ["the cat", "once upon a time there", "what is", "please tell me a story about the sea", "it is warm"]
SETTINGS = {"beam": 4, "nbest": 3, "max_length": 9, "accept_truncated": True}


def small(seed: int) -> TransformersModel:
    return bestfirst.wrap(chat_models.language_model(seed), chat_models.tokenizer())


@pytest.fixture(scope="module", autouse=True)
def tried() -> None:
    """Chooses the models' steps, which needs `TransformersModel.logits`, before tests replace it."""
    for seed in (0, 1):
        decode(small(seed), ["the"], max_length=1)


class Biased(Model):
    """A typical user's wrapper: some tokens are less likely, one is forbidden."""

    def __init__(self, model: Model) -> None:
        self.inner = {"model": model}
        self.eos = model.eos

    def start(self, source):
        return self.inner["model"].start(source)

    def score(self, batch):
        out = []
        for answer in self.inner["model"].score(batch):
            row = numpy.array(answer.logprobs)
            row[10:60] -= 1.5
            row[7] = -inf
            out.append(Scored(row, answer.state))
        return out

    def max_length(self, source):
        return 9


class FromScratch(Model):
    """The same model without a cache: each hypothesis is scored alone, from its first token."""

    def __init__(self, make) -> None:
        self.make = make  # a function: the engine does not look for models in it
        self.eos = make().eos

    def start(self, source):
        return source

    def score(self, batch):
        out = []
        for source, prefix in batch:
            model = self.make()
            state = model.start(source)
            for length in range(len(prefix) + 1):
                ((row, state, *_),) = model.score([Query(state, prefix[:length])])
            out.append(Scored(row, source))
        return out


MODELS = {
    "ensemble": lambda: Ensemble([small(0), small(1)], [2, 1]),
    "the same twice": lambda: Ensemble([small(0)] * 2),
    "fusion": lambda: ShallowFusion(small(0), small(1), 0.4),
    "wrapper": lambda: Biased(small(0)),
    "all of them": lambda: Ensemble([Biased(small(0)), ShallowFusion(small(1), small(0), 0.2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_compositions_run_on_the_tree_and_equal_scoring_from_scratch(name, monkeypatch):
    expected = decode(FromScratch(MODELS[name]), PROMPTS, **SETTINGS)
    asked = []
    monkeypatch.setattr(TransformersModel, "logits", lambda *_: asked.append(1))  # scores from scratch
    stats = Stats()
    results = decode(MODELS[name](), PROMPTS, stats=stats, **SETTINGS)
    assert not asked
    for one, other in zip(results, expected, strict=True):
        assert [y.tokens for y in one.hypotheses] == [y.tokens for y in other.hypotheses]
        assert [y.score for y in one.hypotheses] == pytest.approx([y.score for y in other.hypotheses], abs=1e-4)
        assert (one.calls, one.exact) == (other.calls, True)
    assert stats.cache_tokens > 0


def test_a_step_of_an_ensemble_is_one_forward_pass_of_each_model(monkeypatch):
    passes = []
    score = CachedModel.score
    monkeypatch.setattr(CachedModel, "score", lambda self, batch: (passes.append(len(batch)), score(self, batch))[1])
    stats = Stats()
    decode(Ensemble([small(0), small(1)]), PROMPTS * 4, stats=stats, **SETTINGS)
    checks = sum(rows == 1 for rows in passes)
    assert len(passes) - checks <= 2 * stats.steps
    assert sum(passes) - checks <= 2 * stats.rows


def test_the_cache_is_released_with_the_states_of_inputs():
    model = Ensemble([small(0), small(1)])
    scorer = scorer_for(model, LogProbability())
    states = []
    with scorer._use_caches(scorer._caches):
        for prompt in PROMPTS:
            states.append(model.start(prompt))
        answers = model.score([Query(state, ()) for state in states])
        assert scorer.cache_tokens() > 0
        del states[2:], answers
    before = scorer.cache_tokens()
    del states
    gc.collect()
    assert scorer.cache_tokens() == 0 < before
    assert model.models[0].cached is None  # the models are left unchanged


def test_a_language_model_beside_a_users_model_runs_on_the_tree(monkeypatch):
    size = len(chat_models.tokenizer())

    def row(prefix):
        scores = numpy.random.default_rng([3, *prefix]).random(size)
        return numpy.log(scores / scores.sum())

    def model():
        return bestfirst.FunctionModel(row, eos=1)

    expected = decode(model(), [None], score=MutualInformation(FromScratch(lambda: small(0)), 0.1, 0.01), beam=3, max_length=4)
    monkeypatch.setattr(TransformersModel, "logits", None)
    found = decode(model(), [None], score=MutualInformation(small(0), 0.1, 0.01), beam=3, max_length=4)
    assert [y.tokens for y in found[0].hypotheses] == [y.tokens for y in expected[0].hypotheses]


def test_an_ensemble_of_the_same_translator_equals_the_translator():
    model = bestfirst.load()
    lines = ["Guten Morgen!", "Ich habe keine Zeit.", "Das Wetter ist heute sehr schön."]
    alone, together = decode(model, lines), decode(Ensemble([model, model]), lines)
    assert [result.text for result in together] == [result.text for result in alone]
    assert [r.calls for r in together] == [r.calls for r in alone]
    (empty,) = decode(Ensemble([model]), ["Haus " * 600])
    assert empty.status == "error"
    assert "more than the model's 512 positions" in empty.message


def test_an_ensemble_averages_probabilities_in_either_precision(cases):
    for case in cases(50, full=500):
        rng = numpy.random.default_rng(case)
        rows = [numpy.log(rng.dirichlet([0.1] * 30)) for _ in range(3)]
        rows[0][3] = rows[1][3] = rows[2][3] = -inf
        kind = rng.choice(["float32", "float64"])
        parts = [bestfirst.FunctionModel(lambda prefix, row=row: row, eos=0) for row in [row.astype(kind) for row in rows]]
        weights = rng.random(3)
        model = Ensemble(parts, weights.tolist())
        found = model.score([Query([None] * 3, ())])[0].logprobs
        expected = sum(w / weights.sum() * numpy.exp(row) for w, row in zip(weights, rows, strict=True))
        assert numpy.exp(found) == pytest.approx(expected, abs=1e-5 if kind == "float32" else 1e-12)
        assert found[3] == -inf
        assert found.max() <= log(1)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_probability_below_the_range_of_its_dtype_is_not_lost(kind):
    rows = numpy.array([[-0.1, -200, -2000, -inf, -85], [-0.2, -210, -inf, -inf, -1500]], kind)
    model = Ensemble([bestfirst.FunctionModel(lambda prefix, row=row: row, eos=0) for row in rows], [1, 3])
    found = model.score([Query([None] * 2, ())])[0].logprobs
    expected = numpy.logaddexp(rows[0].astype(float) + log(0.25), rows[1].astype(float) + log(0.75))
    assert found == pytest.approx(expected, rel=1e-6)


def test_rows_of_inputs_may_come_in_any_order():
    model = small(0)
    with use_caches([CachedModel(model)]):
        states = [model.start(prompt) for prompt in PROMPTS]
        states = [answer.state for answer in model.score([Query(state, ()) for state in states])]
        queries = [Query(states[i], (token,)) for token in (20, 30, 40) for i in (3, 0, 2)]
        alone = numpy.array([model.score([query])[0].logprobs for query in queries])
        together = numpy.array([answer.logprobs for answer in model.score(queries)])
        found = model.cached.best(queries, 3)
    assert together == pytest.approx(alone, abs=1e-4)
    assert found.values == pytest.approx(-numpy.sort(-alone, 1)[:, :3], abs=1e-4)
    rows = numpy.arange(len(queries))[:, None]
    assert found.logprobs(rows, found.tokens) == pytest.approx(numpy.take_along_axis(alone, found.tokens, 1), abs=1e-4)


def test_an_ensemble_of_hugging_face_models_scores_each_row_once_per_model(monkeypatch):
    """Their steps have been checked; checking whether scores depend on the batch would cost a forward pass of each. Where the
    few best tokens are enough, the scores of all are not requested."""
    asked, run, stats = [], CachedModel._forward, Stats()
    monkeypatch.setattr(CachedModel, "_forward", lambda self, batch: asked.append(len(batch)) or run(self, batch))
    monkeypatch.setattr(Ensemble, "score", None)
    decode(Ensemble([small(0), small(1)]), PROMPTS, stats=stats, **SETTINGS)
    assert sum(asked) == 2 * stats.rows


@pytest.mark.parametrize("kind", ["usual", "flat", "ties", "impossible"])
def test_top_k_of_a_mean_equals_top_k_of_the_whole_rows(kind):
    """Whether or not the models' own best tokens are enough."""
    numbers = numpy.random.default_rng(len(kind))
    for _ in range(40):
        rows, size, width = numbers.integers(1, 5), numbers.integers(30, 90), int(numbers.integers(1, 6))
        weights = (each := numbers.uniform(0.1, 1, numbers.integers(1, 4))) / each.sum()
        parts, whole = [], 0.0
        for weight in weights:
            logits = numbers.normal(0, 0.05 if kind == "flat" else 3, (rows, size)).astype(numpy.float32)
            if kind == "ties":
                logits = numpy.round(logits / 3)
            if kind == "impossible":
                logits[numbers.random(logits.shape) < 0.8] = -inf
                logits[:, 3] = 0
            logprobs = logits - numpy.logaddexp.reduce(logits.astype(float), 1, keepdims=True)
            tokens = numpy.argsort(-logprobs, 1, kind="stable")[:, : 2 * width + 4]
            parts.append(FewBest(numpy.take_along_axis(logprobs, tokens, 1), tokens, logits, []))
            whole = whole + weight * numpy.exp(logprobs)
        found = top_k_of_mean(parts, weights, width)
        for row, (values, tokens) in enumerate(found):
            wanted = [token for token in numpy.lexsort((numpy.arange(size), -whole[row].round(12))) if whole[row, token] > 0][
                :width
            ]
            assert values == pytest.approx(numpy.log(whole[row][wanted]).tolist(), abs=1e-5)
            assert kind == "ties" or tokens == [int(token) for token in wanted]
            assert len(set(tokens)) == len(tokens)


def test_an_ensemble_of_one_model_with_two_start_tokens():
    """One step runs both; its logits are valid until its next call."""
    module = ARCHITECTURES["m2m100"].build()
    models = [bestfirst.wrap(module), bestfirst.wrap(module)]
    models[1].__dict__["start_tokens"] = (7,)
    for source in ([5, 6, 7, 1], [9, 10, 1]):
        (result,) = decode(Ensemble(models), [source], beam=2, max_length=8, accept_truncated=True)
        (tokens, scores), states = (result.hypotheses[0].tokens, []), [model.start(source) for model in models]
        for i, token in enumerate(tokens):
            rows = [model.score([Query(state, tokens[:i])])[0].logprobs for model, state in zip(models, states, strict=True)]
            scores.append(log(sum(exp(row[token]) for row in rows) / 2))
        assert result.hypotheses[0].logprob == pytest.approx(sum(scores), abs=1e-4)
