"""`decode` on the device: whole models through the kernels, jobs that stay on the host, and fallbacks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Decoding, Stats, Trace
from bestfirst.engine import Job, engine_for, run
from bestfirst.engine.device import DeviceEngine, collector
from bestfirst.engine.device import device_engine as engines
from bestfirst.engine.host import HostEngine
from bestfirst.engine.model_record import record_of
from bestfirst.models.folder import embedded_folder
from bestfirst.models.transformers import TransformersModel, load_transformers
from bestfirst.scoring import Coverage
from engine.builders import ARCHITECTURES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LINES = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def on_device(monkeypatch):
    """Decodes run on the host until this is called; afterwards they run the device's code, on any hardware."""
    monkeypatch.setattr(TransformersModel, "on_gpu", False)
    return lambda: monkeypatch.setattr(TransformersModel, "on_gpu", True)


def summary(results):
    return [
        ([answer.tokens for answer in r.hypotheses], r.calls, r.exact, r.status, r.partial and r.partial.tokens) for r in results
    ]


def test_the_embedded_model_equals_the_host(on_device):
    model = load_transformers(embedded_folder(), device=DEVICE)
    settings = {"beam": 3, "nbest": 2, "max_length": 5, "accept_truncated": True}
    expected = bestfirst.decode(model, LINES[3:5], **settings)
    on_device()
    stats = Stats()
    found = bestfirst.decode(model, LINES[3:5], **settings, stats=stats)
    assert summary(found) == summary(expected)
    assert [r.text for r in found] == [r.text for r in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert [a.score for a in mine.hypotheses] == pytest.approx([a.score for a in theirs.hypotheses], abs=1e-4)
    assert (stats.rows, stats.calls) == (sum(r.rows for r in found), sum(r.calls for r in found))
    assert (stats.in_flight, stats.engine) == (2, "device")
    assert record_of(model).session[1].checked  # an answer was checked against the model itself


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_architectures_equal_the_host(on_device, name):
    """Pre-norm and post-norm layers, scaled embeddings, a forced first token, a banned token."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    inputs = architecture.inputs(1, seed=3)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3)
    on_device()
    assert isinstance(engine_for(model, Decoding()), DeviceEngine)
    assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3)) == summary(expected)
    assert record_of(model).session[1].checked


@pytest.mark.parametrize("allowed", [None, bestfirst.Trie([[30, 31], [30, 12], [40], [13, 14]])])
def test_at_a_temperature_scores_are_the_hosts_where_tokens_are_banned_or_not_allowed(on_device, allowed):
    inner = ARCHITECTURES["bart"].build()
    inner.generation_config.bad_words_ids = [[token] for token in (0, 5, 7, 9, 11, 16, 23)]
    model, inputs = bestfirst.wrap(inner.to(DEVICE)), ARCHITECTURES["bart"].inputs(2)
    settings = {"beam": 3, "nbest": 2, "max_length": 3, "score_options": {"temperature": 2.0}, "allowed": allowed}
    expected = bestfirst.decode(model, inputs, **settings)
    on_device()
    for mine, theirs in zip(bestfirst.decode(model, inputs, **settings), expected, strict=True):
        assert summary([mine]) == summary([theirs])
        assert [a.score for a in mine.hypotheses] == pytest.approx([a.score for a in theirs.hypotheses], abs=1e-4)


def test_jobs_of_one_engine_may_have_different_min_lengths_and_eos(on_device):
    architecture = ARCHITECTURES["bart"]
    model = bestfirst.wrap(architecture.build(seed=2).to(DEVICE))
    asked = [{"min_length": 3}, {}, {"eos": [27, 9]}, {"eos": [1, 27], "min_length": 2}, {"min_length": 2, "length_penalty": 1.0}]
    settings = [Decoding(beam=2, nbest=2, max_length=5, accept_truncated=True, **each) for each in asked]
    source = model.read(architecture.inputs(1, seed=2)[0])

    def decode():
        engine = engine_for(model, Decoding())
        found = {job.index: result for job, result in run(engine, [Job(i, source, each) for i, each in enumerate(settings)])}
        return summary([found[i] for i in range(len(settings))]), engine.stats.engine

    expected, _ = decode()
    assert [len(tokens[0]) for tokens, *_ in expected] == [4, 1, 5, 3, 3]
    on_device()
    assert decode() == (expected, "device")


def test_waiting_jobs_replace_a_small_session_by_a_larger_one(on_device):
    """A server's first request is one text; others arrive while it is decoded, so its session is never without jobs."""
    architecture = ARCHITECTURES["marian"]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    decoding = Decoding(beam=2, max_length=3)
    inputs = architecture.inputs(7)
    expected = bestfirst.decode(model, inputs, decoding)
    on_device()
    engine = engine_for(model, decoding)
    first, *others = [Job(i, model.read(each), decoding) for i, each in enumerate(inputs)]
    found = {}
    engine.submit(first)
    found.update(engine.step())
    assert record_of(model).session[1].target_inputs == 4
    engine.submit(*others)
    while engine:
        found.update(engine.step())
    assert record_of(model).session[1].target_inputs == 32
    assert summary([found[job] for job in (first, *others)]) == summary(expected)


def test_jobs_that_cannot_share_a_session_wait_for_each_other(on_device):
    """Waiting jobs under a trie do not enlarge the session of jobs without one."""
    architecture = ARCHITECTURES["marian"]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    free = Decoding(beam=2, max_length=3)
    settings = [free, *[free.using(allowed=bestfirst.Trie([(5, 6), (7, 8)]))] * 5, free]
    jobs = [Job(i, model.read(architecture.inputs(1)[0]), each) for i, each in enumerate(settings)]
    on_device()
    engine = engine_for(model, free)
    engine.submit(*jobs)
    found = {}
    for _ in range(60):
        found.update(engine.step())
    assert {*found} == {*jobs}


@pytest.mark.parametrize("option", [{"length_penalty": 0.25}, {"min_length": 1}])
def test_jobs_wait_for_room_in_a_sessions_tables_of_scores_and_edits(on_device, option):
    """Jobs that find no room wait until the tables are unused."""
    architecture = ARCHITECTURES["marian"]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    (name, value), first = *option.items(), Decoding(beam=2, max_length=12)
    settings = [first.using(**{name: value * i}) for i in range(10)]
    jobs = [Job(i, model.read(architecture.inputs(1)[0]), each) for i, each in enumerate(settings)]
    expected = dict(run(engine_for(model, first), jobs))
    for job in jobs:
        job.edits = None
    on_device()
    engine = engine_for(model, first)
    assert isinstance(engine, DeviceEngine)
    engine.submit(*jobs)
    found = {}
    for _ in range(80):
        found.update(engine.step())
    assert summary([found[job] for job in jobs]) == summary([expected[job] for job in jobs])


def test_an_engines_stats_do_not_change_when_another_uses_its_session(on_device):
    architecture = ARCHITECTURES["marian"]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    decoding = Decoding(beam=2, max_length=3)
    source = model.read(architecture.inputs(1)[0])
    on_device()
    first, second = engine_for(model, decoding), engine_for(model, decoding)
    list(run(first, [Job(0, source, decoding)]))
    session, cost = record_of(model).session[1], first.stats
    list(run(second, [Job(i, source, decoding) for i in range(3)]))
    assert record_of(model).session[1] is session
    assert (first.stats, first.in_flight) == (cost, [])
    assert second.stats.rows == 3 * cost.rows


def test_a_session_is_not_smaller_than_the_one_it_replaces(on_device, monkeypatch):
    architecture = ARCHITECTURES["marian"]
    model = bestfirst.wrap(architecture.build().to(DEVICE))
    decoding = Decoding(beam=2, max_length=2)
    on_device()
    made = []

    def session(model, shape, make=engines.Session):
        made.append((shape.inputs, shape.source))
        return make(model, shape)

    monkeypatch.setattr(engines, "Session", session)
    short, long = [5, 6, 7, 0], [5] * 37 + [0]
    for inputs in ([short], [short] * 6, [long], [short], [short] * 6, [long]):
        bestfirst.decode(model, inputs, decoding)
    assert made == [(4, 32), (32, 32), (32, 64)]


def test_a_failing_session_falls_back_with_one_warning(on_device, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    inputs = ARCHITECTURES["marian"].inputs(3)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=4)
    on_device()

    def refuse(*_):
        raise RuntimeError("capture refused\nat length")

    monkeypatch.setattr(engines, "Session", refuse)
    with pytest.warns(UserWarning, match=r"RuntimeError: capture refused\).*falling back") as warned:
        assert summary(bestfirst.decode(model, inputs, beam=2, max_length=4)) == summary(expected)
    assert len([each for each in warned if each.category is UserWarning]) == 1


def test_out_of_memory_retries_with_fewer_inputs(on_device, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    inputs = ARCHITECTURES["marian"].inputs(2)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3)
    on_device()
    asked = []

    def session(model, shape, make=engines.Session):
        asked.append(shape.inputs)
        if shape.inputs > 1:
            raise torch.OutOfMemoryError("no room")
        return make(model, shape)

    monkeypatch.setattr(engines, "Session", session)
    monkeypatch.setattr(engines, "MOST_INPUTS", 2)
    assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3)) == summary(expected)
    assert asked == [2, 1]


