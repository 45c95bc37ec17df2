"""Linear layers, split-K, and residual sums with layer norms.

fp32 operands are multiplied on tensor cores: each is split into two TF32 numbers, and three of the four partial products are
summed (`tf32x3`). That is more exact than the fp32 units (errors of 1.3e-6 against 5e-6 at d = 512) and takes two thirds of their
time (`docs/gpu.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from ...steps.bart import normed
from ...steps.operations import join
from ..cuda_graphs import overlapping, wait_for_previous


class Tile(NamedTuple):
    """Tile of the output per program; `enough`: the fewest programs for which this tile is faster than a smaller one."""

    enough: int
    rows: int
    outputs: int
    warps: int
    stages: int


TILES = (Tile(250, 128, 128, 8, 2), Tile(64, 64, 64, 4, 3), Tile(0, 16, 32, 4, 4))  # measured on an H200
MIN_K_PER_PART, MAX_PROGRAMS = 512, 128  # split K into parts no shorter, and into no more programs
ALIGNED = 16  # numbers to which rows are padded
LARGE_TILE_BYTES = 1 << 17  # shared memory of the largest tile with 64 inputs per iteration


def power(n: int) -> int:
    """The least power of two that is at least n: kernels are compiled for such sizes."""
    return 1 << (n - 1).bit_length()


@dataclass
class DeviceLinear:
    """activation(x W^T + b), in one launch where possible."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: Any = None
    aligned: bool = False  # whether rows of the result start at multiples of `ALIGNED` numbers
    may_split: bool = False  # whether the result may be left as split-K parts, which `add_and_norm` sums

    @classmethod
    def join(cls, *parts: Any, activation: Any = None) -> DeviceLinear:
        """Several layers with the same input, fused into one."""
        joined = join(*parts)
        weight = joined.weight.detach()
        return cls(weight, weight.new_zeros(len(weight)) if joined.bias is None else joined.bias.detach().to(weight), activation)

    def __call__(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Of x (rows, inputs), for the first `used` rows, a number on the device; the other rows of the result are undefined.
        Returns (rows, outputs), or (parts, rows, outputs) if K was split."""
        relu = isinstance(self.activation, torch.nn.ReLU)
        if uses_tf32x3(self.weight):
            out = linear_tf32x3(x, self.weight, self.bias, used, relu, self.aligned, self.may_split)
            return out if relu or self.activation is None else self.activation(out)
        if relu and x.is_cuda:
            return torch._addmm_activation(self.bias, x, self.weight.t())
        out = F.linear(x, self.weight, self.bias)
        return out if self.activation is None else self.activation(out)


@triton.jit
def matmul_tf32x3(
    x, weight, bias, used, out, out_row, M, N,
    K: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr = 1,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """out (M, N) = x (M, K) weight (N, K)^T + bias, for the first `used` rows; the others are not written. Split-K: with PARTS >
    1, out is (PARTS, M, N), each part over K / PARTS inputs, to be summed."""
    wait_for_previous(OVERLAP)
    i = tl.program_id(0)
    part = tl.program_id(1)
    tiles = tl.cdiv(M, BM)
    first = (i % tiles) * BM
    if first < tl.load(used):
        m = first + tl.arange(0, BM)
        n = (i // tiles) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        total = tl.zeros((BM, BN), tl.float32)
        xs = x + m.to(tl.int64)[:, None] * K + k[None, :] + part * (K // PARTS)
        ws = weight + n.to(tl.int64)[None, :] * K + k[:, None] + part * (K // PARTS)
        for done in range(0, K // PARTS, BK):
            if K % BK == 0:
                a = tl.load(xs, mask=m[:, None] < M, other=0.0)
                b = tl.load(ws, mask=n[None, :] < N, other=0.0)
            else:
                a = tl.load(xs, mask=(m[:, None] < M) & (k[None, :] < K - done), other=0.0)
                b = tl.load(ws, mask=(n[None, :] < N) & (k[:, None] < K - done), other=0.0)
            total = tl.dot(a, b, total, input_precision="tf32x3")
            xs += BK
            ws += BK
        total += tl.load(bias + n, mask=(n < N) & (part == 0), other=0.0)[None, :]
        if RELU:
            total = tl.where(total < 0.0, 0.0, total)  # NaN stays NaN
        rows = part * M + m.to(tl.int64)
        tl.store(out + rows[:, None] * out_row + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def linear_tf32x3(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    used: torch.Tensor,
    relu: bool,
    aligned: bool = False,
    may_split: bool = False,
) -> torch.Tensor:
    """x (rows, inputs) times weight (outputs, inputs)^T plus bias, for the first `used` rows. With `may_split`, the result may be
    left as split-K parts (parts, rows, outputs)."""
    rows, outputs, K = len(x), len(weight), x.shape[1]

    def programs(tile: Tile) -> int:
        return triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)

    tile = next(tile for tile in TILES if programs(tile) >= tile.enough)
    assert not (may_split and (relu or aligned)), "split-K parts can only be summed"
    parts = split_k(K, programs(tile), block_k(x.device)) if may_split and rows else 1
    out = empty_aligned(rows, outputs, x) if aligned else x.new_empty((rows, outputs) if parts == 1 else (parts, rows, outputs))
    matmul_tf32x3[(programs(tile), parts)](
        x, weight, bias, used, out, out.stride(-2), rows, outputs,
        K=K, RELU=relu, BM=tile.rows, BN=tile.outputs, BK=block_k(x.device), PARTS=parts,
        num_warps=tile.warps, num_stages=tile.stages, **overlapping(x.device),
    )  # fmt: skip
    return out


def split_k(inputs: int, programs: int, block: int) -> int:
    """Into how many parts to split K: few programs with long inputs take longer than more that share them."""
    limit = min(inputs // MIN_K_PER_PART, MAX_PROGRAMS // programs)
    return next((parts for parts in (8, 4, 2) if parts <= limit and inputs % (parts * block) == 0), 1)


def empty_aligned(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Uninitialised (rows, columns) with aligned rows: kernels read others at a quarter of the speed."""
    return like.new_empty(rows, -(-columns // ALIGNED) * ALIGNED)[:, :columns]


@cache
def block_k(device: torch.device) -> int:
    """Inputs per iteration of the matmul: 64 if shared memory holds the largest tile, else 32."""
    if device.type != "cuda":
        return 64
    properties: Any = torch.cuda.get_device_properties(device)
    return 64 if properties.shared_memory_per_block_optin > LARGE_TILE_BYTES else 32


def uses_tf32x3(weight: torch.Tensor) -> bool:
    """Whether `matmul_tf32x3` serves this weight: fp32 with TF32 not allowed, on tensor cores that know TF32."""
    if weight.device.type != "cuda" or weight.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest":
        return False
    return torch.cuda.get_device_capability(weight.device) >= (8, 0)


def add_and_norm(x: torch.Tensor, y: torch.Tensor, norm: Any, norm_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y and its layer norm; with post-norm layers both are the norm. y may be split-K parts (parts, rows, outputs)."""
    parts = 1 if y.dim() == x.dim() else len(y)
    if norm is None and parts > 1:
        y = y.sum(0)
    if norm is None:
        return x + y, x + y
    if not x.is_cuda:
        total = x + y
        out = normed(total, norm)
        return (total if norm_first else out), out
    out = torch.empty_like(x)
    total = torch.empty_like(x) if norm_first else out
    D = x.shape[1]
    add_norm[(len(x),)](
        x, y, norm.weight, norm.bias, total, out, norm.eps, D, y.stride(0) if parts > 1 else 0,
        FIRST=norm_first, PARTS=parts, DP=power(D), num_warps=2, **overlapping(x.device),
    )  # fmt: skip
    return total, out


@triton.jit
def add_norm(
    x, y, weight, bias, total, out, eps, D, part,
    FIRST: tl.constexpr, PARTS: tl.constexpr, DP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """out = norm(x + y), one row per program. FIRST (pre-norm layers): x + y is stored in `total`, too. y is the sum of PARTS
    tensors, `part` numbers apart."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    valid = d < D
    z = tl.load(x + r * D + d, mask=valid, other=0.0).to(tl.float32)
    added = tl.load(y + r * D + d, mask=valid, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        added += tl.load(y + i * part + r * D + d, mask=valid, other=0.0).to(tl.float32)
    z += added
    z = z.to(out.dtype.element_ty).to(tl.float32)  # round where the model rounds
    if FIRST:
        tl.store(total + r * D + d, z, mask=valid)
    mean = tl.sum(z, 0) / D
    off = tl.where(valid, z - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 0) / D + eps)
    normed = off * scale * tl.load(weight + d, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + r * D + d, normed + tl.load(bias + d, mask=valid, other=0.0).to(tl.float32), mask=valid)
