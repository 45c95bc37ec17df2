"""Weights and other parts of a model that change between two calls, also unseen by torch: the next call uses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from transformers import GenerationMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import bestfirst
from bestfirst.engine.model_record import record_of
from bestfirst.engine.steps import checksum
from bestfirst.engine.steps.checksum import Checksum, WrittenPages, whole_pages
from bestfirst.models.torch_modules import every_module
from engine.builders import ARCHITECTURES
from generate.differences import padded

SETTINGS = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}


def flip(model):
    model.get_decoder().layers[1].fc1.weight.data.mul_(-1)


def one_row(model):
    model.get_output_embeddings().weight.data[20] *= 3


def swap_rows(model):
    weight = model.get_output_embeddings().weight.data
    weight[[20, 21]] = weight[[21, 20]]


def one_number_by_numpy(model):
    model.get_output_embeddings().weight.detach().numpy()[33, 5] += 4.0


def the_encoder(model):
    model.get_encoder().layers[0].fc1.weight.data.mul_(-1)


def counted(model):
    with torch.no_grad():
        model.get_output_embeddings().weight[20] *= 3


@pytest.mark.parametrize("change", [flip, one_row, swap_rows, one_number_by_numpy, the_encoder, counted])
@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
def test_the_next_call_uses_the_changed_weights(name, change):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    batch = padded(architecture, architecture.inputs(3, seed=1))

    def ours(**own):
        return model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate, **own)

    before = ours()
    try:
        change(model)
    except AttributeError:
        pytest.skip("no such part")
    for own in ({}, {"trace": lambda i: bestfirst.Trace()}, {}):
        after, theirs = ours(**own), model.generate(**batch, **SETTINGS)
        assert torch.equal(after.sequences, theirs.sequences)
        assert torch.allclose(after.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert not torch.equal(before.scores[0], after.scores[0])


def scales(model):
    for module in model.get_decoder().modules():
        if hasattr(module, "scaling"):
            module.scaling *= 0.2


def a_bias_replaced(model):
    model.final_logits_bias = model.final_logits_bias - torch.arange(48) % 5


def rotary_angles(model):
    model.model.rotary_emb.inv_freq.mul_(0.3)


def a_window(model):
    model.config.sliding_window = 2


def layers_swapped(model):
    layers = model.get_decoder().layers
    layers[0], layers[1] = layers[1], layers[0]


def bias_of_the_head(model):
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.arange(48) % 5 * 1.0)


OTHERS = {
    scales: ["marian", "t5", "llama", "whisper"],
    a_bias_replaced: ["marian", "bart"],
    rotary_angles: ["llama", "mistral"],
    a_window: ["mistral"],
    layers_swapped: ["llama", "qwen3"],
    bias_of_the_head: ["marian", "llama"],
}


def check_the_next_call(model, name, change):
    architecture = ARCHITECTURES[name]
    batch = padded(architecture, architecture.inputs(3, seed=1))

    def generate(**own):
        return GenerationMixin.generate(model, **batch, **SETTINGS, **own)

    before = generate(custom_generate=bestfirst.generate)
    change(model)
    for _ in range(2):
        ours, theirs = generate(custom_generate=bestfirst.generate), generate()
        assert torch.equal(ours.sequences, theirs.sequences)
        assert torch.allclose(ours.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert not torch.equal(before.scores[1], ours.scores[1])


@pytest.mark.parametrize(("change", "name"), [(change, name) for change, names in OTHERS.items() for name in names])
def test_the_next_call_uses_changed_numbers_buffers_and_modules(change, name):
    check_the_next_call(ARCHITECTURES[name].build(), name, change)


@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
def test_the_next_call_uses_a_method_replaced_in_the_class_of_a_module(name, monkeypatch):
    model = ARCHITECTURES[name].build()
    kind = type(next(module for module in model.get_decoder().modules() if "Norm" in type(module).__name__))
    forward = kind.forward
    check_the_next_call(model, name, lambda _: monkeypatch.setattr(kind, "forward", lambda *given: forward(*given) * -0.5))


@pytest.mark.parametrize("by", ["a name of its own", "the name of another"])
@pytest.mark.parametrize("name", ["marian", "llama", "gpt2"])
def test_the_next_call_uses_another_attention_function(name, by, monkeypatch):
    """It gets no masks under a name of its own, as by `generate`."""
    model = ARCHITECTURES[name].build()
    theirs = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(*tensors, **given):
        return theirs(*tensors, **{**given, "scaling": 0.05})

    def change(model):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flat" if by == "a name of its own" else "sdpa", attention)
        if by == "a name of its own":
            model.set_attn_implementation("flat")

    check_the_next_call(model, name, change)


@pytest.mark.parametrize("kind", ["prune", "weight_norm", "parametrization"])
@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
def test_the_next_call_uses_changed_weights_that_others_are_computed_from(name, kind):
    """With hooks, `module.weight` is that of the last forward pass: the model has to run to bring it up to date."""
    model = ARCHITECTURES[name].build()
    layers = [module for module in model.get_decoder().modules() if isinstance(module, torch.nn.Linear)]
    computed_from = {"prune": "weight_orig", "weight_norm": "weight_g", "parametrization": "parametrizations.weight.original0"}
    for layer in layers:
        if kind == "prune":
            torch.nn.utils.prune.l1_unstructured(layer, "weight", amount=0.3)
        elif kind == "weight_norm":
            torch.nn.utils.weight_norm(layer)
        else:
            torch.nn.utils.parametrizations.weight_norm(layer)

    def change(model):
        with torch.no_grad():
            for layer in layers:
                layer.get_parameter(computed_from[kind]).mul_(-1)

    assert every_module(model).untouched == (kind == "parametrization")
    check_the_next_call(model, name, change)


def test_the_decoder_step_is_reused_while_weights_are_unchanged(small):
    architecture, model = ARCHITECTURES["marian"], small("marian")
    batch, steps = padded(architecture, architecture.inputs(2, seed=1)), []
    for _ in range(3):
        model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate)
        steps.append(record_of(bestfirst.wrap(model)).step[1])
    assert steps[0] is steps[1] is steps[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_the_checksum_depends_on_every_number_and_its_place(dtype):
    weights = [torch.randn(7, 5).mul(20).to(dtype), torch.randn(3).mul(20).to(dtype), torch.empty(0, dtype=dtype)]
    summed = Checksum(weights)
    assert summed.still_holds()
    for each in weights[:2]:
        for numbers in (each.view(-1)[:1], each.view(-1)[-1:], each[:2], each.view(-1)[1:]):
            was = numbers.clone()
            numbers.copy_(was + 1)
            assert not summed.still_holds()
            numbers.copy_(was)
            assert summed.still_holds()
    weights[0][[1, 2]] = weights[0][[2, 1]]
    assert not summed.still_holds()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_changed_number_of_a_large_parameter_is_noticed(dtype, watched, monkeypatch):
    """By the kernel's record of written pages, where it has one; and by reading everything."""
    if not watched:
        monkeypatch.setattr(checksum, "WrittenPages", _refused)
    weights = [torch.randn(300, 500).to(dtype), torch.randn(64, 2000).to(dtype).t(), torch.randn(7).to(dtype)]
    summed = Checksum(weights)

    def unchanged():
        summed.begin()
        return summed.holds()

    assert unchanged()
    assert unchanged()
    for each in weights:
        for place in ((0,) * each.dim(), tuple(n - 1 for n in each.shape), tuple(n // 2 for n in each.shape)):
            was = each[place].clone()
            each.data[place] += 1
            assert not unchanged()
            each.data[place] = was
            assert unchanged()


def _refused(arrays):
    raise OSError


def whole_pages_of(numbers):
    array = np.zeros(numbers, np.int32) if isinstance(numbers, int) else numbers
    return array[whole_pages(array)]


def test_written_pages_names_only_the_arrays_written_to():
    arrays = [whole_pages_of(300_000) for _ in range(3)]
    try:
        pages = WrittenPages(arrays)
    except OSError as error:
        pytest.skip(f"this kernel does not count what is written: {error}")
    assert not pages.written()
    arrays[1][50_000] = 1
    assert pages.written() == {1}
    assert not pages.written()
    for i in range(0, 290_000, 2048):  # every other page: more regions than one scan returns
        arrays[2][i] = 1
    arrays[0][70_000] = 1
    assert pages.written() == {0, 2}
    assert not pages.written()


def test_in_a_child_process_all_arrays_count_as_written():
    arrays = [whole_pages_of(100_000)]
    try:
        pages = WrittenPages(arrays)
    except OSError as error:
        pytest.skip(f"this kernel does not count what is written: {error}")
    pages._process += 1
    assert pages.written() == {0}


def test_shared_memory_is_not_watched():
    """Writes of another process do not show in the pages of this one."""
    with pytest.raises(OSError, match="shared memory"):
        WrittenPages([whole_pages_of(torch.zeros(100_000, dtype=torch.int32).share_memory_().numpy())])
