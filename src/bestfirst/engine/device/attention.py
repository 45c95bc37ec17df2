# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Attention of a row to its ancestors, or to its input: keys and values are read where they lie, nothing is gathered first."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    used, q, q_stride, memory, memory_stride, layer, row_node, row_input, row_length, paths, source_start, source_length,
    out, scale, L, H, D, OWN: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row and head, of the first `used` rows. `memory`: (tokens, layers, 2, H D), keys then values.

    OWN: q holds the row's own key and value too; these go to its node, and its ancestors are the nodes on its path.
    Otherwise: to the `source_length` tokens of its input, which lie side by side from `source_start` on.
    """
    r = tl.program_id(0)
    if r < tl.load(used):
        h = tl.program_id(1)
        d = tl.arange(0, DP)
        valid = d < D
        width = H * D
        at = layer * 2 * width + h * D + d
        row = q + r.to(tl.int64) * q_stride + h * D + d
        query = tl.load(row, mask=valid, other=0.0).to(tl.float32) * scale
        if OWN:
            new = tl.load(row_node + r).to(tl.int64)
            key = tl.load(row + width, mask=valid, other=0.0)
            own = tl.load(row + 2 * width, mask=valid, other=0.0)
            tl.store(memory + new * memory_stride + at, key, mask=valid)
            tl.store(memory + new * memory_stride + at + width, own, mask=valid)
            count = tl.load(row_length + r)
            most = tl.sum(query * key.to(tl.float32), 0)
            total = tl.full([], 1.0, tl.float32)
            mean = own.to(tl.float32)
            first = new * L
        else:
            s = tl.load(row_input + r).to(tl.int64)
            count = tl.load(source_length + s)
            most = tl.full([], -1e30, tl.float32)
            total = tl.full([], 0.0, tl.float32)
            mean = tl.zeros([DP], tl.float32)
            first = tl.load(source_start + s).to(tl.int64)
        lanes = tl.arange(0, BLOCK)
        t = 0
        while t < count:
            there = t + lanes < count
            cells = first + t + lanes
            if OWN:
                cells = tl.load(paths + cells, mask=there, other=0).to(tl.int64)
            where = memory + cells[:, None] * memory_stride + at[None, :]
            both = there[:, None] & valid[None, :]
            keys = tl.load(where, mask=both, other=0.0).to(tl.float32)
            values = tl.load(where + width, mask=both, other=0.0).to(tl.float32)
            weights = tl.where(there, tl.sum(keys * query[None, :], 1), -1e30)
            peak = tl.maximum(most, tl.max(weights, 0))
            fade = tl.exp(most - peak)
            weights = tl.where(there, tl.exp(weights - peak), 0.0)
            mean = mean * fade + tl.sum(weights[:, None] * values, 0)
            total = total * fade + tl.sum(weights, 0)
            most = peak
            t += BLOCK
        tl.store(out + r.to(tl.int64) * width + h * D + d, mean / tl.maximum(total, 1e-30), mask=valid)


@triton.jit
def add_norm(x, y, weight, bias, total, out, eps, D, FIRST: tl.constexpr, DP: tl.constexpr):
    """out = norm(x + y), a row a program. FIRST (layers that normalise first): x + y is kept too, in `total`."""
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    valid = d < D
    z = tl.load(x + r * D + d, mask=valid, other=0.0).to(tl.float32)
    z += tl.load(y + r * D + d, mask=valid, other=0.0).to(tl.float32)
    if FIRST:
        tl.store(total + r * D + d, z, mask=valid)
    mean = tl.sum(z, 0) / D
    off = tl.where(valid, z - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 0) / D + eps)
    normed = off * scale * tl.load(weight + d, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + r * D + d, normed + tl.load(bias + d, mask=valid, other=0.0).to(tl.float32), mask=valid)
