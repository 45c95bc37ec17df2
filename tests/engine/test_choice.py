"""Which step runs a model: the fastest that agrees with it; and a user's changes to a model take effect."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import (
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
)

import bestfirst
from bestfirst.engine.steps import step_choice
from bestfirst.engine.steps.decoder_step import DecoderStep
from engine.builders import ARCHITECTURES, EOS, SEQ2SEQ, START
from engine.searches import FUSED, NAMES, assert_correct, decode, generate, hypotheses, same
from generate.tiny import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_chooses_the_same_decoder(name: str, dtype: torch.dtype) -> None:
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build().to(dtype))
    assert step_choice.step_for(model).name == architecture.decoder.replace("native", "fused")  # native steps are float32 only


def make_wrong(decoder: type[DecoderStep], monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a small error to the decoder's logits."""
    right = decoder.step

    def wrong(self: Any, rows: Any, *others: Any) -> torch.Tensor:
        logits = right(self, rows, *others)
        return logits + 0.05 * logits.roll(1, -1) * torch.as_tensor(rows.positions > 1)[:, None]

    monkeypatch.setattr(decoder, "step", wrong)


@pytest.mark.parametrize("native", step_choice.native_steps())
def test_a_wrong_compiled_step_is_detected_and_not_used(native, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wrong(native, monkeypatch)
    assert step_choice.step_for(bestfirst.wrap(ARCHITECTURES["bart"].build())).name == "fused"


@pytest.mark.parametrize("name", NAMES)
def test_the_step_that_was_checked_is_the_one_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some copy the model's weights, which takes a second of a first call."""
    model, made = bestfirst.wrap(ARCHITECTURES[name].build()), []
    kind = type(step_choice.step_for(bestfirst.wrap(ARCHITECTURES[name].build())))
    monkeypatch.setattr(kind, "__init__", lambda self, *given, _init=kind.__init__: made.append(self) or _init(self, *given))
    assert step_choice.step_for(model) is step_choice.step_for(model)
    assert len(made) == 1


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", FUSED)
def test_the_hooked_step_replaces_a_wrong_fused_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused step that is wrong, even slightly, is detected and not used."""
    architecture = ARCHITECTURES[name]
    for decoder in (*step_choice.native_steps(), FUSED[name]):
        make_wrong(decoder, monkeypatch)
    model = bestfirst.wrap(architecture.build(seed=4))
    inputs = architecture.inputs(3, seed=4)
    results = decode(model, inputs, 7)
    assert step_choice.step_for(model).name == "hooked"
    for source, result in zip(inputs, results, strict=True):
        assert same(hypotheses(result), generate(model.model, architecture, source))


class Scaled(torch.nn.Module):
    """A user's module around one of the model's, applied to each token alone, like an adapter."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.inner(x)


class LookingBack(Scaled):
    """A module that needs the whole prefix, which a KV cache does not hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.inner(x.cumsum(1) / before)


def wrap_feed_forward(model: Any, wrapper: type[Scaled]) -> None:
    """Wraps a feed-forward projection of the first or only layer in a user's module."""
    decoder = model.get_decoder()
    if model.config.model_type == "t5":
        ffn, part = decoder.block[0].layer[-1].DenseReluDense, "wi"
    else:
        layer = decoder.layers[0]
        ffn, part = (layer, "fc1") if hasattr(layer, "fc1") else (layer.mlp, "gate_proj")
    setattr(ffn, part, wrapper(getattr(ffn, part)))


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
def test_a_model_with_an_adapter_runs_by_its_own_modules(name: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build(seed=5))
    step_choice.step_for(model)
    wrap_feed_forward(model.model, Scaled)  # after the model was first decoded with
    assert step_choice.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES[name])


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_users_forward_hook_takes_effect(name: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build(seed=5))
    step_choice.step_for(model)
    model.model.get_decoder().layers[0].register_forward_hook(lambda module, given, output: 0.5 * output)
    assert step_choice.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES[name])


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_hook_of_all_modules_takes_effect_while_it_is_there(name: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build(seed=5))
    usual, layer = step_choice.step_for(model).name, model.model.get_decoder().layers[0]
    hook = register_module_forward_hook(lambda module, given, output: 0.5 * output if module is layer else None)
    try:
        assert step_choice.step_for(model).name == "hooked"
        assert_correct(model, ARCHITECTURES[name])
    finally:
        hook.remove()
    assert step_choice.step_for(model).name == usual


def scale_a_layer(encoder: Any) -> None:
    encoder.layers[0].register_forward_hook(lambda module, given, output: 0.5 * output)


def wrap_a_product(encoder: Any) -> None:
    encoder.layers[0].fc1 = Scaled(encoder.layers[0].fc1)


def replace_a_product(encoder: Any) -> None:
    """With torch's own classes, so that only their place in the layer is unusual."""
    fc1 = encoder.layers[0].fc1
    encoder.layers[0].fc1 = torch.nn.Sequential(fc1, torch.nn.Hardtanh())


