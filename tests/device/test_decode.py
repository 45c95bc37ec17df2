"""`decode` on the device: the model's whole way through the kernels, what stays with the scheduler, and the way back to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst.decoding import Task
from bestfirst.engine.device import flight as flights
from bestfirst.engine.device import pilot as pilots
from bestfirst.engine.device import pilot_for
from bestfirst.engine.device.pilot import Pilot, takes
from bestfirst.models.transformers import TransformersModel
from bestfirst.scheduler import Stats
from bestfirst.scoring import LengthNormalized, LogProbability
from bestfirst.search import beam, best_first_beam
from engine.builders import ARCHITECTURES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LINES = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def flown(monkeypatch):
    """Decodes stay with the scheduler until this is called; from then on they go to the device's code, whatever the device."""

    def to_pilot(self, task):
        return Pilot(self, task) if takes(self, task) else None

    monkeypatch.setattr(TransformersModel, "pilot", lambda self, task: None)

    def use():
        monkeypatch.setattr(TransformersModel, "pilot", to_pilot)

    return use


def summary(results):
    return [
        ([answer.tokens for answer in r.hypotheses], r.calls, r.exact, r.status, r.partial and r.partial.tokens) for r in results
    ]


def test_the_embedded_model(flown):
    model = bestfirst.load(device=DEVICE)
    settings = {"beam": 3, "nbest": 2, "max_length": 5, "accept_truncated": True}
    expected = bestfirst.decode(model, LINES[3:5], **settings)
    flown()
    stats = Stats()
    found = bestfirst.decode(model, LINES[3:5], **settings, stats=stats)
    assert summary(found) == summary(expected)
    assert [r.text for r in found] == [r.text for r in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert [a.score for a in mine.hypotheses] == pytest.approx([a.score for a in theirs.hypotheses], abs=1e-4)
    assert (stats.rows, stats.in_flight) == (sum(r.rows for r in found), 2)
    assert model.flight[1].trusted  # an answer was checked against the model itself


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_architectures(flown, name):
    """Layers that normalise first or last, scaled embeddings, a language that outputs begin with, a banned token."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    inputs = architecture.inputs(1, seed=3)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3)
    flown()
    assert takes(model, Task(best_first_beam(2), LogProbability()))
    assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3)) == summary(expected)
    assert model.flight[1].trusted


def test_what_the_device_refuses_is_decoded_elsewhere_with_one_warning(flown, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    inputs = ARCHITECTURES["marian"].inputs(3)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=4)
    flown()

    def refuse(*_):
        raise RuntimeError("capture refused\nat length")

    monkeypatch.setattr(pilots, "Flight", refuse)
    with pytest.warns(UserWarning, match=r"RuntimeError: capture refused\).*falling back") as warned:
        assert summary(bestfirst.decode(model, inputs, beam=2, max_length=4)) == summary(expected)
    assert len(warned) == 1


def test_memory_that_is_refused_is_asked_for_again_for_fewer_inputs(flown, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    inputs = ARCHITECTURES["marian"].inputs(2)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3)
    flown()
    asked = []

    def flight(model, shape, make=pilots.Flight):
        asked.append(shape.inputs)
        if shape.inputs > 1:
            raise torch.OutOfMemoryError("no room")
        return make(model, shape)

    monkeypatch.setattr(pilots, "Flight", flight)
    monkeypatch.setattr(pilots, "MOST_INPUTS", 2)
    assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3)) == summary(expected)
    assert asked == [2, 1]


def test_an_answer_that_the_model_disowns_is_not_given_out(flown, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["bart"].build().to(DEVICE))
    inputs = ARCHITECTURES["bart"].inputs(1)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3, accept_truncated=True)
    flown()

    class Wrong(flights.Landing):
        def result(self, *args):
            result = super().result(*args)
            result.hypotheses[0] = dataclasses.replace(result.hypotheses[0], logprob=-99.0)
            return result

    monkeypatch.setattr(flights, "Landing", Wrong)
    with pytest.warns(UserWarning, match="by its kernels"):
        assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3, accept_truncated=True)) == summary(expected)


def test_what_is_for_the_device_and_what_is_not():
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    usual = Task(best_first_beam(5), LogProbability())
    assert takes(model, usual)
    other = [
        Task(best_first_beam(5, "keep"), LogProbability()),
        Task(beam(5), LogProbability()),
        Task(best_first_beam(5), LengthNormalized(1.0)),
        Task(best_first_beam(5), LogProbability(temperature=2.0)),
        Task(best_first_beam(5, queue_capacity=50), LogProbability()),
        Task(best_first_beam(5), LogProbability(), max_calls=10),
        Task(best_first_beam(2), LogProbability(), nbest=3),
    ]
    assert not any(takes(model, task) for task in other)
    assert not takes(bestfirst.wrap(ARCHITECTURES["t5"].build().to(DEVICE)), usual)
    if model.model.device.type == "cpu":
        assert pilot_for(model, usual) is None


def test_bad_settings_are_told(flown):
    flown()
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        bestfirst.decode(model, [[5, 1]], max_length=lambda length: 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("settings", [{"beam": 5}, {"beam": 10, "nbest": 10}, {"beam": 50}, {"beam": 5, "max_length": 4}])
def test_a_gpu_gives_what_the_scheduler_gives(settings):
    model = bestfirst.load(device="cuda")
    found = bestfirst.decode(model, LINES, **{"max_length": 80, **settings})
    assert model.flight is not None
    assert summary(found) == summary(bestfirst.decode(model, LINES, **{"max_length": 80, **settings}, row_budget=512))
