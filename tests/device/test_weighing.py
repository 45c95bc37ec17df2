"""Checksum of weights on a GPU: one number, which every integer of theirs changes."""

from __future__ import annotations

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine.device.kernels import weight_sums
from bestfirst.engine.steps.checksum import Checksum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_the_checksum_depends_on_every_number_and_its_place(kind, monkeypatch):
    """Changes of the first, the last and many numbers, and permutations."""
    monkeypatch.setattr(weight_sums, "PIECE", 64)
    monkeypatch.setattr(weight_sums, "BLOCK", 16)
    dice = torch.Generator().manual_seed(0)
    weights = [torch.randint(0, 200, (n,), generator=dice).to(DEVICE, kind) for n in (300, 7, 64, 1)]
    checksum = weight_sums.WeightSums(weights)
    sums = {int(checksum())}
    assert sums == {int(checksum())}
    changes = [lambda w=w, i=i: w[i : i + 1].add_(1) for w in weights for i in {0, len(w) // 2, len(w) - 1}]
    changes += [lambda w=w: w.bitwise_not_() for w in weights] + [lambda: weights[0].copy_(weights[0].roll(1, 0))]
    changes += [lambda: weights[0].copy_(weights[0].flip(0)), lambda: weights[2][:2].mul_(2)]
    for change in changes:
        change()
        sums.add(int(checksum()))
    assert len(sums) == 1 + len(changes)


@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_a_checksum_made_in_one_inference_mode_works_in_the_other(modes):
    """A tensor made under `inference_mode` cannot be written to outside of it."""
    with torch.inference_mode(modes[0]):
        checksum = weight_sums.WeightSums([torch.arange(9, dtype=torch.int32, device=DEVICE)])
        before = int(checksum())
    with torch.inference_mode(modes[1]):
        assert int(checksum()) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_checksum_on_a_gpu_notices_every_change(dtype):
    """Of contiguous weights, a transposed one, and one with an odd number of bytes."""
    weights = [torch.randn(300, 500).mul(20).to(dtype), torch.randn(64, 200).mul(20).to(dtype).t(), torch.randn(7).to(dtype)]
    weights = [each.cuda() for each in weights[:1]] + [weights[1].t().cuda().t(), weights[2].cuda()]
    summed = Checksum(weights)
    assert summed.still_holds()
    for each in weights:
        for place in ((0,) * each.dim(), tuple(n - 1 for n in each.shape)):
            was = each[place].clone()
            each.data[place] += 1
            assert not summed.still_holds()
            each.data[place] = was
            assert summed.still_holds()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_checksum_on_a_gpu_that_is_not_the_current_one():
    """Its number is transferred on that GPU's stream, which is the one to wait for."""
    weights = torch.randn(1 << 26, device="cuda:1")
    summed = Checksum([weights])
    for number in range(20):
        weights.data[number] += 1
        assert not summed.still_holds()
        weights.data[number] -= 1
        summed = Checksum([weights])