def test_an_answer_that_the_model_scores_differently_is_not_returned(on_device, monkeypatch):
    model = bestfirst.wrap(ARCHITECTURES["bart"].build().to(DEVICE))
    inputs = ARCHITECTURES["bart"].inputs(1)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3, accept_truncated=True)
    on_device()

    def wrong(*counts, make=collector.result_of):
        job, result = make(*counts)
        result.hypotheses[0] = dataclasses.replace(result.hypotheses[0], logprob=-99.0)
        return job, result

    monkeypatch.setattr(collector, "result_of", wrong)
    with pytest.warns(UserWarning, match="by its kernels"):
        assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3, accept_truncated=True)) == summary(expected)


def test_which_jobs_the_device_supports(on_device, caplog):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    assert isinstance(engine_for(model, Decoding()), HostEngine)
    on_device()
    engine = engine_for(model, Decoding())
    source = model.read([5, 1])
    assert engine.why_not(Job(0, source, Decoding(nbest=5, accept_truncated=True))) is None
    other = {
        "strategy 'beam' with stop 'opennmt'": {"strategy": "beam", "stop": "opennmt"},
        "strategy 'beam' with stop 'shrinking'": {"strategy": "beam", "stop": "shrinking"},
        "strategy 'best-first-unpruned'": {"strategy": "best-first-unpruned"},
        "strategy 'a-star-beam'": {"strategy": "a-star-beam"},
        "a beam above 5000": {"strategy": "breadth-first"},
        "score 'coverage'": {"score": Coverage(0.2)},
        "queue_capacity": {"queue_capacity": 50},
        "max_calls": {"max_calls": 10},
        "nbest above the beam": {"beam": 2, "nbest": 3},
        "row_budget": {"row_budget": 7},
    }
    for why, settings in other.items():
        assert why in engine.why_not(Job(0, source, Decoding(**settings)))
    assert "recorded" in engine.why_not(Job(0, source, Decoding(), Trace()))
    changed = ARCHITECTURES["t5"].build().to(DEVICE)
    changed.get_output_embeddings().register_forward_hook(lambda module, given, output: output)
    assert not isinstance(engine_for(bestfirst.wrap(changed), Decoding()), DeviceEngine)


