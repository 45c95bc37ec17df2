"""The model's encoder is not run by `generate` if the engine has a compiled one, unless the difference could be noticed."""

from __future__ import annotations

import copy
import inspect
import pickle
from functools import wraps

import pytest
import torch

import bestfirst
from engine.builders import ARCHITECTURES
from generate.differences import padded

SETTINGS = {"num_beams": 3, "max_new_tokens": 10}


@pytest.fixture
def runs(monkeypatch):
    """`runs(model)`: a list that grows whenever its encoder runs."""

    def count(model):
        kind, counted = type(model.get_encoder()), []
        forward = kind.forward

        @wraps(forward)
        def counting_forward(self, *given, **named):
            counted.append(kind)
            return forward(self, *given, **named)

        monkeypatch.setattr(kind, "forward", counting_forward)
        return counted

    return count


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "m2m100", "pegasus"])
@pytest.mark.parametrize("asked", [{}, {"num_return_sequences": 2}, {"num_beams": 1}, {"decoder_input_ids": [[2, 5, 6]] * 3}])
def test_the_models_encoder_does_not_run(name, asked, small, runs):
    architecture, model = ARCHITECTURES[name], small(name)
    batch, asked = padded(architecture, architecture.inputs(3, seed=2)), {**SETTINGS, **asked}
    if "decoder_input_ids" in asked:
        batch["decoder_input_ids"] = torch.tensor(asked.pop("decoder_input_ids"))
    theirs = model.generate(**batch, **asked)
    counted = runs(model)
    model.generate(**batch, **asked, custom_generate=bestfirst.generate)  # the first call compares it with the compiled one
    counted.clear()
    assert torch.equal(model.generate(**batch, **asked, custom_generate=bestfirst.generate), theirs)
    assert not counted


@pytest.mark.parametrize("form", ["padding in it", "no mask", "left padding", "zeros between"])
def test_the_models_encoder_runs_for_irregular_padding(form, small, runs):
    model, ids = small("m2m100"), torch.tensor([[5, 6, 7, 9, 1], [9, 8, 1, 0, 0]])
    mask = (ids != 0).long()
    batch = {
        "padding in it": {"input_ids": torch.where(ids == 6, 0, ids), "attention_mask": mask},
        "no mask": {"input_ids": ids},
        "left padding": {"input_ids": ids.flip(1), "attention_mask": mask.flip(1)},
        "zeros between": {"input_ids": ids, "attention_mask": mask * (ids != 6)},
    }[form]
    theirs = model.generate(**batch, **SETTINGS)
    counted = runs(model)
    assert torch.equal(model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate), theirs)
    assert counted


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_cache_of_a_kind_that_is_asked_for_gives_the_same_outputs(kind, k, small):
    batch = {"input_ids": torch.tensor([[5, 6, 7, 1], [9, 8, 1, 0]]), "attention_mask": torch.tensor([[1] * 4, [1, 1, 1, 0]])}
    asked = {**SETTINGS, "num_beams": k, "cache_implementation": kind}
    theirs = small("marian").generate(**batch, **asked)
    assert torch.equal(small("marian").generate(**batch, **asked, custom_generate=bestfirst.generate), theirs)


def test_forward_hooks_of_the_encoder_see_it_run(small):
    model, seen = copy.deepcopy(small("marian")), []
    model.get_encoder().register_forward_hook(lambda *_: seen.append(1))
    batch = {"input_ids": torch.tensor([[5, 6, 7, 1], [9, 8, 1, 0]]), "attention_mask": torch.tensor([[1] * 4, [1, 1, 1, 0]])}
    model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate)
    seen.clear()
    model.generate(**batch, **SETTINGS, custom_generate=bestfirst.generate)
    assert len(seen) == 1


@pytest.mark.parametrize("more", [{"num_beams": 1, "num_return_sequences": 2}, {"num_return_sequences": 3}])
def test_the_own_loop_gets_the_encoder_output(more, small):
    model, batch = small("marian"), {"input_ids": torch.tensor([[5, 6, 7, 1], [9, 8, 4, 1]])}
    found = []
    for own in ({}, {"custom_generate": bestfirst.generate}):
        torch.manual_seed(0)
        found.append(model.generate(**batch, **SETTINGS | more, do_sample=True, **own))
    assert torch.equal(*found)


def test_int8_generation_uses_the_int8_encoder(small):
    architecture, model = ARCHITECTURES["marian"], small("marian")
    inputs = architecture.inputs(3, seed=5)
    asked = {**SETTINGS, "length_penalty": 0.0, "early_stopping": "never", "dtype": "int8"}
    ours = model.generate(**padded(architecture, inputs), **asked, custom_generate=bestfirst.generate)
    eight = bestfirst.wrap(model)
    eight.eight_bits = True
    for row, result in zip(ours, bestfirst.decode(eight, inputs, beam=3, max_length=10, accept_truncated=True), strict=True):
        tokens = result.hypotheses[0].tokens
        assert row[1 : 1 + len(tokens)].tolist() == list(tokens)


def test_generate_can_be_inspected_pickled_and_copied():
    assert inspect.signature(bestfirst.generate).parameters["dtype"].default is None
    assert pickle.loads(pickle.dumps(bestfirst.generate)) is bestfirst.generate
    assert copy.deepcopy(bestfirst.generate) is bestfirst.generate
    assert bestfirst.generate.__doc__.startswith("For `model.generate(")
