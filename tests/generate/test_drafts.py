"""`assistant_model` and `prompt_lookup_num_tokens` with a beam: the same sequences and scores in fewer steps."""

from __future__ import annotations

import pytest
import torch

import bestfirst
from bestfirst.integrations import hub_folder
from engine.builders import ARCHITECTURES
from generate.differences import padded

FOLDER = {"custom_generate": hub_folder(), "trust_remote_code": True}


@pytest.mark.parametrize("name", ["llama", "marian", "t5", "gpt2"])
def test_drafts_do_not_change_the_outputs(name, small):
    architecture, model = ARCHITECTURES[name], small(name)
    batch = padded(architecture, architecture.inputs(3, seed=2))
    asked = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True, **batch}
    plain = model.generate(**asked)
    for draft in ({"assistant_model": small(name)}, {"prompt_lookup_num_tokens": 3}):
        stats = bestfirst.Stats()
        found = model.generate(**asked, **draft, custom_generate=bestfirst.generate, row_budget=40, stats=stats)
        assert torch.equal(found.sequences, plain.sequences)
        assert torch.allclose(found.sequences_scores, plain.sequences_scores, atol=1e-4)
        assert stats.engine == "host"
        assert stats.drafted >= stats.accepted
        if "assistant_model" in draft:
            assert stats.accepted > 0  # the assistant is the model itself


def test_an_assistant_that_agrees_saves_steps(small):
    architecture, model = ARCHITECTURES["llama"], small("llama")
    batch = padded(architecture, architecture.inputs(1, seed=3))
    asked = {"num_beams": 4, "max_new_tokens": 16, "length_penalty": 0.0, "row_budget": 64, **batch}
    steps = {}
    for route in ({"custom_generate": bestfirst.generate}, FOLDER):
        for assistant in (None, small("llama")):
            stats = bestfirst.Stats()
            given = {} if assistant is None else {"assistant_model": assistant}
            model.generate(**asked, **given, **route, stats=stats)
            steps[assistant is None] = stats.steps
        assert steps[False] <= 0.6 * steps[True]


def test_drafts_are_rejected_when_sampling(small):
    batch = padded(ARCHITECTURES["llama"], ARCHITECTURES["llama"].inputs(1, seed=3))
    with pytest.raises(ValueError, match=r"cannot honour .* or a draft here: do_sample=True: it samples"):
        small("llama").generate(**batch, do_sample=True, prompt_lookup_num_tokens=2, custom_generate=bestfirst.generate)


def test_assistant_model_must_be_a_model(small):
    batch = padded(ARCHITECTURES["llama"], ARCHITECTURES["llama"].inputs(1, seed=3))
    with pytest.raises(ValueError, match="assistant_model must be a model of transformers, got str"):
        small("llama").generate(**batch, num_beams=2, assistant_model="gpt2", custom_generate=bestfirst.generate)
