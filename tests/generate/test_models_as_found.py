"""Models that were quantised or compiled, and arguments at the edge of what `generate` takes: the same outputs."""

from __future__ import annotations

import warnings

import pytest
import torch

import bestfirst
from bestfirst import Stats
from engine.builders import ARCHITECTURES
from generate.differences import padded

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
