"""Rows of the next step: how many each input gets, a new node for each row, and what the decoder reads of it."""

from __future__ import annotations

import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous
from .answers import BEAM, ENDS, FULL, OPEN, RULES

ROWS, ACTIVE, ALL_ROWS, STEPS, FREE, CAP, BROKEN = range(7)  # columns of `counters`; kernels load the rows in use from its first
IN_FLIGHT, DONE = 1, 2  # `status` of a slot; 0: empty
LEAVING = tl.constexpr(3)  # empty as soon as its nodes are reclaimed


@triton.jit
def share_rows(
    wants, grant, first, counters, rules, R, S, TIMES, PICKS: tl.constexpr, SP: tl.constexpr, OVERLAP: tl.constexpr = False
):
    """Grant up to R rows: each input gets as many as it wants, up to a level common to all inputs; the first ones get one more.
    An input's first pick is certainly needed, so no input gets a second row before every one has one. Beyond that, TIMES beams
    per input are granted, up to `FULL` rows: on a busy device, rows ahead that turn out to be useless cost as much as others."""
    wait_for_previous(OVERLAP)
    lanes = tl.arange(0, SP)
    want = tl.load(wants + lanes, mask=lanes < S, other=0)
    free = tl.load(counters + 4)
    active = tl.sum((want > 0).to(tl.int32), 0)
    beams = tl.sum(tl.load(rules + lanes * RULES + BEAM, mask=want > 0, other=0), 0)
    full = tl.max(tl.load(rules + lanes * RULES + FULL, mask=want > 0, other=0), 0)
    likely = tl.minimum(R, tl.maximum(active, tl.minimum(TIMES * beams, full)))
    room = tl.minimum(likely, free)
    low = 0
    high = PICKS
    while low < high:
        level = (low + high + 1) // 2
        fits = tl.sum(tl.minimum(want, level), 0) <= room
        low = tl.where(fits, level, low)
        high = tl.where(fits, high, level - 1)
    granted = tl.minimum(want, low)
    spare = room - tl.sum(granted, 0)
    wants_more = (want > low).to(tl.int32)
    granted += wants_more * (tl.cumsum(wants_more, 0) <= spare).to(tl.int32)
    total = tl.sum(granted, 0)
    tl.store(grant + lanes, granted, mask=lanes < S)
    tl.store(first + lanes, tl.cumsum(granted, 0) - granted, mask=lanes < S)
    tl.store(counters + 0, total)
    tl.store(counters + 1, active)
    tl.store(counters + 2, tl.load(counters + 2) + total)
    tl.store(counters + 3, tl.load(counters + 3) + (total > 0).to(tl.int32))
    tl.store(counters + 4, free - total)
    tl.store(counters + 5, tl.maximum(1, 2 * likely // tl.maximum(active, 1)))


@triton.jit
def assign_rows(
    wants, grant, first, counters, pick_length, pick_place, entry, node, child, scored, stack,
    row_node, row_input, row_length, row_entry, rows, steps, L, PICKS: tl.constexpr, KP: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Turn an input's picks into rows, as many as it was granted, each with a node off the free stack; others stay open."""
    wait_for_previous(OVERLAP)
    s = tl.program_id(0)
    want = tl.load(wants + s)
    granted = tl.load(grant + s)
    j = tl.arange(0, PICKS)
    t = tl.load(pick_length + s * PICKS + j, mask=j < want, other=0)
    place = tl.load(pick_place + s * PICKS + j, mask=j < want, other=0)
    cell = (2 * (s * L + t)).to(tl.int64) * KP + place
    valid = j < granted
    row = tl.load(first + s) + j
    e = tl.load(entry + cell, mask=valid, other=0)
    new = tl.load(stack + tl.load(counters + 4) + row, mask=valid, other=0)
    tl.store(node + cell, tl.where(valid, new, OPEN), mask=j < want)
    tl.store(child + e, new, mask=valid)
    tl.store(scored + s * L + t, tl.full([PICKS], 1, tl.int32), mask=valid)
    tl.store(row_node + row, new, mask=valid)
    tl.store(row_input + row, tl.zeros_like(row) + s, mask=valid)
    tl.store(row_length + row, t, mask=valid)
    tl.store(row_entry + row, e, mask=valid)
    tl.store(rows + s, tl.load(rows + s) + granted)
    tl.store(steps + s, tl.load(steps + s) + (granted > 0).to(tl.int32))


@triton.jit
def hash_with(prefix_hash, token):
    """Hash of a token sequence that ends with `token`, from the hash of the tokens before it."""
    return ((prefix_hash ^ token) * 73244475) ^ ((prefix_hash >> 7) + (token << 11))


@triton.jit
def init_node(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP: tl.constexpr
):  # fmt: skip
    """Write the token, path of ancestors and hash of a row's node. Returns token, length and input. Unused rows use node 0."""
    r = tl.program_id(0)
    lanes = tl.arange(0, LP)
    used = r < tl.load(counters)
    new = tl.where(used, tl.load(row_node + r), 0).to(tl.int64)
    t = tl.where(used, tl.load(row_length + r), 0)
    s = tl.where(used, tl.load(row_input + r), 0)
    e = tl.load(row_entry + r, mask=used, other=0)
    tl.debug_barrier()
    tl.store(row_node + r, new.to(tl.int32))
    tl.store(row_length + r, t)
    tl.store(row_input + r, s)
    w = tl.load(token + e) & (ENDS - 1)
    w = tl.where(used, w, 0)
    parent = tl.where(t > 0, e // W, 0)
    path = tl.load(paths + parent * L + lanes, mask=lanes < t, other=0)
    path = tl.where(lanes == t, new.to(tl.int32), path)
    tl.store(paths + new * L + lanes, path, mask=lanes <= t)
    before = tl.where(t > 0, tl.load(hashes + parent), 0)
    tl.store(hashes + new, hash_with(before, w))
    tl.store(node_token + new, w)
    tl.store(node_input + new, tl.where(used, s, -1))
    return w, t, s


@triton.jit
def embed(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes,
    embedding, positions, out, scale, L, W, D, LP: tl.constexpr, DP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """`init_node`, then the embedding of the row to `out` (rows, D)."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0)
    w, t, _ = init_node(
        row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP
    )
    d = tl.arange(0, DP)
    x = tl.load(embedding + w.to(tl.int64) * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    x = x.to(out.dtype.element_ty).to(tl.float32)  # round where the model rounds
    x += tl.load(positions + t * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(out + r.to(tl.int64) * D + d, x, mask=d < D)


@triton.jit
def write_tokens(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes,
    source_length, tokens, positions, L, W, BEHIND: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """`init_node`, then the token and position of the row. BEHIND: positions follow those of the input (decoder-only)."""
    r = tl.program_id(0)
    w, t, s = init_node(
        row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP
    )
    if BEHIND:
        t += tl.where(r < tl.load(counters), tl.load(source_length + s), 0)
    tl.store(tokens + r, w.to(tl.int64))
    tl.store(positions + r, t.to(tl.int64))


@triton.jit
def reclaim(node_input, status, stack, counters, N, BLOCK: tl.constexpr):
    """Push the nodes of leaving inputs back onto the free stack, in any order: no result depends on a node's number."""
    nodes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(node_input + nodes, mask=nodes < N, other=-1)
    leaving = tl.load(status + s, mask=s >= 0, other=0) == LEAVING
    count = tl.sum(leaving.to(tl.int32), 0)
    if count > 0:
        place = tl.atomic_add(counters + 4, count) + tl.cumsum(leaving.to(tl.int32), 0) - 1
        tl.store(stack + place, nodes, mask=leaving)
        tl.store(node_input + nodes, tl.full([BLOCK], -1, tl.int32), mask=leaving)
