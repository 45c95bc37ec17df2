"""Sorted lists of hypotheses, and how children are merged into them (`beams` defines lists and cells).

A beam that fits into one program's registers is merged in one go, each batch of siblings against all members. For a wider beam,
the next children of many parents are merged together: each finds its place by bisection, and the members behind it move tile by
tile. Either way a list ends up as the k best of everything that was pushed, whatever the order of the merges.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import ENDS, INF, OPEN, precedes


@triton.jit
def write_cells(value, entry, tie, node, pushed, to, x_value, x_entry, x_tie, x_node, x_pushed, valid):
    """Store cells at `to`, where `valid`."""
    tl.store(value + to, x_value, mask=valid)
    tl.store(entry + to, x_entry, mask=valid)
    tl.store(tie + to, x_tie, mask=valid)
    tl.store(node + to, x_node, mask=valid)
    tl.store(pushed + to, x_pushed, mask=valid)


@triton.jit
def merge_siblings(value, entry, tie, node, pushed, count, at, c_value, c_entry, c_tie, c_node, c_in, k, KP: tl.constexpr):
    """Merge siblings c, sorted and of one parent, into list `at`: places come from comparing all of them with all members.
    Returns (lost, scored_entered): whether a member dropped out whose children had been pushed, and whether a child entered that
    has been scored already, so that its own children can be pushed."""
    lanes = tl.arange(0, KP)
    cells = at.to(tl.int64) * KP + lanes
    m = tl.load(count + at)
    valid = lanes < m
    x_value = tl.load(value + cells, mask=valid, other=-INF)
    x_entry = tl.load(entry + cells, mask=valid, other=0)
    x_tie = tl.load(tie + cells, mask=valid, other=0)
    x_node = tl.load(node + cells, mask=valid, other=OPEN)
    x_pushed = tl.load(pushed + cells, mask=valid, other=0)
    tl.debug_barrier()  # all reads before any write
    ahead = precedes(c_value[None, :], c_tie, c_entry[None, :], x_value[:, None], x_tie[:, None], x_entry[:, None])
    before_x = tl.sum((ahead & c_in[None, :]).to(tl.int32), 1)
    before_c = tl.sum(((ahead == 0) & valid[:, None]).to(tl.int32), 0)
    x_place = lanes + before_x
    c_place = tl.cumsum(c_in.to(tl.int32), 0) - 1 + before_c
    moves = valid & (x_place < k) & (before_x > 0)
    to = at.to(tl.int64) * KP + x_place
    write_cells(value, entry, tie, node, pushed, to, x_value, x_entry, x_tie, x_node, x_pushed, moves)
    enters = c_in & (c_place < k)
    to = at.to(tl.int64) * KP + c_place
    zeros = tl.zeros_like(c_place)
    write_cells(value, entry, tie, node, pushed, to, c_value, c_entry, c_tie + zeros, c_node, zeros.to(tl.int8), enters)
    tl.store(count + at, tl.minimum(k, m + tl.sum(c_in.to(tl.int32), 0)))
    tl.debug_barrier()
    lost = tl.max(tl.where(valid & (x_place >= k), x_pushed, 0).to(tl.int32), 0)
    scored_entered = tl.max((enters & (c_node >= 0)).to(tl.int32), 0)
    return lost, scored_entered


@triton.jit
def push_children(
    value, entry, tie, node, pushed, count, logprob, token, child, hashes, parent, v, below, last_length, k, W,
    KP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Push the children of node `parent`, of value v, onto the beam whose lists begin at `below`, best first, CP at a time, until
    the beam refuses a batch. Returns as `merge_siblings`. `last_length` != 0: unfinished children count as finished."""
    lost = 0
    scored_entered = 0
    j0 = 0
    p = parent.to(tl.int64)
    c_tie = tl.load(hashes + p)
    while j0 < W:
        j = j0 + tl.arange(0, CP)
        c_entry = p * W + j
        c_logprob = tl.load(logprob + c_entry, mask=j < W, other=-INF)
        c_token = tl.load(token + c_entry, mask=j < W, other=0)
        c_node = tl.load(child + c_entry, mask=j < W, other=OPEN)
        c_value = v + c_logprob.to(tl.float64)
        possible = c_logprob > -INF
        best = tl.max(tl.where(possible, c_value, -INF), 0)
        full = tl.load(count + below) >= k
        last = tl.load(value + below.to(tl.int64) * KP + k - 1, mask=full, other=-INF)
        j0 += CP
        if best >= last and best > -INF:
            ends = possible & (((c_token & ENDS) != 0) | (last_length != 0))
            lost_now, entered_now = merge_siblings(
                value, entry, tie, node, pushed, count, below, c_value, c_entry, c_tie, c_node, possible & (ends == 0), k, KP
            )
            lost = lost | lost_now
            scored_entered = scored_entered | entered_now
            if tl.max(ends.to(tl.int32), 0) > 0:
                merge_siblings(value, entry, tie, node, pushed, count, below + 1, c_value, c_entry, c_tie, c_node, ends, k, KP)
        else:
            j0 = W
    return lost, scored_entered