def replace_a_norm(encoder: Any) -> None:
    encoder.layers[0].self_attn_layer_norm = torch.nn.Identity()


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("change", [scale_a_layer, wrap_a_product, replace_a_product, replace_a_norm])
@pytest.mark.parametrize("when", ["before the first decode", "after it"])
@pytest.mark.parametrize("name", ["marian", "m2m100"])
def test_a_modified_encoder_runs_by_its_own_modules(name: str, when: str, change: Callable[[Any], None]) -> None:
    """The decoder keeps its fast step."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=5))
    if when == "after it":
        decode(model, architecture.inputs(2), 7)
    change(model.model.get_encoder())
    assert_correct(model, architecture)
    step = step_choice.step_for(model)
    assert (step.name, step.encoder) == (architecture.decoder, None)


@pytest.mark.parametrize("native", step_choice.native_steps())
def test_a_wrong_compiled_encoder_is_detected_and_not_used(native, monkeypatch: pytest.MonkeyPatch) -> None:
    from bestfirst.engine.steps.native.decoder import NativeEncoder

    right = NativeEncoder.__call__

    def wrong(self: Any, inputs: Any) -> Any:
        hidden = right(self, inputs)
        hidden.t.mul_(1.001)
        return hidden

    monkeypatch.setattr(NativeEncoder, "__call__", wrong)
    model = bestfirst.wrap(ARCHITECTURES["bart"].build(seed=5))
    step = step_choice.step_for(model)
    assert (type(step), step.encoder) == (native, None)
    assert_correct(model, ARCHITECTURES["bart"])


@pytest.mark.usefixtures("no_warning")
def test_a_hook_on_the_output_head_takes_effect() -> None:
    model = bestfirst.wrap(ARCHITECTURES["bart"].build(seed=5))
    step_choice.step_for(model)
    model.model.get_output_embeddings().register_forward_hook(lambda module, given, output: 0.5 * output)
    assert step_choice.step_for(model).name == "hooked"
    assert_correct(model, ARCHITECTURES["bart"])


@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
def test_a_module_that_needs_the_whole_prefix_falls_back_to_recomputation_with_one_warning(name: str) -> None:
    step_choice._warned.clear()
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build(seed=5))
    wrap_feed_forward(model.model, LookingBack)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_correct(model, architecture, use_cache=False)  # Hugging Face's cache is wrong for it too
        decode(bestfirst.wrap(model.model), architecture.inputs(1), 1)
    kind = architecture.model.__name__
    messages = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
    assert len(messages) == 1
    assert messages[0].startswith(kind)
    assert "slower" in messages[0]
    assert step_choice.step_for(model).name == "recompute"


def test_recomputation_takes_an_encoder_of_any_width() -> None:
    model = bestfirst.wrap(ARCHITECTURES["t5"].build(seed=5, d_model=31))
    wrap_feed_forward(model.model, LookingBack)
    assert_correct(model, ARCHITECTURES["t5"], use_cache=False)
    assert step_choice.step_for(model).name == "recompute"


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("window", [2, 3, 7, 64])
def test_sliding_windows_equal_generate(window: int) -> None:
    architecture = ARCHITECTURES["mistral"]
    model = bestfirst.wrap(architecture.build(seed=6, sliding_window=window))
    assert_correct(model, architecture, n=5)
    assert step_choice.step_for(model).name == "fused"
    assert model.model.config.sliding_window == window


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, True),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, False),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, True),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}, False),
    ],
)
def test_attention_that_changes_with_length_is_recognised(changes: dict[str, Any], expected: bool) -> None:
    model = bestfirst.wrap(ARCHITECTURES["qwen2"].build(**changes))
    assert step_choice.changes_with_length(model) is expected


@pytest.mark.usefixtures("no_warning")
def test_nan_logits_are_reported_by_the_scorer_not_by_the_step_choice() -> None:
    model = ARCHITECTURES["marian"].build()
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        decode(bestfirst.wrap(model), [[5, EOS]], 1)


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", ["marian", "pegasus"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("part", ["fc1", "self_attn.v_proj", "final_layer_norm", "embed_tokens"])
def test_a_nan_weight_is_reported(name: str, side: str, part: str) -> None:
    """In any module: no activation may hide it. Of the embeddings, only one that the step check does not use."""
    model = ARCHITECTURES[name].build(tie_word_embeddings=False)
    module = getattr(model, f"get_{side}")()
    with torch.no_grad():
        if part == "embed_tokens":
            module.embed_tokens = copy.deepcopy(module.embed_tokens)
            module.embed_tokens.weight[5 if side == "encoder" else START] = float("nan")
        else:
            module.layers[0].get_submodule(part).weight.view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        decode(bestfirst.wrap(model), [[5, EOS]], 1)


def test_the_step_check_applies_the_promised_tolerance() -> None:
    """With small weights everything is nearly equal: errors of 3e-4 in log-probabilities are a small part of their spread."""
    sizes = {f"num_{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = ProphetNetConfig(
        **{**SEQ2SEQ, "hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40, **sizes}
    )
    model = ProphetNetForConditionalGeneration(config).eval()
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02, generator=dice)
    with pytest.raises(ValueError, match=r"\(prophetnet\) cannot be decoded with"):
        step_choice.step_for(bestfirst.wrap(model))


def test_a_changed_model_gets_a_new_step_choice() -> None:
    """The model is wrapped anew for each decode, as by `generate`; a step by its own modules is not kept."""
    model = tiny("Phi3ForCausalLM")
    assert step_choice.step_for(bestfirst.wrap(model)).name == "hooked"
    mlp = model.model.layers[0].mlp
    mlp.gate_up_proj = LookingBack(mlp.gate_up_proj)
    assert step_choice.step_for(bestfirst.wrap(model)).name == "recompute"
