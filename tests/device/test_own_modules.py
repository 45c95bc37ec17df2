"""Whole searches on the device with models that run by their own modules: `generate`'s outputs, for each architecture."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import transformers as hf

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Stats
from bestfirst.engine.device import model_check
from bestfirst.engine.device import session as sessions
from bestfirst.engine.device.cuda_graphs import Graphs
from bestfirst.engine.device.device_step import CapturedStep
from bestfirst.engine.device.model_check import own_modules
from bestfirst.engine.device.modules import tree_attention
from bestfirst.engine.device.modules.own_modules import NAME, OwnModules
from bestfirst.integrations import crossover
from bestfirst.models.transformers import TransformersModel
from device.tiny import ENCODER_DECODERS, EVERYTHING, FALCON, FUSED, build, inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", True)
    monkeypatch.setattr(CapturedStep, "buckets", (4, 8, 64))  # fewer rows for the interpreter
    monkeypatch.setattr(model_check, "fused", lambda model: False)


def outputs(model, batch, **settings):
    """Sequences of the drop-in on the device, and of `generate`."""
    with torch.no_grad():
        theirs = model.generate(**batch, **settings)
        stats = Stats()
        mine = model.generate(**batch, **settings, custom_generate=bestfirst.generate, stats=stats)
    assert stats.engine == "device", stats.search
    return mine.tolist(), theirs.tolist()


STOPS = [{"early_stopping": False}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 0.0}]


@pytest.mark.parametrize(("name", "stop"), [(name, STOPS[i % 3]) for i, name in enumerate(EVERYTHING)], ids=list(EVERYTHING))
def test_architectures_on_the_device_equal_generate(name, stop):
    model = build(name).to(DEVICE)
    mine, theirs = outputs(model, inputs(model, 2, seed=1, shortest=3, longest=9), num_beams=2, max_new_tokens=3, **stop)
    assert mine == theirs


@pytest.mark.parametrize("name", [*EVERYTHING, *FUSED])
def test_architectures_on_the_host_equal_generate(monkeypatch, name):
    monkeypatch.setattr(TransformersModel, "on_gpu", False)
    monkeypatch.setattr(crossover, "measure", lambda *_: 2.0)  # independent of measured times
    model = build(name)
    batch = inputs(model, 3, seed=1, shortest=3, longest=9)
    for stop in STOPS:
        stats = Stats()
        options = {**batch, "num_beams": 3, "max_new_tokens": 6, **stop}
        assert torch.equal(model.generate(**options, custom_generate=bestfirst.generate, stats=stats), model.generate(**options))
        assert stats.engine == ("generate" if name == "LED" else "host")  # LED's decoder takes no mask


@pytest.mark.parametrize(("name", "stop"), [*zip(["Mistral", "Gemma3", "T5"], STOPS, strict=True)])
def test_outputs_longer_than_a_layers_window(name, stop):
    model = build(name, seed=3).to(DEVICE)
    mine, theirs = outputs(model, inputs(model, 2, seed=2, longest=5), num_beams=2, max_new_tokens=7, **stop)
    assert mine == theirs


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_unknown_attention_bias_is_refused(attention):
    """ALiBi, in matmuls that a module computes itself: short hypotheses would hardly show it in half precision."""
    config = hf.FalconConfig(**{**FALCON, "alibi": True}, attn_implementation=attention)
    with pytest.raises(TypeError, match=r"a bias that is not known|more than scaled"):
        OwnModules(hf.FalconForCausalLM(config).to(DEVICE).eval())


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_the_model_is_left_unchanged(name):
    model = build(name).to(DEVICE).train()
    before = {key: (module.training, sorted(vars(module)), list(module._forward_hooks)) for key, module in model.named_modules()}
    own_modules(bestfirst.wrap(model))
    assert {
        key: (module.training, sorted(vars(module)), list(module._forward_hooks)) for key, module in model.named_modules()
    } == before
    assert all(module.config._attn_implementation != NAME for module in model.modules() if hasattr(module, "config"))


def test_a_model_is_not_kept_in_memory():
    model = build("Llama").to(DEVICE)
    outputs(model, inputs(model, 1), num_beams=2, max_new_tokens=2)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_is_inspected_once_per_call(monkeypatch):
    """Checking whether the device can run it takes a good part of the time of one short input."""
    model, looks = build("Llama").to(DEVICE), []
    way_of = model_check.way_of
    monkeypatch.setattr(model_check, "way_of", lambda model: looks.append(model) or way_of(model))
    outputs(model, inputs(model, 1), num_beams=2, max_new_tokens=2)
    assert len(looks) == 1


def test_a_session_has_room_for_all_waiting_inputs():
    """A session made for fewer inputs would run them a few at a time."""
    model = build("Llama").to(DEVICE)
    for n in (1, 3):
        stats = Stats()
        model.generate(**inputs(model, n), num_beams=2, max_new_tokens=2, custom_generate=bestfirst.generate, stats=stats)
        assert (stats.engine, stats.in_flight) == ("device", n)


@pytest.mark.parametrize("where", ["a step", "prompts"])
def test_out_of_memory_reduces_the_inputs_in_flight(monkeypatch, where):
    model = build("Llama").to(DEVICE)
    batch = inputs(model, 4)
    expected = model.generate(**batch, num_beams=2, max_new_tokens=2)
    step, read = CapturedStep.__call__, OwnModules.read_prompts

    def refuse(self, rows):
        if self.state.shape.inputs > 2:
            raise torch.OutOfMemoryError("no room")
        return step(self, rows)

    def refuse_prompts(self, batch, cells, source):
        if len(batch.starts) > 2 and int((batch.lengths > 0).sum()) > 2:
            raise torch.OutOfMemoryError("no room")
        return read(self, batch, cells, source)

    if where == "a step":
        monkeypatch.setattr(CapturedStep, "__call__", refuse)
    else:
        monkeypatch.setattr(OwnModules, "read_prompts", refuse_prompts)
    stats = Stats()
    found = model.generate(**batch, num_beams=2, max_new_tokens=2, custom_generate=bestfirst.generate, stats=stats)
    assert found.tolist() == expected.tolist()
    assert (stats.engine, stats.in_flight) == ("device", 2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_work_that_waits_for_the_device_runs_without_a_graph():
    graphs, x = Graphs(torch.device(DEVICE)), torch.zeros(3, device=DEVICE)
    with pytest.warns(UserWarning, match="waits for the device"):
        graphs.run("waits", lambda: x.add_(float(x.sum() == 0)))
    graphs.run("waits", lambda: x.add_(2))
    assert x.tolist() == [3, 3, 3]


def test_deterministic_gives_the_same_bits_alone_and_in_a_batch(monkeypatch):
    """With the kernels: plain torch on a CPU depends on the longest input of a batch."""
    if DEVICE == "cpu":
        for name in ("attend_tree", "attend_packed"):
            monkeypatch.setattr(f"bestfirst.engine.device.modules.own_modules.{name}", getattr(tree_attention, name))
        monkeypatch.setattr(sessions, "FIXED_ROWS", 4)
    model = bestfirst.wrap(build("Llama").to(DEVICE))
    prompts = [[5, 6, 7, 8, 9], [10, 11]]
    options = {"beam": 2, "nbest": 2, "max_length": 2, "accept_truncated": True, "deterministic": True}
    together = bestfirst.decode(model, prompts, **options)
    alone = [bestfirst.decode(model, [prompt], **options)[0] for prompt in prompts]
    scores = [[(each.tokens, each.score) for each in result.hypotheses] for result in (*together, *alone)]
    assert all(len(found) == 2 for found in scores)
    assert scores[:2] == scores[2:]


def test_deterministic_is_refused_where_searches_run_on_the_host(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", False)
    with pytest.raises(ValueError, match="deterministic=True needs whole searches on a GPU, and the model is not on a GPU"):
        bestfirst.decode(bestfirst.wrap(build("Llama")), [[5, 6]], deterministic=True)
