"""Drafts on the device: answers, scores and `calls` are those without drafts; only steps and rows differ."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Stats
from bestfirst.drafting import EarlierOutputs, SourceLookup
from bestfirst.engine.device import model_check
from bestfirst.engine.device.device_step import CapturedStep
from bestfirst.engine.device.drafted_step import Depth, DraftedStep, DraftModels
from bestfirst.models.transformers import TransformersModel
from device.tiny import build, inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = [[5, 6, 7, 8, 9], [7, 8, 9, 7, 8]]
SETTINGS = {
    "logprob": {"beam": 3, "nbest": 2, "max_length": 5},
    "as generate": {"beam": 2, "max_length": 6, "length_penalty": 1.0, "stop": "hf-false", "accept_truncated": True},
    "keep": {"beam": 3, "nbest": 2, "max_length": 5, "finished": "keep"},
    "proven": {"beam": 3, "nbest": 3, "max_length": 4, "length_penalty": 0.6, "accept_truncated": True},
}


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", True)
    monkeypatch.setattr(CapturedStep, "buckets", (4, 8, 64))  # fewer rows for the interpreter
    monkeypatch.setattr(model_check, "fused", lambda model: False)
    monkeypatch.setattr(DraftModels, "cost", 0.02)  # otherwise a model that drafts for itself would not pay


def outcome(results):
    found = [[(each.tokens, round(each.score, 3)) for each in result.hypotheses] for result in results]
    return found, [(result.calls, result.exact, result.status) for result in results]


def wrapped(name, seed):
    return bestfirst.wrap(build(name, seed=seed).to(DEVICE))


@pytest.mark.parametrize(("settings", "drafter"), [*product(SETTINGS, ("itself", "repeats")), ("as generate", "another")])
def test_answers_scores_and_calls_equal_those_without_drafts(settings, drafter):
    model, settings = wrapped("Llama", 1), SETTINGS[settings]
    plain = bestfirst.decode(model, PROMPTS, **settings)
    makers = {
        "itself": lambda: bestfirst.SmallerModel(model, depth=3),
        "another": lambda: bestfirst.SmallerModel(wrapped("GPT2", 2), depth=2),
        "repeats": lambda: SourceLookup(2),
    }
    stats = Stats()
    found = bestfirst.decode(model, PROMPTS, draft=makers[drafter](), stats=stats, **settings)
    assert stats.engine == "device"
    assert outcome(found) == outcome(plain)
    assert all(result.rows >= result.calls and result.accepted <= result.drafted for result in found)
    assert stats.drafted == sum(result.drafted for result in found) > 0
    if drafter == "itself":
        assert sum(result.steps for result in found) < 0.6 * sum(result.steps for result in plain)
        assert stats.accepted > stats.calls / 2


def test_generate_with_an_assistant_drafts_on_the_device():
    """`generate` refuses an assistant with beams; the drop-in accepts it."""
    model, small = build("Llama", seed=1).to(DEVICE), build("Llama", seed=2).to(DEVICE)
    batch, options, stats = inputs(model, 2, seed=3, longest=6), {"num_beams": 2, "max_new_tokens": 4}, Stats()
    expected = model.generate(**batch, **options)
    mine = model.generate(**batch, **options, assistant_model=small, custom_generate=bestfirst.generate, stats=stats)
    assert (stats.engine, stats.drafted > 0) == ("device", True)
    assert mine.tolist() == expected.tolist()


def test_the_device_runs_without_drafts_where_it_does_not_support_them():
    """Level by level, under `deterministic`, or with an unknown drafter: the host with drafts would be slower."""
    model = wrapped("Llama", 1)
    for settings in ({"draft": EarlierOutputs()}, {"draft": "source", "strategy": "beam", "stop": "hf-true"}):
        stats = Stats()
        plain = bestfirst.decode(model, PROMPTS, beam=2, max_length=3, **{**settings, "draft": None})
        found = bestfirst.decode(model, PROMPTS, beam=2, max_length=3, stats=stats, **settings)
        assert (stats.engine, stats.drafted) == ("device", 0)
        assert outcome(found) == outcome(plain)


def test_the_depth_follows_acceptance_and_cost():
    cheap = Depth(6, cost=0.02)
    assert cheap.now == 6
    costly = Depth(6, cost=0.3)
    assert 1 <= costly.now <= 3
    for depth, most in ((cheap, 1), (costly, 0)):
        for _ in range(40):
            depth.note(tokens=20, steps=19)  # hardly a guess was accepted
            assert depth.now <= 6
        assert depth.now <= most
    for _ in range(64):  # drafts are retried now and then, and accepted
        costly.note(tokens=20, steps=20 if costly.now == 0 else 10)
    assert costly.now > 0


def test_results_of_a_full_batch_do_not_change_the_depth():
    """Its rows leave no room for drafts, so each token takes a step."""
    step = DraftedStep.__new__(DraftedStep)
    step.depth = Depth(6, cost=0.1)
    answer, before = bestfirst.Answer(tuple(range(20)), -1.0, -1.0), step.depth.now
    for drafted, follows in ((0, True), (9, False)):
        for _ in range(40):
            step.learn(bestfirst.Result([answer], 20, 20, 20, exact=True, status="complete", drafted=drafted))
        assert (step.depth.now == before > 0) is follows