@triton.jit
def count_preceding(value, tie, entry, first, m, c_value, c_tie, c_entry, c_in):
    """How many of the m members of a list precede each candidate, by bisection."""
    low = tl.zeros_like(c_tie)
    high = tl.where(c_in, m, 0)
    while tl.max(high - low, 0) > 0:
        mid = (low + high) // 2
        searching = low < high
        x_value = tl.load(value + first + mid, mask=searching, other=0.0)
        x_tie = tl.load(tie + first + mid, mask=searching, other=0)
        x_entry = tl.load(entry + first + mid, mask=searching, other=0)
        before = precedes(x_value, x_tie, x_entry, c_value, c_tie, c_entry)
        low = tl.where(searching & before, mid + 1, low)
        high = tl.where(searching & (before == 0), mid, high)
    return low


@triton.jit
def count_not_above(sorted_numbers, n, x):
    """How many of n ascending numbers are at most x, for each x."""
    low = tl.zeros_like(x)
    high = low + n
    while tl.max(high - low, 0) > 0:
        mid = (low + high) // 2
        searching = low < high
        not_above_x = tl.load(sorted_numbers + mid, mask=searching, other=0) <= x
        low = tl.where(searching & not_above_x, mid + 1, low)
        high = tl.where(searching & (not_above_x == 0), mid, high)
    return low


