"""Shortcuts of modules, and the survey of a large vocabulary: kernels against torch and the modules themselves."""

from __future__ import annotations

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from torch.nn import functional as F
from transformers.activations import NewGELUActivation
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from bestfirst.engine.device.shortcuts import Shortcuts, gated, new_gelu, rms_norm, rotate
from bestfirst.engine.device.successors import bits_of, sum_parts, survey_part
from device.tiny import build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("norm", "offset", "early"), [(LlamaRMSNorm, 0.0, True), (GemmaRMSNorm, 1.0, False)])
def test_norms(norm, offset, early):
    module = norm(20, eps=1e-5).to(DEVICE)
    torch.nn.init.normal_(module.weight)
    x = torch.randn(3, 5, 20, device=DEVICE).transpose(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, module.weight, 1e-5, offset, early), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gelu", [False, True])
def test_gates(gelu):
    gate, up = torch.randn(2, 7, 33, device=DEVICE)
    expected = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
    torch.testing.assert_close(gated(gate, up, gelu), expected, atol=1e-5, rtol=1e-5)


def test_gelu_as_gpt2_writes_it():
    x = torch.randn(7, 33, device=DEVICE)
    torch.testing.assert_close(new_gelu(x), NewGELUActivation()(x), atol=1e-5, rtol=1e-5)


def test_rotary_positions():
    q, k = torch.randn(3, 1, 4, 12, device=DEVICE).transpose(1, 2), torch.randn(3, 2, 1, 12, device=DEVICE)
    cos, sin = torch.randn(2, 3, 1, 12, device=DEVICE)
    for mine, its in zip(rotate(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_shortcuts_are_taken_and_given_back():
    model = build("Llama").to(DEVICE)
    shortcuts = Shortcuts(model)
    with shortcuts.taken():
        assert sum("forward" in vars(module) for module in model.modules()) == 7  # five norms and two gated layers
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_large_vocabulary_in_parts():
    vocabulary, group, groups, parts = 800, 64, 4, 4
    logits = torch.randn(3, vocabulary, device=DEVICE)
    banned = bits_of([7, 63, 700], vocabulary).to(DEVICE)
    counters = torch.tensor([2, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32, device=DEVICE)
    sums, maxima = torch.zeros(3, parts, device=DEVICE), torch.zeros(3, groups * parts, device=DEVICE)
    total, seen = torch.zeros(3, device=DEVICE), logits.clone()
    sizes = {"ANY_BANNED": True, "G": groups, "C": group}
    survey_part[(3, parts)](seen, vocabulary, sums, maxima, banned, counters, vocabulary, parts, **sizes)
    sum_parts[(3,)](sums, total, counters, parts, EDITED=False, PP=parts)
    torch.testing.assert_close(total[:2], logits.logsumexp(-1)[:2])
    logits[:, [7, 63, 700]] = -torch.inf
    assert torch.equal(seen[:2], logits[:2])
    padded = F.pad(logits, (0, group * groups * parts - vocabulary), value=-torch.inf)
    assert torch.equal(maxima[:2], padded.view(3, -1, group).amax(-1)[:2])
    assert total[2] == 0  # a row without a use
