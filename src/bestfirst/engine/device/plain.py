"""Plain torch for what the kernels of a step's decoder do: their reference, and what runs where tensors are on a CPU."""

from __future__ import annotations

import torch
from torch.nn import functional as F


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
