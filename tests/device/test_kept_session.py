"""The session that is kept with a model between decodes: when it is reused, and that it is checked against the model before
any of its results are returned, while the device works already."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import Parameter

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Decoding, Result, Stats
from bestfirst.engine import Engine, Job, engine_for
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
    """The log-probability of the best answer, on the device."""
    stats = Stats()
    (result,) = bestfirst.decode(model, [[5, 7, 1]], **SETTINGS, stats=stats)
    assert stats.engine == "device"
    return result.hypotheses[0].logprob


def copied_weight(model: TransformersModel) -> torch.Tensor:
    """A weight that sessions copy, and whose sign changes every score."""
    return model.model.get_decoder().layers[1].fc1.weight


@torch.no_grad()
def in_place(model: TransformersModel) -> None:
    copied_weight(model).mul_(-1)


def where_torch_does_not_count(model: TransformersModel) -> None:
    copied_weight(model).data.mul_(-1)


def by_another(model: TransformersModel) -> None:
    model.model.get_decoder().layers[1].fc1.weight = Parameter(-copied_weight(model).detach())


@pytest.mark.parametrize("change", [in_place, where_torch_does_not_count, by_another])
def test_changed_weights_make_a_new_session(change):
    model = marian()
    before, first = logprob(model), record_of(model).session[1]
    assert (logprob(model), record_of(model).session[1]) == (before, first)
    change(model)
    after = logprob(model)
    assert record_of(model).session[1] is not first
    assert after == pytest.approx(logprob(bestfirst.wrap(copy.deepcopy(model.model))), abs=1e-4)
    assert after != pytest.approx(before, abs=1e-4)


def test_a_model_with_a_larger_vocabulary_does_not_start_in_the_kept_session(monkeypatch):
    """Otherwise arrays would be read and written out of bounds before the session is checked."""
    model = marian()
    logprob(model)
    begun, begin = [], Session.begin
    monkeypatch.setattr(Session, "begin", lambda self, *asked: begun.append(self) or begin(self, *asked))
    head, kept = model.model.lm_head, record_of(model).session[1]
    more = torch.cat([head.weight.detach(), torch.zeros(6, head.weight.shape[1], device=DEVICE)])
    head.weight, model.model.final_logits_bias = Parameter(more), torch.zeros(1, len(more), device=DEVICE)
    model.model.config.vocab_size = len(more)
    with pytest.warns(UserWarning, match="falling back"):  # its embeddings lack some of its tokens
        bestfirst.decode(bestfirst.wrap(model.model), [[5, 7, 1]], **SETTINGS)
    assert kept not in begun


def job(model: TransformersModel) -> Job:
    return Job(0, model.read([5, 7, 1]), Decoding(**SETTINGS))


def finish(engine: Engine) -> list[Result]:
    """Run the engine until it is empty."""
    return [result for _ in iter(lambda: bool(engine), False) for _, result in engine.step()]


def test_an_interrupted_check_of_the_weights_is_repeated(monkeypatch):
    model = marian()
    before = logprob(model)
    where_torch_does_not_count(model)
    engine = engine_for(model, Decoding(**SETTINGS))
    engine.submit(job(model))
    with monkeypatch.context() as patched:
        patched.setattr(Fingerprint, "seems_to_hold", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # in the first step, or, on a GPU, where the host is a burst behind, in the second
            finish(engine)
    found = finish(engine)
    assert found[0].hypotheses[0].logprob != pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("error", [ValueError("the model's scores are not finite"), RuntimeError("no such kernel")])
def test_an_error_in_a_stale_session_starts_a_new_session(error, monkeypatch):
    """The error is not raised, and nothing falls back to the host: all jobs restart in a session of this model."""
    model = marian()
    before = logprob(model)
    where_torch_does_not_count(model)
    checks, look, admit, stale = [], Session._read_snapshot, Session._admit, record_of(model).session[1]

    def failing(real, self, *asked):
        if self is stale:
            checks.append(self)
            raise error
        return real(self, *asked)

    name, real = ("_read_snapshot", look) if isinstance(error, ValueError) else ("_admit", admit)
    monkeypatch.setattr(Session, name, lambda self, *asked: failing(real, self, *asked))
    assert logprob(model) != pytest.approx(before, abs=1e-4)
    assert checks == [stale]


def test_a_session_kept_from_fewer_inputs_is_replaced_for_more(monkeypatch):
    """As many inputs are in flight as in a first decode; a session that has room for them is kept."""
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
