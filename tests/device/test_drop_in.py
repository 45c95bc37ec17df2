"""The drop-in for `generate` on the device: what `generate` prepares is put off, and outputs are `generate`'s."""

from __future__ import annotations

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Stats
from bestfirst.engine.device import admission
from bestfirst.models.transformers import TransformersModel
from engine.builders import ARCHITECTURES
from generate.differences import padded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", True)


def call(model, batch, **asked):
    """Outputs of the drop-in, and what it cost."""
    stats = Stats()
    return model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats), stats


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "m2m100", "pegasus"])
def test_neither_an_encoder_nor_a_cache_of_generates_own_is_made(name, monkeypatch):
    """The device encodes, without padding; what lies side by side is not taken apart."""
    architecture = ARCHITECTURES[name]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(3, seed=2)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 3}
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)  # the first time the encoders are compared, and the first answer
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())

    def never(*_, **__):
        raise AssertionError("not needed")

    monkeypatch.setattr(type(model.get_encoder()), "forward", never)
    monkeypatch.setattr("transformers.generation.utils.DynamicCache", never)
    monkeypatch.setattr(admission, "chain", None)
    assert call(model, batch, **asked)[0].tolist() == theirs.tolist()


def test_its_own_loop_gets_both():
    architecture = ARCHITECTURES["bart"]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(2, seed=3)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 4, "output_logits": True, "return_dict_in_generate": True}
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)
    assert stats.engine == "generate"
    assert torch.equal(ours.sequences, theirs.sequences)
    assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length() > 0


def test_weights_that_were_changed_where_torch_does_not_count_are_noticed():
    architecture = ARCHITECTURES["marian"]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(2, seed=4)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 3}
    before = call(model, batch, **asked)[0]
    for weight in model.get_decoder().parameters():
        weight.data.view(-1)[-1] += 1.0
    model.get_encoder().layers[0].fc1.weight.data[3] += 3.0
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())
    assert ours.tolist() != before.tolist()
