"""The session that is kept with a model from one decode to the next: what it is used for, and that it is held against the model
before anything of it is told, while the device works already."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import Parameter

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Decoding, Stats
from bestfirst.engine import Job, engine_for
from bestfirst.engine.device import capacity
from bestfirst.engine.device import device_engine as engines
from bestfirst.engine.device.session import Session
from bestfirst.engine.model_record import record_of
from bestfirst.engine.steps.step_choice import Fingerprint
from bestfirst.models.transformers import TransformersModel
from engine.builders import ARCHITECTURES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = {"beam": 2, "max_length": 3, "accept_truncated": True}


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", True)


def marian() -> TransformersModel:
    return bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))


def logprob(model: TransformersModel) -> float:
    """Of the best answer, on the device."""
    stats = Stats()
    (result,) = bestfirst.decode(model, [[5, 7, 1]], **SETTINGS, stats=stats)
    assert stats.engine == "device"
    return result.hypotheses[0].logprob


def turn(model: TransformersModel) -> torch.Tensor:
    """Weights that a session has copied, and whose sign changes every score."""
    return model.model.get_decoder().layers[1].fc1.weight


@torch.no_grad()
def in_place(model: TransformersModel) -> None:
    turn(model).mul_(-1)


def where_torch_does_not_count(model: TransformersModel) -> None:
    turn(model).data.mul_(-1)


def by_another(model: TransformersModel) -> None:
    model.model.get_decoder().layers[1].fc1.weight = Parameter(-turn(model).detach())


@pytest.mark.parametrize("change", [in_place, where_torch_does_not_count, by_another])
def test_it_is_made_anew_for_weights_that_changed(change):
    model = marian()
    before, first = logprob(model), record_of(model).session[1]
    assert (logprob(model), record_of(model).session[1]) == (before, first)
    change(model)
    after = logprob(model)
    assert record_of(model).session[1] is not first
    assert after == pytest.approx(logprob(bestfirst.wrap(copy.deepcopy(model.model))), abs=1e-4)
    assert after != pytest.approx(before, abs=1e-4)


def test_a_model_with_more_tokens_is_not_begun_in_it(monkeypatch):
    """What a session has no room for would be written and read beyond its ends, before anybody has looked."""
    model = marian()
    logprob(model)
    begun, begin = [], Session.begin
    monkeypatch.setattr(Session, "begin", lambda self, *asked: begun.append(self) or begin(self, *asked))
    head, kept = model.model.lm_head, record_of(model).session[1]
    more = torch.cat([head.weight.detach(), torch.zeros(6, head.weight.shape[1], device=DEVICE)])
    head.weight, model.model.final_logits_bias = Parameter(more), torch.zeros(1, len(more), device=DEVICE)
    model.model.config.vocab_size = len(more)
    with pytest.warns(UserWarning, match="falling back"):  # its embeddings do not know all of its tokens
        bestfirst.decode(bestfirst.wrap(model.model), [[5, 7, 1]], **SETTINGS)
    assert kept not in begun


def job(model: TransformersModel) -> Job:
    return Job(0, model.read([5, 7, 1]), Decoding(**SETTINGS))


def test_who_was_interrupted_while_looking_looks_again(monkeypatch):
    model = marian()
    before = logprob(model)
    where_torch_does_not_count(model)
    engine = engine_for(model, Decoding(**SETTINGS))
    engine.submit(job(model))
    with monkeypatch.context() as patched:
        patched.setattr(Fingerprint, "seems_to_hold", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(engine.step())
    found = [result for _ in iter(lambda: bool(engine), False) for _, result in engine.step()]
    assert found[0].hypotheses[0].logprob != pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("error", [ValueError("the model's scores are not finite"), RuntimeError("no such kernel")])
def test_what_fails_in_a_session_of_another_model_is_no_failure(error, monkeypatch):
    """It is not told, nor is the host asked to do it: all begin again in a session of this model."""
    model = marian()
    before = logprob(model)
    where_torch_does_not_count(model)
    looks, look, admit, stale = [], Session._read_snapshot, Session._admit, record_of(model).session[1]

    def failing(real, self, *asked):
        if self is stale:
            looks.append(self)
            raise error
        return real(self, *asked)

    name, real = ("_read_snapshot", look) if isinstance(error, ValueError) else ("_admit", admit)
    monkeypatch.setattr(Session, name, lambda self, *asked: failing(real, self, *asked))
    assert logprob(model) != pytest.approx(before, abs=1e-4)
    assert looks == [stale]


def test_a_session_kept_from_few_inputs_or_another_beam_is_not_used_for_many(monkeypatch):
    """As many inputs are in flight as if it were the first decode; a session that has room for them is kept."""
    model = marian()
    inputs = ARCHITECTURES["marian"].inputs(3)
    monkeypatch.setattr(capacity, "ROOMS", (1, 2))
    for module in (capacity, engines):
        monkeypatch.setattr(module, "MOST_INPUTS", 3)
    kept = []
    for some in (inputs[:1], inputs, inputs[:1]):
        stats = Stats()
        bestfirst.decode(model, some, beam=1, max_length=1, stats=stats)
        kept.append(record_of(model).session[1])
        assert stats.in_flight == len(some)
    assert kept[0] is not kept[1]
    assert kept[1] is kept[2]
