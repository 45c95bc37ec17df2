# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Lists of hypotheses on the device (`beams` says what they hold), and how children come into them.

Of a beam that one program can hold, the list is held, and siblings are compared with all of it. Of a wider one, the next children
of many members come together: each finds its place by bisection, and what is behind them moves, a tile at a time. Either way a
list is the best k of what came, whatever came with what.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import ENDS, INF, OPEN, precedes


@triton.jit
def put(value, entry, tie, node, pushed, to, x_value, x_entry, x_tie, x_node, x_pushed, there):
    """Write cells."""
    tl.store(value + to, x_value, mask=there)
    tl.store(entry + to, x_entry, mask=there)
    tl.store(tie + to, x_tie, mask=there)
    tl.store(node + to, x_node, mask=there)
    tl.store(pushed + to, x_pushed, mask=there)


@triton.jit
def merge(value, entry, tie, node, pushed, count, at, c_value, c_entry, c_tie, c_node, c_in, k, KP: tl.constexpr):
    """Merge siblings, sorted, into list `at`; says whether a member fell off whose children had been pushed, and whether one
    entered that is scored already."""
    lanes = tl.arange(0, KP)
    cells = at.to(tl.int64) * KP + lanes
    m = tl.load(count + at)
    there = lanes < m
    x_value = tl.load(value + cells, mask=there, other=-INF)
    x_entry = tl.load(entry + cells, mask=there, other=0)
    x_tie = tl.load(tie + cells, mask=there, other=0)
    x_node = tl.load(node + cells, mask=there, other=OPEN)
    x_pushed = tl.load(pushed + cells, mask=there, other=0)
    tl.debug_barrier()  # all is read before any of it is overwritten
    ahead = precedes(c_value[None, :], c_tie, c_entry[None, :], x_value[:, None], x_tie[:, None], x_entry[:, None])
    before_x = tl.sum((ahead & c_in[None, :]).to(tl.int32), 1)
    before_c = tl.sum(((ahead == 0) & there[:, None]).to(tl.int32), 0)
    x_place = lanes + before_x
    c_place = tl.cumsum(c_in.to(tl.int32), 0) - 1 + before_c
    moves = there & (x_place < k) & (before_x > 0)
    to = at.to(tl.int64) * KP + x_place
    put(value, entry, tie, node, pushed, to, x_value, x_entry, x_tie, x_node, x_pushed, moves)
    enters = c_in & (c_place < k)
    to = at.to(tl.int64) * KP + c_place
    zeros = tl.zeros_like(c_place)
    put(value, entry, tie, node, pushed, to, c_value, c_entry, c_tie + zeros, c_node, zeros.to(tl.int8), enters)
    tl.store(count + at, tl.minimum(k, m + tl.sum(c_in.to(tl.int32), 0)))
    tl.debug_barrier()
    fell = tl.max(tl.where(there & (x_place >= k), x_pushed, 0).to(tl.int32), 0)
    again = tl.max((enters & (c_node >= 0)).to(tl.int32), 0)
    return fell, again


