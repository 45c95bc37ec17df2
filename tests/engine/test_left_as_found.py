"""A decode leaves the model unchanged, also after an exception; and changes between two decodes take effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
)

import bestfirst
from bestfirst.engine.model_record import record_of
from bestfirst.engine.steps import step_choice
from bestfirst.engine.steps.hooked import HookedStep, RecomputeStep
from engine.builders import ARCHITECTURES
from engine.searches import assert_correct, decode, hypotheses, same

pytestmark = pytest.mark.usefixtures("one_thread")


def state(model: Any) -> Any:
    """Everything about a model that a decode could leave changed."""
    return {
        name: (
            module.training,
            list(module._forward_hooks),
            list(module._forward_pre_hooks),
            sorted(vars(module)),
            {key: id(tensor) for key, tensor in (*module._parameters.items(), *module._buffers.items())},
        )
        for name, module in model.named_modules()
    }


HOOKED: dict[str, dict[str, Any]] = {"t5": {}, "gpt2": {}, "bart": {"dropout": 0.3}, "m2m100": {"dropout": 0.3}, "llama": {}}


@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("decoder", ["chosen", "hooked", "recompute"])
def test_a_decode_leaves_the_model_unchanged(name: str, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=7, **HOOKED[name]))
    inputs = architecture.inputs(3, seed=7)
    want = [hypotheses(result) for result in decode(model, inputs, 7)]
    if decoder != "chosen":
        kind = HookedStep if decoder == "hooked" else RecomputeStep
        monkeypatch.setattr(step_choice, "choose", lambda model, _: kind(model.model))
        model = bestfirst.wrap(model.model)
        record_of(model).step = None
    model.model.train()
    model.model.get_input_embeddings().eval()  # modes are mixed while a model is fine-tuned
    before = state(model.model)
    got = [hypotheses(result) for result in decode(model, inputs, 7)]
    assert all(same(*both) for both in zip(got, want, strict=True)), "dropout must not be at work"
    assert state(model.model) == before


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("name", HOOKED)
def test_an_exception_leaves_the_model_unchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build(seed=7)
    monkeypatch.setattr(step_choice, "choose", lambda model, _: HookedStep(model.model))
    calls = 0

    def stop(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted

    model.get_output_embeddings().register_forward_hook(stop)
    model.train()
    before = state(model)
    with pytest.raises(Interrupted):
        decode(bestfirst.wrap(model), architecture.inputs(2, seed=7), 7)
    assert state(model) == before


@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
@pytest.mark.parametrize("through", ["no_grad", "data"])
def test_weights_changed_between_decodes_take_effect(name: str, through: str) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=8))
    decode(model, architecture.inputs(2, seed=8), 7)
    other = architecture.build(seed=9)
    with torch.no_grad():
        for mine, new in zip(model.model.parameters(), other.parameters(), strict=True):
            (mine if through == "no_grad" else mine.data).copy_(new)
        for mine, new in zip(model.model.buffers(), other.buffers(), strict=True):
            mine.copy_(new)
    assert_correct(model, architecture)


def test_a_config_without_bos_passes_the_step_check() -> None:
    """As in T5's own files: the check itself once failed on it, and each hypothesis ran from its first token or was refused."""
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    assert not hasattr(config, "bos_token_id") or config.bos_token_id is None
    assert step_choice.step_for(bestfirst.wrap(T5ForConditionalGeneration(config).eval())).name == "fused"
