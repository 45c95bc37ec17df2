# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Rows of the next step: shared out among the inputs, and written down, a node each."""

from __future__ import annotations

import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous
from .answers import BEAM, ENDS, FULL, OPEN, RULES

ROWS, ACTIVE, ALL_ROWS, STEPS, FREE, CAP, BROKEN = range(7)  # what `counters` holds; rows in use come first
FLYING, DONE = 1, 2  # what `status` says of a slot; 0 is nobody's
LEAVING = tl.constexpr(3)  # nobody's either, once its nodes are free


@triton.jit
def share(
    wants, grant, first, counters, rules, R, S, TIMES, PICKS: tl.constexpr, SP: tl.constexpr, OVERLAP: tl.constexpr = False
):
    """Who gets how many of R rows: as many as it wants, up to a level that is the same for all; the first inputs one more.

    The first pick of an input is needed for certain, so nobody gets a second row before everybody has one. Beyond that, rows
    are given until the step is full, TIMES a beam for each input: on a busy device what is scored ahead, and may not be needed,
    costs as much as the rest.
    """
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
    get = tl.minimum(want, low)
    left = room - tl.sum(get, 0)
    more = (want > low).to(tl.int32)
    get += more * (tl.cumsum(more, 0) <= left).to(tl.int32)
    total = tl.sum(get, 0)
    tl.store(grant + lanes, get, mask=lanes < S)
    tl.store(first + lanes, tl.cumsum(get, 0) - get, mask=lanes < S)
    tl.store(counters + 0, total)
    tl.store(counters + 1, active)
    tl.store(counters + 2, tl.load(counters + 2) + total)
    tl.store(counters + 3, tl.load(counters + 3) + (total > 0).to(tl.int32))
    tl.store(counters + 4, free - total)
    tl.store(counters + 5, tl.maximum(1, 2 * likely // tl.maximum(active, 1)))


@triton.jit
def assign(
    wants, grant, first, counters, pick_length, pick_place, entry, node, child, scored, stack,
    row_node, row_input, row_length, row_entry, rows, steps, L, PICKS: tl.constexpr, KP: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """An input's picks become rows as far as it has any, each with a new node; the others stay open."""
    wait_for_previous(OVERLAP)
    s = tl.program_id(0)
    want = tl.load(wants + s)
    get = tl.load(grant + s)
    j = tl.arange(0, PICKS)
    t = tl.load(pick_length + s * PICKS + j, mask=j < want, other=0)
    place = tl.load(pick_place + s * PICKS + j, mask=j < want, other=0)
    cell = (2 * (s * L + t)).to(tl.int64) * KP + place
    mine = j < get
    row = tl.load(first + s) + j
    e = tl.load(entry + cell, mask=mine, other=0)
    new = tl.load(stack + tl.load(counters + 4) + row, mask=mine, other=0)
    tl.store(node + cell, tl.where(mine, new, OPEN), mask=j < want)
    tl.store(child + e, new, mask=mine)
    tl.store(scored + s * L + t, tl.full([PICKS], 1, tl.int32), mask=mine)
    tl.store(row_node + row, new, mask=mine)
    tl.store(row_input + row, tl.zeros_like(row) + s, mask=mine)
    tl.store(row_length + row, t, mask=mine)
    tl.store(row_entry + row, e, mask=mine)
    tl.store(rows + s, tl.load(rows + s) + get)
    tl.store(steps + s, tl.load(steps + s) + (get > 0).to(tl.int32))


@triton.jit
def mixed(before, w):
    """The hash of tokens that end with w, given that of those before it."""
    return ((before ^ w) * 73244475) ^ ((before >> 7) + (w << 11))


@triton.jit
def enter(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP: tl.constexpr
):  # fmt: skip
    """A row's node gets its token, its path of ancestors and its hash. Returns token, length and input. Unused rows: node 0."""
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
    tl.store(hashes + new, mixed(before, w))
    tl.store(node_token + new, w)
    tl.store(node_input + new, tl.where(used, s, -1))
    return w, t, s


@triton.jit
def embed(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes,
    embedding, positions, out, scale, L, W, D, LP: tl.constexpr, DP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """`enter`, and the row's embedding goes to `out`."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0)
    w, t, _ = enter(row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP)
    d = tl.arange(0, DP)
    x = tl.load(embedding + w.to(tl.int64) * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    x = x.to(out.dtype.element_ty).to(tl.float32)  # where the model rounds too
    x += tl.load(positions + t * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(out + r.to(tl.int64) * D + d, x, mask=d < D)


@triton.jit
def place(
    row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes,
    source_length, tokens, positions, L, W, BEHIND: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """`enter`, and the row's token and position. BEHIND: outputs stand behind their inputs."""
    r = tl.program_id(0)
    w, t, s = enter(row_node, row_input, row_length, row_entry, counters, token, paths, node_token, node_input, hashes, L, W, LP)
    if BEHIND:
        t += tl.where(r < tl.load(counters), tl.load(source_length + s), 0)
    tl.store(tokens + r, w.to(tl.int64))
    tl.store(positions + r, t.to(tl.int64))


@triton.jit
def reclaim(node_input, status, stack, counters, N, BLOCK: tl.constexpr):
    """Nodes of inputs that leave go back onto the stack of free ones, in any order: no result depends on a node's number."""
    nodes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(node_input + nodes, mask=nodes < N, other=-1)
    gone = tl.load(status + s, mask=s >= 0, other=0) == LEAVING
    count = tl.sum(gone.to(tl.int32), 0)
    if count > 0:
        place = tl.atomic_add(counters + 4, count) + tl.cumsum(gone.to(tl.int32), 0) - 1
        tl.store(stack + place, nodes, mask=gone)
        tl.store(node_input + nodes, tl.full([BLOCK], -1, tl.int32), mask=gone)
