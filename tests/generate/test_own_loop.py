"""What reaches a model on a way that only `generate`'s own loop goes: that loop runs, and its output is what comes out."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import BartConfig, BartForCausalLM, DynamicCache, RobertaConfig, RobertaForCausalLM

import bestfirst
from bestfirst import Stats
from engine.builders import ARCHITECTURES, peaked
from generate.differences import padded

LLAMA = ARCHITECTURES["llama"]
ASKED = {"num_beams": 3, "max_new_tokens": 6}


def same_by_its_own_loop(model, batch, why, **asked):
    stats = Stats()
    theirs = model.generate(**copy.deepcopy(batch), **ASKED, **asked)
    ours = model.generate(**copy.deepcopy(batch), **ASKED, **asked, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(ours, theirs)
    assert stats.engine == "generate"
    assert why in stats.search


def test_a_prefix_in_the_cache():
    model = LLAMA.build()
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 6, 7]])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :-1].repeat_interleave(3, 0), past_key_values=cache, use_cache=True)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": cache}
    same_by_its_own_loop(model, batch, "past_key_values holds a prefix")


def test_inputs_that_are_prepared_in_another_way():
    """As PEFT's prompt tuning does, and a user's own class may."""
    model = LLAMA.build()

    class Shifted(type(model)):
        def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **arguments):
            given = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **arguments)
            return {**given, "input_ids": (given["input_ids"] + 1) % 40}

    model.__class__ = Shifted
    same_by_its_own_loop(model, padded(LLAMA, LLAMA.inputs(2, seed=1)), "prepare_inputs_for_generation")


def test_padding_on_the_right():
    model = LLAMA.build()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    same_by_its_own_loop(model, batch, "padding is not on the left alone")


@pytest.mark.parametrize(
    ("kind", "why"), [("bart", "counts padding as positions"), ("roberta", "positions of its own for padding")]
)
def test_decoders_that_count_padding(kind, why):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "bart":
        config = BartConfig(
            vocab_size=40, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32, pad_token_id=1
        )
        model = peaked(BartForCausalLM(config), seed=0, eos=1.5).eval()
    else:
        model = peaked(RobertaForCausalLM(RobertaConfig(**sizes, is_decoder=True, pad_token_id=1)), seed=0, eos=1.5).eval()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [1, 8, 9]]), "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]])}
    same_by_its_own_loop(model, batch, why)


def test_with_a_strategy_of_ones_own_that_is_an_error():
    model = LLAMA.build()
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    with pytest.raises(ValueError, match="padding is not on the left alone"):
        model.generate(**batch, **ASKED, custom_generate=bestfirst.generate, strategy="best-first")
