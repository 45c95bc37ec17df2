"""Models with sliding windows or chunked attention: the engine runs them beyond their windows as `generate` does."""

from __future__ import annotations

import pytest
import torch

import bestfirst
from generate.tiny import inputs, tiny

WINDOW = 6
CLASSES = [
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "GptOssForCausalLM",
    "Cohere2ForCausalLM",
    "Olmo3ForCausalLM",
    "Qwen2ForCausalLM",
    "Starcoder2ForCausalLM",
    "Gemma3ForConditionalGeneration",
]


@pytest.mark.parametrize("name", CLASSES)
def test_windowed_models_run_on_the_engine_and_equal_generate(name):
    """Prompts of 9 tokens and 12 new ones; one prompt is padded."""
    mixed = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    model = tiny(name, sliding_window=WINDOW, **(mixed if name == "Qwen2ForCausalLM" else {}))
    batch, stats = inputs(model), bestfirst.Stats()
    batch["input_ids"][1, :3], batch["attention_mask"][1, :3] = 0, 0
    asked = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12, "return_dict_in_generate": True}
    asked |= {"output_scores": True, "do_sample": False}
    theirs = model.generate(**batch, **asked)
    ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert torch.allclose(ours.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert stats.engine == "host"


def test_a_model_keeps_its_windows_while_it_is_checked_for_other_threads_may_run_it():
    model, seen = tiny("Gemma2ForCausalLM", sliding_window=WINDOW), set()
    model.register_forward_pre_hook(lambda run, _: seen.add((run.config.sliding_window, model.config.sliding_window)))
    bestfirst.decode(bestfirst.wrap(model), [[5, 6, 7]], beam=2, max_length=5)
    assert seen == {(3, WINDOW), (WINDOW, WINDOW)}
