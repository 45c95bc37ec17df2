"""Models that were quantised or compiled, and arguments at the edge of what `generate` takes: the same outputs."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import DynamicCache

import bestfirst
from bestfirst import Stats
from engine.builders import ARCHITECTURES
from generate.differences import padded
from generate.test_own_loop import check_own_loop_runs

LLAMA, GPT2, MARIAN = (ARCHITECTURES[name] for name in ("llama", "gpt2", "marian"))


def check_equal(model, batch, engine: str | None = "host", **asked):
    stats, asked = Stats(), {"num_beams": 3, "max_new_tokens": 6, **asked}
    theirs = model.generate(**batch, **asked)
    ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(ours, theirs)
    assert ours.dtype == theirs.dtype
    assert engine in (None, stats.engine)


@pytest.mark.parametrize("architecture", [LLAMA, MARIAN])
def test_a_quantised_head_gives_the_same_outputs(architecture):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces torchao
        model = torch.ao.quantization.quantize_dynamic(architecture.build(), {torch.nn.Linear}, dtype=torch.qint8)
    check_equal(model, padded(architecture, architecture.inputs(1, seed=1)), engine=None)


@pytest.mark.parametrize("by", ["Module.compile", "forward"])
def test_a_compiled_model_gives_the_same_outputs(by):
    model = GPT2.build()
    if by == "forward":
        model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    else:
        model.compile(backend="eager", dynamic=True)
    before = vars(model).copy()
    check_equal(model, padded(GPT2, GPT2.inputs(2, seed=2)))
    assert vars(model) == before


@pytest.mark.parametrize("kind", [tuple, list])
def test_encoder_outputs_in_a_tuple_or_list_give_the_same_outputs(kind, small):
    """Hugging Face takes them with one beam."""
    model, ids = small("marian"), torch.tensor([[5, 6, 7, 1], [9, 8, 7, 1]])
    with torch.no_grad():
        hidden = model.get_encoder()(ids).last_hidden_state
    check_equal(model, {"encoder_outputs": kind([hidden]), "attention_mask": torch.ones_like(ids)}, num_beams=1)


@pytest.mark.parametrize("k", [1, 3])
def test_int32_prompts_give_the_same_outputs(k, small):
    check_equal(small("llama"), {"input_ids": torch.tensor([[5, 6, 7, 9]], dtype=torch.int32)}, num_beams=k)


@pytest.mark.parametrize("k", [1, 3])
def test_the_callers_cache_is_filled(k, small):
    """A chat's next turn goes on with it."""
    ids, lengths = torch.tensor([[5, 6, 7, 9, 4]]), []
    for route in ({}, {"custom_generate": bestfirst.generate}):
        cache = DynamicCache(config=small("llama").config)
        small("llama").generate(ids, past_key_values=cache, num_beams=k, max_new_tokens=6, **route)
        lengths.append(cache.get_seq_length())
    assert lengths[0] == lengths[1] > 0


@pytest.mark.parametrize("extra", [1, 2])
def test_own_loop_runs_a_mask_that_is_longer_than_the_prompt(extra, small):
    batch = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "attention_mask": torch.ones(1, 4 + extra, dtype=torch.long)}
    check_own_loop_runs(small("llama"), batch, "has not one number for each token of the prompt")


def test_a_mask_shorter_than_the_prompt_is_an_error_as_in_generate(small):
    """The prompt's end is not dropped."""
    batch = {"input_ids": torch.tensor([[5, 6, 7, 9]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    for route in ({}, {"custom_generate": bestfirst.generate}):
        with pytest.raises(RuntimeError, match="must match the size"):
            small("llama").generate(**batch, num_beams=3, max_new_tokens=4, **route)


@pytest.mark.parametrize(("architecture", "given"), [(GPT2, 64), (GPT2, 60), (MARIAN, 40), (MARIAN, 36)])
@pytest.mark.parametrize("k", [1, 3])
def test_the_last_token_needs_no_position(architecture, given, k, small):
    model, prompt = small("gpt2" if architecture is GPT2 else "marian"), [5, 6, 7, 9]
    start = torch.tensor([[2, *(prompt * 16)[1:given]]])
    batch = {"input_ids": start} if architecture is GPT2 else {"input_ids": torch.tensor([prompt]), "decoder_input_ids": start}
    asked = {"min_new_tokens": (most := 65 - given if architecture is GPT2 else 41 - given), "max_new_tokens": most}
    check_equal(model, batch, num_beams=k, **asked)


def test_greedy_search_ignores_a_length_penalty_of_any_size(small):
    check_equal(small("marian"), padded(MARIAN, MARIAN.inputs(2, seed=1)), num_beams=1, length_penalty=300.0)


def test_own_loop_runs_scores_below_those_that_generate_makes_up(small):
    """It fills its beams with hypotheses of -1e9, and prefers them."""
    batch = padded(MARIAN, MARIAN.inputs(2, seed=1))
    check_own_loop_runs(small("marian"), batch, "generate prefers one that it makes up", length_penalty=-40.0, min_new_tokens=6)