@triton.jit
def push(
    value, entry, tie, node, pushed, count, logprob, token, child, hashes, parent, v, below, last_length, k, W,
    KP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Let the children of node `parent`, whose value is v, onto the beam whose lists begin at `below`.

    They come best first, CP at a time, until the beam refuses one. `last_length`: the unfinished count as finished, if 1.
    """
    fell = 0
    again = 0
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
            a, b = merge(
                value, entry, tie, node, pushed, count, below, c_value, c_entry, c_tie, c_node, possible & (ends == 0), k, KP
            )
            fell = fell | a
            again = again | b
            if tl.max(ends.to(tl.int32), 0) > 0:
                merge(value, entry, tie, node, pushed, count, below + 1, c_value, c_entry, c_tie, c_node, ends, k, KP)
        else:
            j0 = W
    return fell, again


@triton.jit
def members_before(value, tie, entry, first, m, c_value, c_tie, c_entry, c_in):
    """How many of the m members of a list precede each candidate."""
    low = tl.zeros_like(c_tie)
    high = tl.where(c_in, m, 0)
    while tl.max(high - low, 0) > 0:
        half = (low + high) // 2
        asked = low < high
        x_value = tl.load(value + first + half, mask=asked, other=0.0)
        x_tie = tl.load(tie + first + half, mask=asked, other=0)
        x_entry = tl.load(entry + first + half, mask=asked, other=0)
        before = precedes(x_value, x_tie, x_entry, c_value, c_tie, c_entry)
        low = tl.where(asked & before, half + 1, low)
        high = tl.where(asked & (before == 0), half, high)
    return low


@triton.jit
def not_above(sorted_numbers, many, x):
    """How many of so many numbers, which rise, are not above each x."""
    low = tl.zeros_like(x)
    high = low + many
    while tl.max(high - low, 0) > 0:
        half = (low + high) // 2
        asked = low < high
        counts = tl.load(sorted_numbers + half, mask=asked, other=0) <= x
        low = tl.where(asked & counts, half + 1, low)
        high = tl.where(asked & (counts == 0), half, high)
    return low


@triton.jit
def merge_many(
    value, entry, tie, node, pushed, count, places, at, c_value, c_entry, c_tie, c_node, c_in, k,
    KP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """As `merge`, of candidates in any order and from any parents. `places`: room for a number of each of them."""
    first = at.to(tl.int64) * KP
    m = tl.load(count + at)
    many = tl.sum(c_in.to(tl.int32), 0)
    before = members_before(value, tie, entry, first, m, c_value, c_tie, c_entry, c_in)
    ahead = precedes(c_value[None, :], c_tie[None, :], c_entry[None, :], c_value[:, None], c_tie[:, None], c_entry[:, None])
    rank = tl.sum((ahead & c_in[None, :]).to(tl.int32), 1)
    tl.debug_barrier()  # who reads the places of the merge before has done so
    tl.store(places + rank, before, mask=c_in)
    tl.debug_barrier()
    least = tl.min(tl.where(c_in, before, KP), 0)
    fell = 0
    start = tl.cdiv(m, TILE) * TILE - TILE
    while (start >= 0) & (start + TILE > least):  # from the end: members only move back
        lanes = start + tl.arange(0, TILE)
        by = not_above(places, many, lanes)
        moves = (lanes < m) & (by > 0)
        x_value = tl.load(value + first + lanes, mask=moves, other=-INF)
        x_entry = tl.load(entry + first + lanes, mask=moves, other=0)
        x_tie = tl.load(tie + first + lanes, mask=moves, other=0)
        x_node = tl.load(node + first + lanes, mask=moves, other=OPEN)
        x_pushed = tl.load(pushed + first + lanes, mask=moves, other=0)
        tl.debug_barrier()  # all of the tile is read before any of it is overwritten
        to = lanes + by
        stays = moves & (to < k)
        put(value, entry, tie, node, pushed, first + to, x_value, x_entry, x_tie, x_node, x_pushed, stays)
        fell = fell | tl.max(tl.where(moves & (to >= k), x_pushed, 0).to(tl.int32), 0)
        start -= TILE
    to = before + rank
    enters = c_in & (to < k)
    unpushed = tl.zeros_like(to).to(tl.int8)
    put(value, entry, tie, node, pushed, first + to, c_value, c_entry, c_tie, c_node, unpushed, enters)
    tl.store(count + at, tl.minimum(k, m + many))
    tl.debug_barrier()
    return fell, tl.max((enters & (c_node >= 0)).to(tl.int32), 0)


@triton.jit
def push_many(
    value, entry, tie, node, pushed, count, logprob, token, child, hashes, turns, places, at, below, todo, last_length, k, W,
    KP: tl.constexpr, TILE: tl.constexpr, CROWD: tl.constexpr,
):  # fmt: skip
    """As `push`, for all members `todo` of list `at`: of a CROWD at a time the next child; of fewer parents the next few."""
    tl.store(turns + tl.cumsum(todo.to(tl.int32), 0) - 1, tl.arange(0, KP), mask=todo)
    tl.debug_barrier()
    many = tl.sum(todo.to(tl.int32), 0)
    c = tl.arange(0, CROWD)
    fell = 0
    again = 0
    begun = 0
    while begun < many:
        few = 1
        while few * 2 * (many - begun) <= CROWD:
            few *= 2
        turn = begun + c // few
        has = turn < many
        cell = at.to(tl.int64) * KP + tl.load(turns + turn, mask=has, other=0)
        v = tl.load(value + cell, mask=has, other=-INF)
        p = tl.load(node + cell, mask=has, other=0).to(tl.int64)
        c_tie = tl.load(hashes + p, mask=has, other=0)
        j0 = 0
        while j0 < W:
            j = j0 + c % few
            c_entry = p * W + j
            c_logprob = tl.load(logprob + c_entry, mask=has & (j < W), other=-INF)
            c_value = v + c_logprob.to(tl.float64)
            full = tl.load(count + below) >= k
            last = tl.load(value + below.to(tl.int64) * KP + k - 1, mask=full, other=-INF)
            may = (c_logprob > -INF) & (c_value >= last)
            j0 += few
            if tl.max(may.to(tl.int32), 0) > 0:
                c_token = tl.load(token + c_entry, mask=may, other=0)
                c_node = tl.load(child + c_entry, mask=may, other=OPEN)
                ends = may & (((c_token & ENDS) != 0) | (last_length != 0))
                a, b = merge_many(
                    value, entry, tie, node, pushed, count, places, below, c_value, c_entry, c_tie, c_node, may & (ends == 0), k,
                    KP, TILE,
                )  # fmt: skip
                fell = fell | a
                again = again | b
                if tl.max(ends.to(tl.int32), 0) > 0:
                    merge_many(
                        value, entry, tie, node, pushed, count, places, below + 1, c_value, c_entry, c_tie, c_node, ends, k,
                        KP, TILE,
                    )  # fmt: skip
            else:
                j0 = W
        begun += CROWD // few
    return fell, again
