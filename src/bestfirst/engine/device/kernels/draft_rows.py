# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Kernels of drafts on the device: which hypotheses are guessed to follow the rows of a step, and what comes of the guesses.

A guessed row has a node as every row has; its parent is a row of the same step. What the step says of the parent tells whether
the guess is one of its successors: if so the node is linked to that entry, and the beams find it scored when they come to it
(`beams`); if not, it was a wasted row. Nothing else of a search knows of drafts, so its answers and `calls` are those without.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import ENDS, INF
from .rows import mixed

LONGEST = tl.constexpr(4)  # tokens that are compared where an output may repeat what came before


@triton.jit
def rank_of(s, grant, S, SP: tl.constexpr):
    """How many inputs before s have rows, and how many have in all."""
    lanes = tl.arange(0, SP)
    active = tl.load(grant + lanes, mask=lanes < S, other=0) > 0
    return tl.sum((active & (lanes < s)).to(tl.int32), 0), tl.sum(active.to(tl.int32), 0)


@triton.jit
def propose(
    first, grant, level_node, level_length, level_value, pick_length, pick_place, value, said, token, limit, counters, stack,
    paths, node_token, node_input, hashes, guessed, rows, drafted, source_length, next_used, next_first, next_grant, next_node,
    next_input, next_length, next_token, next_position, next_value, next_parent, late_node, late_length, late_token,
    late_position, S, L, C, D, V, PICKS, FIRST: tl.constexpr, LAST: tl.constexpr, BEHIND: tl.constexpr, KP: tl.constexpr,
    LP: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """The D likeliest continuations of an input's rows by one token become rows of the next level, a node each.

    `said` and `token`: of each node, the log-probabilities and tokens of C guesses. FIRST: the rows are those of the step;
    otherwise they were guessed, D for each input that has any. A guess that there is not becomes a row of node 0, nobody's.
    LAST: they are also written down by the input's slot, for the smaller model to read at the next step.
    """
    s = tl.program_id(0)
    mine = tl.load(grant + s)
    rank, active = rank_of(s, grant, S, SP)
    tl.store(next_used, active * D)
    tl.store(next_first + s, rank * D)
    tl.store(next_grant + s, tl.where(mine > 0, D, 0))
    if mine > 0:
        i = tl.arange(0, RP)
        c = tl.arange(0, CP)
        if FIRST:
            there = i < mine
            t = tl.load(pick_length + s * PICKS + i, mask=there, other=0)
            cell = (2 * (s * L + t)).to(tl.int64) * KP + tl.load(pick_place + s * PICKS + i, mask=there, other=0)
            v = tl.load(value + cell, mask=there, other=-INF)
            row = tl.load(first + s) + i
        else:
            there = i < D
            row = rank * D + i
            t = tl.load(level_length + row, mask=there, other=0)
            v = tl.load(level_value + row, mask=there, other=-INF)
        node = tl.load(level_node + row, mask=there, other=0)
        e = node.to(tl.int64)[:, None] * C + c[None, :]
        inside = there[:, None] & (c[None, :] < C) & ((t + 1)[:, None] < tl.load(limit + s))
        gain = tl.load(said + e, mask=inside, other=-INF)
        w = tl.load(token + e, mask=inside, other=0)
        possible = inside & ((w & ENDS) == 0) & ((w & (ENDS - 1)) < V) & (gain > -INF)
        score = tl.where(possible, v[:, None] + gain.to(tl.float64), -INF)
        d = tl.arange(0, DP)
        d_value = tl.full([DP], -INF, tl.float64)
        d_token = tl.zeros([DP], tl.int32)
        d_length = tl.zeros([DP], tl.int32)
        d_parent = tl.zeros([DP], tl.int32)
        j = 0
        while j < D:
            tops = tl.max(score, 1)
            top = tl.max(tops, 0)
            r = tl.min(tl.where(tops == top, i, RP - 1), 0)
            here = i == r
            column = tl.max(tl.where(here[:, None], score, -INF), 0)
            at = tl.min(tl.where(column == top, c, CP - 1), 0)
            both = here[:, None] & (c == at)[None, :]
            d_value = tl.where(d == j, top, d_value)
            d_token = tl.where(d == j, tl.sum(tl.sum(tl.where(both, w, 0), 1), 0), d_token)
            d_length = tl.where(d == j, tl.sum(tl.where(here, t, 0), 0) + 1, d_length)
            d_parent = tl.where(d == j, tl.sum(tl.where(here, node, 0), 0), d_parent)
            score = tl.where(both, -INF, score)
            j += 1
        live = (d_value > -INF) & (d < D)
        many = tl.sum(live.to(tl.int32), 0)
        free = tl.atomic_add(counters + 4, -many) - many
        if free < 0:  # no nodes are left: nothing is guessed
            tl.atomic_add(counters + 4, many)
            live = live & (d < 0)
            many = 0
        new = tl.load(stack + free + tl.cumsum(live.to(tl.int32), 0) - 1, mask=live, other=0)
        d_length = tl.where(live, d_length, 0)
        d_token = tl.where(live, d_token & (ENDS - 1), 0)
        out = rank * D + d
        tl.store(next_node + out, new, mask=d < D)
        tl.store(next_input + out, s + tl.zeros_like(d), mask=d < D)
        tl.store(next_length + out, d_length, mask=d < D)
        tl.store(next_token + out, d_token.to(tl.int64), mask=d < D)
        behind = tl.load(source_length + s) if BEHIND else 0
        tl.store(next_position + out, (d_length + behind).to(tl.int64), mask=d < D)
        tl.store(next_value + out, tl.where(live, d_value, -INF), mask=d < D)
        tl.store(next_parent + out, tl.where(live, d_parent, -1), mask=d < D)
        if LAST:
            tl.store(late_node + s * D + d, new, mask=d < D)
            tl.store(late_length + s * D + d, d_length, mask=d < D)
            tl.store(late_token + s * D + d, d_token.to(tl.int64), mask=d < D)
            tl.store(late_position + s * D + d, (d_length + behind).to(tl.int64), mask=d < D)
        lengths = tl.arange(0, LP)
        old = tl.load(
            paths + d_parent.to(tl.int64)[:, None] * L + lengths[None, :],
            mask=live[:, None] & (lengths[None, :] < d_length[:, None]), other=0,
        )  # fmt: skip
        path = tl.where(lengths[None, :] == d_length[:, None], new[:, None], old)
        reached = live[:, None] & (lengths[None, :] <= d_length[:, None])
        tl.store(paths + new.to(tl.int64)[:, None] * L + lengths[None, :], path, mask=reached)
        tl.store(hashes + new, mixed(tl.load(hashes + d_parent, mask=live, other=0), d_token), mask=live)
        tl.store(node_token + new, d_token, mask=live)
        tl.store(node_input + new, s + tl.zeros_like(d), mask=live)
        tl.store(guessed + new, tl.full([DP], 1, tl.int8), mask=live)
        tl.store(rows + s, tl.load(rows + s) + many)
        tl.store(drafted + s, tl.load(drafted + s) + many)
        tl.atomic_add(counters + 2, many)


@triton.jit
def unite(
    first, grant, row_node, row_length, row_token, row_position, level_node, level_length, level_token, level_position,
    level_parent, node_input, guessed, used, all_first, all_grant, all_node, all_input, all_length, all_token, all_position,
    all_parent, depth, level, D, S, most, LATE: tl.constexpr, RP: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """All rows of an input side by side: those of the step, then what was guessed, D of each of `depth` levels. LATE: that is the
    last level of the step before, by slots, as far as it is still the input's. The last program clears what is left of `most`."""
    s = tl.program_id(0)
    rank, active = rank_of(s, grant, S, SP)
    mine = tl.load(grant + s, mask=s < S, other=0)
    begin = tl.load(first + s, mask=s < S, other=0)
    start = begin + rank * depth * D
    every = tl.where(mine > 0, mine + depth * D, 0)
    tl.store(all_first + s, start, mask=s < S)
    tl.store(all_grant + s, every, mask=s < S)
    lanes = tl.arange(0, SP)
    total = tl.sum(tl.load(grant + lanes, mask=lanes < S, other=0), 0) + active * depth * D
    tl.store(used, total)
    if s == S:
        while total < most:
            i = total + tl.arange(0, RP)
            nobody = tl.zeros([RP], tl.int32)
            tl.store(all_node + i, nobody, mask=i < most)
            tl.store(all_length + i, nobody, mask=i < most)
            tl.store(all_input + i, nobody, mask=i < most)
            tl.store(all_token + i, nobody.to(tl.int64), mask=i < most)
            tl.store(all_position + i, nobody.to(tl.int64), mask=i < most)
            total += RP
    i0 = 0
    while i0 < every:
        i = i0 + tl.arange(0, RP)
        own = i < tl.minimum(mine, every)
        old = begin + i
        late = (i >= mine) & (i < every)
        j = i - mine
        at = (j // D) * level + rank * D + j % D
        if LATE:
            at = s * D + j
            late = late & (tl.load(node_input + tl.load(level_node + at, mask=late, other=0), mask=late, other=-1) == s)
        node = tl.load(row_node + old, mask=own, other=0)
        tl.store(guessed + node, tl.zeros([RP], tl.int8), mask=own)
        node = tl.where(late, tl.load(level_node + at, mask=late, other=0), node)
        tl.store(all_node + start + i, node, mask=i < every)
        length = tl.load(row_length + old, mask=own, other=0)
        length = tl.where(late, tl.load(level_length + at, mask=late, other=0), length)
        tl.store(all_length + start + i, length, mask=i < every)
        word = tl.load(row_token + old, mask=own, other=0)
        word = tl.where(late, tl.load(level_token + at, mask=late, other=0), word)
        tl.store(all_token + start + i, word, mask=i < every)
        place = tl.load(row_position + old, mask=own, other=0)
        place = tl.where(late, tl.load(level_position + at, mask=late, other=0), place)
        tl.store(all_position + start + i, place, mask=i < every)
        if LATE == 0:
            tl.store(all_parent + start + i, tl.load(level_parent + at, mask=late, other=-1), mask=i < every)
        tl.store(all_input + start + i, s + tl.zeros_like(i), mask=i < every)
        i0 += RP


@triton.jit
def link(counters, row_node, row_token, parents, logprob, token, child, W, WP: tl.constexpr):
    """A guessed row whose token is a successor of its parent is that entry's node."""
    r = tl.program_id(0)
    if r < tl.load(counters):
        parent = tl.load(parents + r)
        if parent >= 0:
            j = tl.arange(0, WP)
            e = parent.to(tl.int64) * W + j
            w = tl.load(token + e, mask=j < W, other=-1)
            known = tl.load(logprob + e, mask=j < W, other=-INF) > -INF
            found = known & (w == tl.load(row_token + r).to(tl.int32))  # what ends an output has a mark, and is not found
            tl.store(child + e, tl.load(row_node + r) + tl.zeros_like(j), mask=found)


@triton.jit
def look_up(
    used, row_node, row_input, row_length, paths, node_token, source_tokens, source_start, source_length, said, token, L, C,
    SIZE: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """What followed the last few tokens of a row where they came before, in its input or in itself: C guesses, the longest match
    first, of these the latest."""
    r = tl.program_id(0)
    if r < tl.load(used):
        s = tl.load(row_input + r)
        n = tl.load(source_length + s)
        node = tl.load(row_node + r).to(tl.int64)
        start = tl.load(source_start + s)
        last = n + tl.load(row_length + r)  # where the row's own token stands, behind its input
        c = tl.arange(0, CP)
        best = tl.full([CP], -1, tl.int32)  # matched tokens and place, as one number
        word = tl.zeros([CP], tl.int32)
        at = 0
        while at < last:
            q = at + tl.arange(0, SIZE)
            agree = tl.zeros([SIZE], tl.int32)
            same = q < last
            j = 0
            while j < LONGEST:
                p = q - j
                o = last - j
                x = word_at(p, same & (p >= 0), n, start, node, paths, node_token, source_tokens, L)
                y = word_at(o, o >= 0, n, start, node, paths, node_token, source_tokens, L)
                same = same & (p >= 0) & (x == y)
                agree += same.to(tl.int32)
                j += 1
            follows = word_at(q + 1, agree > 0, n, start, node, paths, node_token, source_tokens, L)
            key = tl.where(agree > 0, agree * (1 << 24) + q, -1)
            i = 0
            while i < C:
                top = tl.max(key, 0)
                w = tl.max(tl.where(key == top, follows, -1), 0)
                again = tl.max(((word == w) & (best >= 0)).to(tl.int32), 0)
                least = tl.min(tl.where(c < C, best, 1 << 30), 0)
                place = tl.min(tl.where((best == least) & (c < C), c, CP - 1), 0)
                place = tl.where(again != 0, tl.min(tl.where((word == w) & (best >= 0), c, CP - 1), 0), place)
                better = (c == place) & (top > best) & (top >= 0)
                word = tl.where(better, w, word)
                best = tl.where(better, top, best)
                key = tl.where(follows == w, -1, key)
                i += 1
            at += SIZE
        size = best // (1 << 24)
        sure = tl.where(size >= LONGEST, -0.1, tl.where(size == 3, -0.2, tl.where(size == 2, -0.5, -1.2)))
        e = node * C + c
        tl.store(said + e, tl.where(best >= 0, sure, -INF), mask=c < C)
        tl.store(token + e, word, mask=c < C)


@triton.jit
def word_at(place, there, n, start, node, paths, node_token, source_tokens, L):
    """The token at a place of an input that is followed by a row's path."""
    of_path = there & (place >= n)
    at = tl.load(paths + node * L + place - n, mask=of_path, other=0)
    mine = tl.load(node_token + at, mask=of_path, other=-1)
    return tl.where(place >= n, mine, tl.load(source_tokens + start + place, mask=there & (place < n), other=-1))


@triton.jit
def count_used(slots, node, count, deepest, guessed, drafted, out, L, KP: tl.constexpr):
    """Of each input, how many rows were guessed, and how many of these are on its beams."""
    i = tl.program_id(0)
    s = tl.load(slots + i)
    lanes = tl.arange(0, KP)
    used = 0
    t = tl.load(deepest + s)
    while t >= 0:
        at = 2 * (s * L + t)
        x = tl.load(node + at.to(tl.int64) * KP + lanes, mask=lanes < tl.load(count + at), other=-1)
        used += tl.sum(tl.load(guessed + x, mask=x >= 0, other=0).to(tl.int32), 0)
        t -= 1
    tl.store(out + 2 * i, tl.load(drafted + s))
    tl.store(out + 2 * i + 1, used)
