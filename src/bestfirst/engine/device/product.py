# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Products of fp32 numbers on tensor cores: each factor is split in two, and three of the four partial products are summed.

That is more exact than the fp32 units' own product (errors of 1.3e-6 against 5e-6 at d = 512) and takes two thirds of its time
(`docs/gpu.md`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILES = ((128, 64, 3), (64, 64, 4), (64, 32, 4))  # rows, outputs, stages: the largest of which there are enough
ENOUGH = 264  # programs: two for each multiprocessor of a large card
DEEP = 32  # inputs at a time


@triton.jit
def multiply(
    x, weight, bias, used, out, M, N,
    K: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out (M, N) = x (M, K) weight (N, K)^T + bias, for the first `used` rows; the others are left as they are."""
    i = tl.program_id(0)
    tiles = tl.cdiv(M, BM)
    first = (i % tiles) * BM
    if first < tl.load(used):
        m = first + tl.arange(0, BM)
        n = (i // tiles) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        total = tl.zeros((BM, BN), tl.float32)
        xs = x + m.to(tl.int64)[:, None] * K + k[None, :]
        ws = weight + n.to(tl.int64)[None, :] * K + k[:, None]
        for done in range(0, K, BK):
            if K % BK == 0:
                a = tl.load(xs, mask=m[:, None] < M, other=0.0)
                b = tl.load(ws, mask=n[None, :] < N, other=0.0)
            else:
                a = tl.load(xs, mask=(m[:, None] < M) & (k[None, :] < K - done), other=0.0)
                b = tl.load(ws, mask=(n[None, :] < N) & (k[:, None] < K - done), other=0.0)
            total = tl.dot(a, b, total, input_precision="tf32x3")
            xs += BK
            ws += BK
        total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
        if RELU:
            total = tl.maximum(total, 0.0)
        tl.store(out + m.to(tl.int64)[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, used: torch.Tensor, relu: bool) -> torch.Tensor:
    """x (rows, inputs) times weight (outputs, inputs), plus bias; of the rows, those that are `used` (a number on the device)."""
    rows, outputs = len(x), len(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)

    def programs(tile: tuple[int, int, int]) -> int:
        return triton.cdiv(rows, tile[0]) * triton.cdiv(outputs, tile[1])

    tile = next((tile for tile in TILES if programs(tile) >= ENOUGH), TILES[-1])
    multiply[(programs(tile),)](
        x, weight, bias, used, out, rows, outputs,
        K=x.shape[1], RELU=relu, BM=tile[0], BN=tile[1], BK=DEEP, num_warps=4, num_stages=tile[2],
    )  # fmt: skip
    return out


def pays(weight: torch.Tensor) -> bool:
    """Whether this is the way to multiply: fp32 that is meant to be exact, and tensor cores that know TF32."""
    if weight.device.type != "cuda" or weight.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest":
        return False
    return torch.cuda.get_device_capability(weight.device) >= (8, 0)
