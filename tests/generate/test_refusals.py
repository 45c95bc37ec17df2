"""Arguments that ask for another algorithm, or that transformers swallows, are errors that name them."""

from __future__ import annotations

import pytest
import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration, LogitsProcessorList

import bestfirst
from bestfirst.integrations import hub_folder
from engine.builders import ARCHITECTURES, BART, VOCABULARY, peaked
from generate.differences import padded
from generate.tiny import tiny

ARCHITECTURE = ARCHITECTURES["llama"]
BATCH = padded(ARCHITECTURE, ARCHITECTURE.inputs(2, seed=1))
SEQ2SEQ = ARCHITECTURES["marian"]
FOLDER = {"custom_generate": hub_folder(), "trust_remote_code": True}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"assistant_early_exit": 1}, "assistant_early_exit=1"),
        ({"penalty_alpha": 0.6, "num_beams": 1, "top_k": 4}, "penalty_alpha=0.6"),
        ({"dola_layers": "low", "num_beams": 1}, "dola_layers='low'"),
        ({"num_beam_groups": 2}, "num_beam_groups=2"),
        ({"diversity_penalty": 1.0}, "diversity_penalty=1.0"),
        ({"force_words_ids": [[5]]}, r"force_words_ids=\[\[5\]\]"),
        ({"constraints": ["any"]}, r"constraints=\['any'\]"),
    ],
)
def test_each_unsupported_argument_is_named(asked, name, small):
    """With a callable, and with the folder."""
    settings = {"num_beams": 4, "max_new_tokens": 4, "return_dict_in_generate": True, **BATCH, **asked}
    for route in ({"custom_generate": bestfirst.generate}, FOLDER):
        with pytest.raises(ValueError, match=f"bestfirst.generate cannot honour {name}"):
            small("llama").generate(**settings, **route)


def test_a_processor_with_more_arguments_is_an_error(small):
    class Wants:
        def __call__(self, input_ids, scores, more):
            return scores

    with pytest.raises(ValueError, match="Wants takes more than input_ids and scores"):
        small("llama").generate(
            **BATCH,
            num_beams=2,
            max_new_tokens=4,
            logits_processor=LogitsProcessorList([Wants()]),
            custom_generate=bestfirst.generate,
        )


def test_processors_that_leave_no_token_are_an_error_that_says_so(small):
    """Normalised, such scores are not a number; `generate` returns made-up tokens."""
    asked = {"suppress_tokens": list(range(64)), "renormalize_logits": True, "num_beams": 2, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="whether the logits processors leave a token to choose"):
        small("llama").generate(**BATCH, **asked, custom_generate=bestfirst.generate, strategy="best-first")


def test_a_paged_cache_is_an_error_with_the_folder(small):
    with pytest.raises(ValueError, match=r"cannot honour cache_implementation='paged': .*; leave it out"):
        small("llama").generate(**BATCH, num_beams=2, **FOLDER, cache_implementation="paged")


def test_calling_the_drop_in_directly_is_an_error(small):
    with pytest.raises(TypeError, match=r"use model.generate\(..., custom_generate=bestfirst.generate\)"):
        bestfirst.generate(small("llama"), BATCH["input_ids"], num_beams=2)


def test_own_loop_runs_a_decoder_that_attends_to_later_tokens():
    """FSMT, given the encoder's output and no cache, attends to later tokens: no decoder of the engine gives its scores."""
    settings = {name: value for name, value in BART.items() if name != "vocab_size"}
    config = FSMTConfig(**settings, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, langs=["de", "en"])
    model = peaked(FSMTForConditionalGeneration(config), seed=0, eos=1.5).eval()
    batch, asked = padded(SEQ2SEQ, SEQ2SEQ.inputs(2, seed=1)), {"num_beams": 2, "max_new_tokens": 4}
    with pytest.raises(ValueError, match=r"FSMTForConditionalGeneration \(fsmt\) cannot be decoded with by this engine"):
        model.generate(**batch, **asked, custom_generate=bestfirst.generate, strategy="best-first")
    stats = bestfirst.Stats()
    ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(ours, model.generate(**batch, **asked))
    assert stats.engine == "generate"
    assert "cannot be decoded with by this engine" in stats.search


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"allowed": "items.txt"},
            r"allowed must be a bestfirst.Trie or another constraint, got 'items.txt'; Trie.of_texts makes one",
        ),
        ({"trace": True}, "trace must be a function from an input's number to a bestfirst.Trace, got True"),
        ({"strategy": "a-star"}, r"strategy 'a-star' prunes nothing and may not end; use bestfirst.decode\(..., max_calls=...\)"),
        ({"score": "length-normalized", "score_options": {"alpha": "x"}}, "alpha must be a number, got 'x'"),
        ({"score_options": {"alpha": 1.0}}, "alpha goes with a score; name one with score"),
        ({"score": "length-reward", "score_options": {"beta": None}}, "beta must be a number of at least 0, got None"),
    ],
)
def test_invalid_values_of_our_own_arguments_are_errors(asked, said, small):
    with pytest.raises((ValueError, TypeError), match=said):
        small("llama").generate(**BATCH, num_beams=2, max_new_tokens=4, custom_generate=bestfirst.generate, **asked)


def test_options_without_a_score_are_an_error_where_the_own_loop_is_known_to_run():
    model, asked = tiny("BloomForCausalLM"), {"input_ids": torch.tensor([[5, 6, 7]]), "num_beams": 2, "max_new_tokens": 4}
    model.generate(**asked, custom_generate=bestfirst.generate)
    with pytest.raises(ValueError, match="alpha goes with a score; name one with score"):
        model.generate(**asked, custom_generate=bestfirst.generate, score_options={"alpha": 1.0})
