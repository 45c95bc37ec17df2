# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""Products with weights, and the sums and norms that stand between them.

fp32 numbers are multiplied on tensor cores: each factor is split in two, and three of the four partial products are summed. That
is more exact than the fp32 units' own product (errors of 1.3e-6 against 5e-6 at d = 512) and takes two thirds of its time
(`docs/gpu.md`).
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
    """What one program multiplies, and how; `enough`: programs below which a smaller one is faster."""

    enough: int
    rows: int
    outputs: int
    warps: int
    stages: int


TILES = (Tile(250, 128, 128, 8, 2), Tile(64, 64, 64, 4, 3), Tile(0, 16, 32, 4, 4))  # by measuring, on an H200
LONG, BUSY = 512, 128  # inputs that one program takes in a row, and programs beyond which there is no use in more
ALIGNED = 16  # numbers
LARGEST = 1 << 17  # bytes of shared memory that the largest of these takes, with 64 inputs at a time


def power(n: int) -> int:
    """The least power of two that is no less than n: sizes that kernels are compiled for."""
    return 1 << (n - 1).bit_length()


@dataclass
class DeviceLinear:
    """x W^T + b, and the activation of that; in one launch where that can be."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: Any = None
    aligned: bool = False  # whether rows of the result begin at multiples of `ALIGNED` numbers, however many they have
    summed: bool = False  # whether it may be left in parts, for `add` to sum

    @classmethod
    def join(cls, *parts: Any, activation: Any = None) -> DeviceLinear:
        """Several that take the same input, as one."""
        joined = join(*parts)
        weight = joined.weight.detach()
        return cls(weight, weight.new_zeros(len(weight)) if joined.bias is None else joined.bias.detach().to(weight), activation)

    def __call__(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Of x (rows, inputs); rows beyond `used`, a number on the device, may hold anything. (rows, outputs), or in parts
        (parts, rows, outputs)."""
        relu = isinstance(self.activation, torch.nn.ReLU)
        if pays(self.weight):
            out = product(x, self.weight, self.bias, used, relu, self.aligned, self.summed)
            return out if relu or self.activation is None else self.activation(out)
        if relu and x.is_cuda:
            return torch._addmm_activation(self.bias, x, self.weight.t())
        out = F.linear(x, self.weight, self.bias)
        return out if self.activation is None else self.activation(out)


@triton.jit
def multiply(
    x, weight, bias, used, out, out_row, M, N,
    K: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr = 1,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """out (M, N) = x (M, K) weight (N, K)^T + bias, for the first `used` rows; the others are left as they are. In PARTS, it is
    the sum of them, each of a part of the K inputs."""
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


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    used: torch.Tensor,
    relu: bool,
    aligned: bool = False,
    summed: bool = False,
) -> torch.Tensor:
    """x (rows, inputs) times weight (outputs, inputs), plus bias; of the rows, those that are `used` (a number on the device).
    What is `summed` afterwards may be left in parts."""
    rows, outputs, K = len(x), len(weight), x.shape[1]

    def programs(tile: Tile) -> int:
        return triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)

    tile = next(tile for tile in TILES if programs(tile) >= tile.enough)
    assert not (summed and (relu or aligned)), "what is left in parts is summed, and no more"
    parts = parts_of(K, programs(tile), deep(x.device)) if summed and rows else 1
    out = table(rows, outputs, x) if aligned else x.new_empty((rows, outputs) if parts == 1 else (parts, rows, outputs))
    multiply[(programs(tile), parts)](
        x, weight, bias, used, out, out.stride(-2), rows, outputs,
        K=K, RELU=relu, BM=tile.rows, BN=tile.outputs, BK=deep(x.device), PARTS=parts,
        num_warps=tile.warps, num_stages=tile.stages, **overlapping(x.device),
    )  # fmt: skip
    return out


def parts_of(inputs: int, programs: int, together: int) -> int:
    """In how many parts to take a product of so many inputs, which has so many programs: one that is alone with many inputs takes
    longer than several that share them."""
    most = min(inputs // LONG, BUSY // programs)
    return next((parts for parts in (8, 4, 2) if parts <= most and inputs % (parts * together) == 0), 1)


def table(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Room for numbers whose rows a kernel can read many at a time: a row that begins anywhere is read four times as slowly."""
    return like.new_empty(rows, -(-columns // ALIGNED) * ALIGNED)[:, :columns]


@cache
def deep(device: torch.device) -> int:
    """Inputs at a time."""
    if device.type != "cuda":
        return 64
    properties: Any = torch.cuda.get_device_properties(device)
    return 64 if properties.shared_memory_per_block_optin > LARGEST else 32


def pays(weight: torch.Tensor) -> bool:
    """Whether this is the way to multiply: fp32 that is meant to be exact, and tensor cores that know TF32."""
    if weight.device.type != "cuda" or weight.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest":
        return False
    return torch.cuda.get_device_capability(weight.device) >= (8, 0)


def add(x: torch.Tensor, y: torch.Tensor, norm: Any, norm_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y, and that normalised; where layers normalise last, the two are one. y may be in parts, (parts, rows, outputs)."""
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
    """out = norm(x + y), a row a program. FIRST (layers that normalise first): x + y is kept too, in `total`. y is the sum of
    PARTS, each `part` numbers behind the one before."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    valid = d < D
    z = tl.load(x + r * D + d, mask=valid, other=0.0).to(tl.float32)
    added = tl.load(y + r * D + d, mask=valid, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        added += tl.load(y + i * part + r * D + d, mask=valid, other=0.0).to(tl.float32)
    z += added
    z = z.to(out.dtype.element_ty).to(tl.float32)  # where the model rounds too
    if FIRST:
        tl.store(total + r * D + d, z, mask=valid)
    mean = tl.sum(z, 0) / D
    off = tl.where(valid, z - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 0) / D + eps)
    normed = off * scale * tl.load(weight + d, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + r * D + d, normed + tl.load(bias + d, mask=valid, other=0.0).to(tl.float32), mask=valid)
