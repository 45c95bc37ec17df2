# ruff: noqa: N803, N806  capitals are sizes, as kernels have them
"""Attention on the device in plain torch: the reference for its kernels, and their replacement on a CPU, where Triton's
interpreter would be hundreds of times slower."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from bestfirst.engine.device.modules.tree_attention import Kind, Memory, TreeRows

FAR = -1e30


class PlainAttend:
    """Launched like the kernel `attend`."""

    def __getitem__(self, grid):
        return self

    def __call__(
        self, used, q, q_row, memory, memory_row, layer, row_node, row_input, row_length, paths, starts, lengths,
        out, scale, L, H, D, OWN, **compiling,
    ):  # fmt: skip
        rows, width = len(out), H * D
        its = memory.unflatten(-1, (-1, 2, width))[..., layer, :, :]
        if OWN:
            out[:] = attend_own(q, its, row_node[:rows], row_length[:rows], paths, H, scale)
        else:
            out[:] = attend_source(q[:, :width], its, row_input[:rows], starts, lengths, H, scale)


def attend_own(
    qkv: torch.Tensor,
    memory: torch.Tensor,
    nodes: torch.Tensor,
    lengths: torch.Tensor,
    paths: torch.Tensor,
    heads: int,
    scale: float,
) -> torch.Tensor:
    """Rows (rows, 3 d) over their ancestors' keys and values in `memory`, a view (nodes, 2, d) of one layer; stores their own."""
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
    """Rows (rows, d) over their inputs' keys and values in `source`, a view (tokens, 2, d) of one layer, without padding."""
    places = torch.arange(max(1, int(lengths.max())), device=q.device)
    there = places < lengths[inputs.long()][:, None]
    cells = torch.where(there, starts[inputs.long()][:, None] + places, 0).long()
    return _attention(q, source[cells], there, heads, scale)


def _attention(q: torch.Tensor, context: torch.Tensor, there: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    rows, width = q.shape
    keys, values = context.unflatten(3, (heads, width // heads)).permute(2, 0, 3, 1, 4)  # (rows, heads, context, size) each
    query = q.view(rows, heads, 1, width // heads)
    # An unused row may have an input that never existed: none of its numbers may count.
    values = torch.where(there[:, None, :, None], values, 0)
    keys = torch.where(there[:, None, :, None], keys, 0)
    mask = torch.where(there, 0.0, torch.finfo(q.dtype).min).to(q.dtype)[:, None, None]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale).reshape(rows, width)


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: torch.Tensor, number: torch.Tensor, starts: torch.Tensor, kind: Kind
) -> torch.Tensor:
    """Like `tree_attention.attend_packed`."""
    at = torch.arange(len(q), device=q.device)
    seen = (number[:, None] == number) & (at[:, None] >= at) & (at[:, None] - at < kind.window)
    distances = (at[:, None] - at).clamp(min=0)
    keys, values = (x[:, :, 0].transpose(0, 1).expand(len(q), -1, -1, -1) for x in (k, v))
    return _plain(q[:, :, 0], keys, values, seen, distances, kind)


def attend_tree(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: Memory | None, source: Memory | None, rows: TreeRows, kind: Kind
) -> torch.Tensor:
    """Like `tree_attention.attend_tree`; unused rows read node 0."""
    R = len(q)
    nodes, lengths, inputs = (x[:R].long() for x in (rows.node, rows.length, rows.input))
    keys, values, seen, distances = [], [], [], []
    before = torch.zeros_like(lengths)
    if source is not None:
        many = rows.source_length[inputs].long()
        places = torch.arange(int(many.max()) if R else 0, device=q.device)
        there = places < many[:, None]
        cells = torch.where(there, rows.source_start[inputs].long()[:, None] + places, 0)
        keys.append(torch.where(there[..., None, None], source[0][cells], 0))
        values.append(torch.where(there[..., None, None], source[1][cells], 0))
        before = many if memory is not None else before
        far = (before + lengths)[:, None] - places
        seen.append(there & (far < kind.window) if memory is not None else there)
        distances.append(far)
    if memory is not None:
        memory[0][nodes], memory[1][nodes] = k[:, :, 0].to(memory[0]), v[:, :, 0].to(memory[1])
        places = torch.arange(int(lengths.max()) + 1, device=q.device)
        there = places <= lengths[:, None]
        cells = torch.where(there, rows.paths[nodes, : len(places)], 0).long()
        cells = torch.where(places == lengths[:, None], nodes[:, None], cells)
        keys.append(torch.where(there[..., None, None], memory[0][cells], 0))
        values.append(torch.where(there[..., None, None], memory[1][cells], 0))
        far = lengths[:, None] - places
        seen.append(there & (far < kind.window))
        distances.append(far)
    context = (torch.cat(keys, 1).transpose(1, 2), torch.cat(values, 1).transpose(1, 2))
    return _plain(q[:, :, 0], *context, torch.cat(seen, 1), torch.cat(distances, 1).clamp(min=0), kind)


def _plain(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, distances: torch.Tensor, kind: Kind
) -> torch.Tensor:
    """q (rows, heads, size), keys and values (rows, key heads, context, size); `seen` and `distances` are (rows, context)."""
    rows, heads, size = q.shape
    groups = heads // keys.shape[1]
    query = q.view(rows, -1, groups, size).float()
    weights = query @ keys.float().transpose(2, 3) * kind.scale  # (rows, key heads, groups, context)
    if kind.cap:
        weights = kind.cap * torch.tanh(weights / kind.cap)
    if kind.bias is not None:
        weights += kind.bias[:, distances].transpose(0, 1).reshape(rows, -1, groups, seen.shape[1])
    weights = weights.masked_fill(~seen[:, None, None], FAR)
    if kind.sinks is not None:
        sinks = kind.sinks.float().view(1, -1, groups, 1).expand(rows, -1, -1, 1)
        weights = torch.cat([weights, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = weights.softmax(-1)
    weights = weights * seen[:, None, None]
    return (weights @ values.float()).reshape(rows, heads, -1).to(q.dtype)
