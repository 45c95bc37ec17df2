"""What cannot be honoured is an error that names the argument; what transformers swallows is refused where it can be seen."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    LogitsProcessorList,
    SynthIDTextWatermarkingConfig,
    TextStreamer,
)

import bestfirst
from bestfirst.integrations import hub_folder
from engine.builders import ARCHITECTURES, BART, VOCABULARY, peaked
from generate.differences import padded

ARCHITECTURE = ARCHITECTURES["llama"]
BATCH = padded(ARCHITECTURE, ARCHITECTURE.inputs(2, seed=1))
SEQ2SEQ = ARCHITECTURES["marian"]
FOLDER = {"custom_generate": hub_folder(), "trust_remote_code": True}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"do_sample": True}, "do_sample=True"),
        ({"do_sample": True, "num_beams": 1}, "do_sample=True"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"prompt_lookup_num_tokens": 3, "num_beams": 1}, "prompt_lookup_num_tokens=3"),
        ({"assistant_early_exit": 1}, "assistant_early_exit=1"),
        ({"penalty_alpha": 0.6, "num_beams": 1, "top_k": 4}, "penalty_alpha=0.6"),
        ({"dola_layers": "low", "num_beams": 1}, "dola_layers='low'"),
        ({"num_beam_groups": 2}, "num_beam_groups=2"),
        ({"diversity_penalty": 1.0}, "diversity_penalty=1.0"),
        ({"force_words_ids": [[5]]}, r"force_words_ids=\[\[5\]\]"),
        ({"constraints": ["any"]}, r"constraints=\['any'\]"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"output_logits": True}, "output_logits=True"),
        ({"output_attentions": True}, "output_attentions=True"),
        ({"output_hidden_states": True}, "output_hidden_states=True"),
        ({"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2])}, "watermarking_config of SynthID"),
        ({"inputs_embeds": torch.zeros(2, 3, 32), "input_ids": None, "attention_mask": None}, "inputs_embeds"),
        ({"position_ids": torch.arange(5, 5 + BATCH["input_ids"].shape[1]).expand(2, -1)}, "position_ids"),
    ],
)
def test_each_is_named(asked, name, small):
    """With a callable, and by the folder."""
    settings = {"num_beams": 4, "max_new_tokens": 4, "return_dict_in_generate": True, **BATCH, **asked}
    for route in ({"custom_generate": bestfirst.generate}, FOLDER):
        with pytest.raises(ValueError, match=f"bestfirst.generate cannot honour {name}"):
            small("llama").generate(**settings, **route)


def test_padded_decoder_prompts_of_an_encoder_decoder(small):
    batch = padded(SEQ2SEQ, SEQ2SEQ.inputs(2, seed=1))
    prompt = {"decoder_input_ids": torch.tensor([[2, 5], [2, 6]]), "decoder_attention_mask": torch.tensor([[0, 1], [1, 1]])}
    with pytest.raises(ValueError, match="cannot honour a decoder_attention_mask with zeros"):
        small("marian").generate(**batch, **prompt, num_beams=2, max_new_tokens=4, custom_generate=bestfirst.generate)


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_an_input_that_is_all_padding(name, small):
    batch = {"input_ids": torch.tensor([[5, 6], [4, 4]]), "attention_mask": torch.tensor([[1, 1], [0, 0]])}
    with pytest.raises(ValueError, match="attention_mask of input 1 is all zeros"):
        small(name).generate(**batch, num_beams=2, max_new_tokens=4, custom_generate=bestfirst.generate)


def test_a_processor_that_wants_more_than_scores(small):
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("streamer", TextStreamer(None)), ("assistant_model", "llama"), ("synced_gpus", True), ("cache_implementation", "paged")],
)
def test_the_folder_route_sees_more(name, value, small):
    value = small(value) if name == "assistant_model" else value
    with pytest.raises(ValueError, match=f"bestfirst.generate cannot honour {name}.*: .*; leave it out"):
        small("llama").generate(**BATCH, num_beams=2, **FOLDER, **{name: value})


def test_called_by_itself(small):
    with pytest.raises(TypeError, match=r"use model.generate\(..., custom_generate=bestfirst.generate\)"):
        bestfirst.generate(small("llama"), BATCH["input_ids"], num_beams=2)


def test_a_model_whose_scores_depend_on_its_batch():
    """FSMT, given the encoder's output and no cache, looks at what follows a token: no decoder of the engine gives its scores."""
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


def test_with_a_callable_transformers_swallows_the_streamer(small):
    """As the docs say. Beam search without us refuses it; nothing reaches us that could."""
    asked = {"num_beams": 2, "max_new_tokens": 4}

    class Silent:
        def put(self, tokens):
            pass

        def end(self):
            raise AssertionError("never called")

    ours = small("llama").generate(**BATCH, **asked, streamer=Silent(), custom_generate=bestfirst.generate)
    assert torch.equal(ours, small("llama").generate(**BATCH, **asked))
