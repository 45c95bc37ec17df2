"""Fused modules, and log-sum-exp and maxima of a large vocabulary: kernels against torch and the modules themselves."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from torch.nn import functional as F
from transformers.activations import NewGELUActivation
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from bestfirst.engine.device.kernels.successors import lse_and_maxima_part, sum_lse, token_bitmap
from bestfirst.engine.device.modules import fused_modules, rotary
from bestfirst.engine.device.modules.fused_linear import fused_groups
from bestfirst.engine.device.modules.fused_modules import DeferredSums, FusedModules, gated, new_gelu, rms_norm
from bestfirst.engine.device.modules.rotary import rotate
from device.tiny import build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("norm", "offset", "early"), [(LlamaRMSNorm, 0.0, True), (GemmaRMSNorm, 1.0, False)])
def test_norms_equal_the_modules(norm, offset, early):
    module = norm(20, eps=1e-5).to(DEVICE)
    torch.nn.init.normal_(module.weight)
    x = torch.randn(3, 5, 20, device=DEVICE).transpose(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, module.weight, 1e-5, offset, early), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gelu", [False, True])
def test_gated_activations(gelu):
    gate, up = torch.randn(2, 7, 33, device=DEVICE)
    expected = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
    torch.testing.assert_close(gated(gate, up, gelu), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("twice", [False, True])
def test_gelu_as_in_gpt2(twice):
    x = torch.randn(7, 33, device=DEVICE)
    torch.testing.assert_close(new_gelu(x, twice), NewGELUActivation()(x), atol=1e-5, rtol=1e-5)


def test_rotary_positions():
    q, k = torch.randn(3, 1, 4, 12, device=DEVICE).transpose(1, 2), torch.randn(3, 2, 1, 12, device=DEVICE)
    cos, sin = torch.randn(2, 3, 1, 12, device=DEVICE)
    for mine, its in zip(rotate(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5)


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(rotary, "DEVICES", {DEVICE})
    monkeypatch.setattr(fused_modules, "DEVICES", {DEVICE})


def test_fused_modules_are_installed_and_removed(on_device):
    model = build("Llama").to(DEVICE)
    some = FusedModules(model)
    with some.installed():
        assert sum("forward" in vars(module) for module in model.modules()) == 14  # norms, gates, matmuls, positions
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(("name", "sums"), [("Llama", 4), ("Qwen3", 4), ("Gemma2", 4), ("Olmo2", 1), ("Qwen2", 4), ("T5", None)])
def test_fused_modules_do_not_change_logits(on_device, monkeypatch, name, sums):
    """Sums that feed a norm are computed by the norm."""
    model, added = build(name).to(DEVICE), []
    norm = fused_modules.rms_norm
    monkeypatch.setattr(fused_modules, "rms_norm", lambda *given: added.append(given[-1] is not None) or norm(*given))
    given = {"input_ids": torch.tensor([[5], [6], [7]], device=DEVICE)}
    if sums is None:
        given["decoder_input_ids"] = given["input_ids"]
    else:
        given["position_ids"] = torch.tensor([[9], [0], [3]], device=DEVICE)
    with torch.inference_mode():
        expected = model(**given).logits
        some = FusedModules(model)
        some.extend_to(10)
        added.clear()
        with some.installed():
            torch.testing.assert_close(model(**given).logits, expected, atol=1e-4, rtol=1e-4)
    assert sums is None or sum(added) == sums


def test_a_deferred_sum_is_computed_when_it_is_used():
    x, y = torch.randn(2, 3, 4, device=DEVICE)
    with DeferredSums() as sums:
        first = x + y
        assert first.shape == (3, 4)
        second = first + y
        third = second.clone()
    sums.take(None)
    assert torch.equal(first, x + y)
    assert torch.equal(third, x + y + y)


def test_weights_of_fused_matmuls_stay_the_same_parameters():
    """They move side by side, with the same values and objects; writing to one changes the fused matmul."""
    model = build("Qwen2").to(DEVICE)
    before = {name: (each, each.clone()) for name, each in model.named_parameters()}
    joined = list(fused_groups(model))
    assert [len(each.sizes) for each in joined] == [3, 2, 3, 2]
    for name, each in model.named_parameters():
        assert each is before[name][0]
        assert torch.equal(each, before[name][1])
    places = [each.data_ptr() for each in model.parameters()]
    assert [each.sizes for each in fused_groups(model)] == [each.sizes for each in joined]
    assert [each.data_ptr() for each in model.parameters()] == places  # moved once
    attention, x = model.model.layers[0].self_attn, torch.randn(3, 1, 32, device=DEVICE)
    with torch.no_grad():
        attention.k_proj.weight.mul_(2)
        attention.v_proj.bias.add_(1)
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    forwards = [joined[0].forward_of(i) for i in range(3)]
    for mine, part in zip([forward(x) for forward in forwards], parts, strict=True):
        torch.testing.assert_close(mine, part(x))
    loss = attention.k_proj(x).sum()
    loss.backward()
    assert attention.k_proj.weight.grad is not None


def test_shared_weights_and_views_are_not_moved():
    model = build("Llama").to(DEVICE)
    model.model.layers[0].self_attn.k_proj.weight = model.model.layers[1].self_attn.k_proj.weight
    gate = model.model.layers[0].mlp.gate_proj
    whole = torch.randn(100, 32, device=DEVICE)
    gate.weight.data = whole[:48]
    assert [each.sizes for each in fused_groups(model)] == [[48, 48]]
    assert gate.weight.data_ptr() == whole.data_ptr()


def test_log_sum_exp_and_maxima_of_a_large_vocabulary_in_parts():
    vocabulary, group, groups, parts = 800, 64, 4, 4
    logits = torch.randn(3, vocabulary, device=DEVICE)
    banned = token_bitmap([7, 63, 700], vocabulary).to(DEVICE)
    counters = torch.tensor([2, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32, device=DEVICE)
    sums, maxima = torch.zeros(3, parts, device=DEVICE), torch.zeros(3, groups * parts, device=DEVICE)
    total, seen = torch.zeros(3, device=DEVICE), logits.clone()
    sizes = {"ANY_BANNED": True, "G": groups, "C": group}
    lse_and_maxima_part[(3, parts)](seen, vocabulary, sums, maxima, banned, counters, vocabulary, parts, **sizes)
    sum_lse[(3,)](sums, total, counters, parts, EDITED=False, PP=parts)
    torch.testing.assert_close(total[:2], logits.logsumexp(-1)[:2])
    logits[:, [7, 63, 700]] = -torch.inf
    assert torch.equal(seen[:2], logits[:2])
    padded = F.pad(logits, (0, group * groups * parts - vocabulary), value=-torch.inf)
    assert torch.equal(maxima[:2], padded.view(3, -1, group).amax(-1)[:2])
    assert total[2] == 0  # an unused row


def test_fused_weights_are_saved_whole(tmp_path):
    """Savers take parameters that share a storage for tied ones, and leave some out."""
    model = build("Llama")
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = list(fused_groups(model))
    assert found
    assert all(each.in_place() for each in found)
    assert [id(each) for each in fused_groups(model)] == [id(each) for each in found]  # moved once
    storages = [each.untyped_storage() for each in model.parameters()]
    assert len({each.data_ptr() for each in storages}) == len(storages)
    assert all(a.nbytes() == b.numel() * b.itemsize for a, b in zip(storages, model.parameters(), strict=True))
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    saved = safetensors.torch.load_file(str(tmp_path / "model.safetensors"))
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(saved) >= set(expected) - tied
    assert all(torch.equal(weight, expected[name]) for name, weight in saved.items())
    found[0].parts[0].weight.data = found[0].parts[0].weight.data.clone() * 2  # from now on, matmuls are separate
    x = torch.randn(3, found[0].parts[0].in_features)
    assert not found[0].in_place()
    assert torch.allclose(found[0](x), torch.cat([part(x) for part in found[0].parts], -1), atol=1e-6)