@triton.jit
def merge_candidates(
    value, entry, tie, node, pushed, count, places, at, c_value, c_entry, c_tie, c_node, c_in, k,
    KP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """As `merge_siblings`, for candidates in any order and of any parents. `places`: scratch space, one number per candidate."""
    first = at.to(tl.int64) * KP
    m = tl.load(count + at)
    n_new = tl.sum(c_in.to(tl.int32), 0)
    before = count_preceding(value, tie, entry, first, m, c_value, c_tie, c_entry, c_in)
    ahead = precedes(c_value[None, :], c_tie[None, :], c_entry[None, :], c_value[:, None], c_tie[:, None], c_entry[:, None])
    rank = tl.sum((ahead & c_in[None, :]).to(tl.int32), 1)
    tl.debug_barrier()  # the previous merge has read its places
    tl.store(places + rank, before, mask=c_in)
    tl.debug_barrier()
    least = tl.min(tl.where(c_in, before, KP), 0)
    lost = 0
    start = tl.cdiv(m, TILE) * TILE - TILE
    while (start >= 0) & (start + TILE > least):  # from the end, since members only move back
        lanes = start + tl.arange(0, TILE)
        shift = count_not_above(places, n_new, lanes)
        moves = (lanes < m) & (shift > 0)
        x_value = tl.load(value + first + lanes, mask=moves, other=-INF)
        x_entry = tl.load(entry + first + lanes, mask=moves, other=0)
        x_tie = tl.load(tie + first + lanes, mask=moves, other=0)
        x_node = tl.load(node + first + lanes, mask=moves, other=OPEN)
        x_pushed = tl.load(pushed + first + lanes, mask=moves, other=0)
        tl.debug_barrier()  # all reads of the tile before any write
        to = lanes + shift
        stays = moves & (to < k)
        write_cells(value, entry, tie, node, pushed, first + to, x_value, x_entry, x_tie, x_node, x_pushed, stays)
        lost = lost | tl.max(tl.where(moves & (to >= k), x_pushed, 0).to(tl.int32), 0)
        start -= TILE
    to = before + rank
    enters = c_in & (to < k)
    unpushed = tl.zeros_like(to).to(tl.int8)
    write_cells(value, entry, tie, node, pushed, first + to, c_value, c_entry, c_tie, c_node, unpushed, enters)
    tl.store(count + at, tl.minimum(k, m + n_new))
    tl.debug_barrier()
    return lost, tl.max((enters & (c_node >= 0)).to(tl.int32), 0)


@triton.jit
def push_children_of_many(
    value, entry, tie, node, pushed, count, logprob, token, child, hashes, turns, places, at, below, todo, last_length, k, W,
    KP: tl.constexpr, TILE: tl.constexpr, CROWD: tl.constexpr,
):  # fmt: skip
    """As `push_children`, for all members `todo` of list `at`: one child each of CROWD parents at a time, or more of fewer
    parents. `turns`: scratch space for the indices of these members."""
    tl.store(turns + tl.cumsum(todo.to(tl.int32), 0) - 1, tl.arange(0, KP), mask=todo)
    tl.debug_barrier()
    n_parents = tl.sum(todo.to(tl.int32), 0)
    c = tl.arange(0, CROWD)
    lost = 0
    scored_entered = 0
    first_parent = 0
    while first_parent < n_parents:
        per_parent = 1
        while per_parent * 2 * (n_parents - first_parent) <= CROWD:
            per_parent *= 2
        which = first_parent + c // per_parent
        valid = which < n_parents
        cell = at.to(tl.int64) * KP + tl.load(turns + which, mask=valid, other=0)
        v = tl.load(value + cell, mask=valid, other=-INF)
        p = tl.load(node + cell, mask=valid, other=0).to(tl.int64)
        c_tie = tl.load(hashes + p, mask=valid, other=0)
        j0 = 0
        while j0 < W:
            j = j0 + c % per_parent
            c_entry = p * W + j
            c_logprob = tl.load(logprob + c_entry, mask=valid & (j < W), other=-INF)
            c_value = v + c_logprob.to(tl.float64)
            full = tl.load(count + below) >= k
            last = tl.load(value + below.to(tl.int64) * KP + k - 1, mask=full, other=-INF)
            possible = (c_logprob > -INF) & (c_value >= last)
            j0 += per_parent
            if tl.max(possible.to(tl.int32), 0) > 0:
                c_token = tl.load(token + c_entry, mask=possible, other=0)
                c_node = tl.load(child + c_entry, mask=possible, other=OPEN)
                ends = possible & (((c_token & ENDS) != 0) | (last_length != 0))
                lost_now, entered_now = merge_candidates(
                    value, entry, tie, node, pushed, count, places, below, c_value, c_entry, c_tie, c_node,
                    possible & (ends == 0), k, KP, TILE,
                )  # fmt: skip
                lost = lost | lost_now
                scored_entered = scored_entered | entered_now
                if tl.max(ends.to(tl.int32), 0) > 0:
                    merge_candidates(
                        value, entry, tie, node, pushed, count, places, below + 1, c_value, c_entry, c_tie, c_node, ends, k,
                        KP, TILE,
                    )  # fmt: skip
            else:
                j0 = W
        first_parent += CROWD // per_parent
    return lost, scored_entered