def test_unsupported_jobs_run_on_the_host_beside_the_device(on_device, caplog):
    """This is logged once; results are those of each job alone."""
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    asked = [
        {"beam": 3, "nbest": 2}, {"beam": 2, "max_calls": 99}, {"beam": 1}, {"beam": 2, "max_calls": 99},
        {"beam": 3, "finished": "keep"}, {"beam": 2, "strategy": "beam"}, {"beam": 3, "score_options": {"temperature": 2.0}},
    ]  # fmt: skip
    inputs = ARCHITECTURES["marian"].inputs(len(asked))
    each = [bestfirst.decode(model, [x], max_length=3, **s)[0] for x, s in zip(inputs, asked, strict=True)]
    on_device()
    engine = engine_for(model, Decoding(beam=3))
    jobs = [Job(i, model.read(x), Decoding(max_length=3, **asked[i])) for i, x in enumerate(inputs)]
    engines._warn_once.cache_clear()
    engine.submit(*jobs)
    found = {}
    while engine:
        found.update({job.index: result for job, result in engine.step()})
    assert summary([found[i] for i in range(len(asked))]) == summary(each)
    assert engine.stats.engine == "device+host"
    assert [record.getMessage() for record in caplog.records if "max_calls" in record.getMessage()] == [
        "the searches of the device do not know max_calls: such jobs run on the host"
    ]


def test_jobs_in_flight_or_waiting_can_be_cancelled(on_device):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    on_device()
    engine = engine_for(model, Decoding())
    settings = Decoding(beam=2, max_length=4)
    jobs = [Job(i, model.read(x), settings) for i, x in enumerate(ARCHITECTURES["marian"].inputs(3))]
    engine.submit(*jobs[:2])
    list(engine.step())
    engine.cancel(jobs[0])  # in a slot
    engine.submit(jobs[2])
    engine.cancel(jobs[2])  # waiting
    assert [job.index for _ in iter(lambda: bool(engine), False) for job, _ in engine.step()] == [1]
    with pytest.raises(ValueError, match="not in the engine"):
        engine.cancel(jobs[1])


def test_two_engines_of_one_model_do_not_share_a_session(on_device):
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    inputs = ARCHITECTURES["marian"].inputs(4)
    expected = bestfirst.decode(model, inputs, beam=2, max_length=3)
    on_device()
    first = bestfirst.decode_iter(model, inputs, beam=2, max_length=3)
    results = dict([next(first)])
    assert summary(bestfirst.decode(model, inputs, beam=2, max_length=3)) == summary(expected)
    results.update(first)
    assert summary([results[i] for i in range(4)]) == summary(expected)


def test_bad_settings_are_reported(on_device):
    on_device()
    model = bestfirst.wrap(ARCHITECTURES["marian"].build().to(DEVICE))
    (result,) = bestfirst.decode(model, [[5, 1]], max_length=lambda length: 0)
    assert (result.status, result.message) == ("error", "max_length must be at least 1, got 0")
