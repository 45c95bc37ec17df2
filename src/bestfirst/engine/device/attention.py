# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Attention of a row to its ancestors, or to its input: keys and values are read where they lie, nothing is gathered first.

Below the kernel, plain torch for what it and the choice of successors do: their reference, and what runs on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional as F


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
            values = tl.load(where + width, mask=both, other=0.0)
            weights = tl.where(there, tl.sum(keys * query[None, :], 1), -1e30)
            peak = tl.maximum(most, tl.max(weights, 0))
            fade = tl.exp(most - peak)
            weights = tl.where(there, tl.exp(weights - peak), 0.0)
            rounded = weights.to(values.dtype).to(tl.float32)  # as factors of half precision are
            mean = mean * fade + tl.sum(rounded[:, None] * values.to(tl.float32), 0)
            total = total * fade + tl.sum(weights, 0)
            most = peak
            t += BLOCK
        tl.store(out + r.to(tl.int64) * width + h * D + d, mean / tl.maximum(total, 1e-30), mask=valid)


# -- plain torch -------------------------------------------------------------------------------------------------------


def attend_own(
    qkv: torch.Tensor,
    memory: torch.Tensor,
    nodes: torch.Tensor,
    lengths: torch.Tensor,
    paths: torch.Tensor,
    heads: int,
    scale: float,
) -> torch.Tensor:
    """Rows (rows, 3 d) to their ancestors' keys and values in `memory`, a view (nodes, 2, d) of one layer; their own go there."""
    rows, width = qkv.shape[0], qkv.shape[1] // 3
    memory[nodes.long()] = qkv[:, width:].reshape(rows, 2, width)
    longest = int(lengths.max()) + 1
    there = torch.arange(longest, device=qkv.device) <= lengths[:, None]
    ancestors = torch.where(there, paths[nodes.long(), :longest], 0).long()
    return _attention(qkv[:, :width], memory[ancestors], there, heads, scale)


def attend_source(
    q: torch.Tensor,
    source: torch.Tensor,
    inputs: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    heads: int,
    scale: float,
) -> torch.Tensor:
    """Rows (rows, d) to their inputs' keys and values in `source`, a view (tokens, 2, d) of one layer, side by side."""
    places = torch.arange(max(1, int(lengths.max())), device=q.device)
    there = places < lengths[inputs.long()][:, None]
    cells = torch.where(there, starts[inputs.long()][:, None] + places, 0).long()
    return _attention(q, source[cells], there, heads, scale)


def _attention(q: torch.Tensor, context: torch.Tensor, there: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    rows, width = q.shape
    keys, values = context.unflatten(3, (heads, width // heads)).permute(2, 0, 3, 1, 4)  # (rows, heads, context, size) each
    query = q.view(rows, heads, 1, width // heads)
    # A row without a use may have an input that was never there: no number of it must count.
    values = torch.where(there[:, None, :, None], values, 0)
    keys = torch.where(there[:, None, :, None], keys, 0)
    mask = torch.where(there, 0.0, torch.finfo(q.dtype).min).to(q.dtype)[:, None, None]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale).reshape(rows, width)


def best(logits: torch.Tensor, width: int, banned: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `width` best logits of each row and their tokens, ties to the smaller, and the log-sum-exp of all."""
    logits = logits.float()
    total = logits.logsumexp(-1)
    if banned is not None:
        logits = logits.masked_fill(banned.bool(), float("-inf"))
    if logits.device.type == "cpu":
        values, tokens = logits.sort(dim=-1, descending=True, stable=True)
        return values[:, :width].contiguous(), tokens[:, :width].contiguous(), total
    return (*logits.topk(width, -1), total)
