"""Drafted rows: hypotheses that are likely to follow the rows of a step, and what the step confirms of them.

A drafted row has a node like any other; its parent is a row of the same step. If the parent's successors include its token, the
node is linked to that entry, and the beams find it scored when they reach it (`beams`); if not, the row was wasted. Nothing else
of a search knows about drafts, so answers and `calls` are those of a search without them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import ENDS, INF
from .rows import hash_with

LONGEST_MATCH = tl.constexpr(4)  # tokens that `look_up` compares at most


@triton.jit
def rank_among_active(s, grant, S, SP: tl.constexpr):
    """How many inputs before s have rows, and how many have rows in all."""
    lanes = tl.arange(0, SP)
    active = tl.load(grant + lanes, mask=lanes < S, other=0) > 0
    return tl.sum((active & (lanes < s)).to(tl.int32), 0), tl.sum(active.to(tl.int32), 0)


@triton.jit
def propose(
    first, grant, level_node, level_length, level_value, pick_length, pick_place, value, guess_logprob, guess_token, limit,
    counters, stack, paths, node_token, node_input, hashes, guessed, rows, drafted, source_length, next_used, next_first,
    next_grant, next_node, next_input, next_length, next_token, next_position, next_value, next_parent, late_node, late_length,
    late_token, late_position, S, L, C, D, V, PICKS, FIRST: tl.constexpr, LAST: tl.constexpr, BEHIND: tl.constexpr,
    KP: tl.constexpr, LP: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """Make rows of the next level: the D likeliest one-token continuations of each input's rows, with a node for each.

    `guess_logprob` and `guess_token`: C candidates per node. FIRST: the input's rows are those of the step; otherwise drafted
    ones, D per active input. A missing draft becomes a row of node 0, which no input uses. LAST: the level is also stored by
    slot, because the smaller model reads it in the next step.
    """
    s = tl.program_id(0)
    granted = tl.load(grant + s)
    rank, active = rank_among_active(s, grant, S, SP)
    tl.store(next_used, active * D)
    tl.store(next_first + s, rank * D)
    tl.store(next_grant + s, tl.where(granted > 0, D, 0))
    if granted > 0:
        i = tl.arange(0, RP)
        c = tl.arange(0, CP)
        if FIRST:
            valid = i < granted
            t = tl.load(pick_length + s * PICKS + i, mask=valid, other=0)
            cell = (2 * (s * L + t)).to(tl.int64) * KP + tl.load(pick_place + s * PICKS + i, mask=valid, other=0)
            v = tl.load(value + cell, mask=valid, other=-INF)
            row = tl.load(first + s) + i
        else:
            valid = i < D
            row = rank * D + i
            t = tl.load(level_length + row, mask=valid, other=0)
            v = tl.load(level_value + row, mask=valid, other=-INF)
        node = tl.load(level_node + row, mask=valid, other=0)
        e = node.to(tl.int64)[:, None] * C + c[None, :]
        in_range = valid[:, None] & (c[None, :] < C) & ((t + 1)[:, None] < tl.load(limit + s))
        gain = tl.load(guess_logprob + e, mask=in_range, other=-INF)
        guess = tl.load(guess_token + e, mask=in_range, other=0)
        possible = in_range & ((guess & ENDS) == 0) & ((guess & (ENDS - 1)) < V) & (gain > -INF)
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
            d_token = tl.where(d == j, tl.sum(tl.sum(tl.where(both, guess, 0), 1), 0), d_token)
            d_length = tl.where(d == j, tl.sum(tl.where(here, t, 0), 0) + 1, d_length)
            d_parent = tl.where(d == j, tl.sum(tl.where(here, node, 0), 0), d_parent)
            score = tl.where(both, -INF, score)
            j += 1
        live = (d_value > -INF) & (d < D)
        n_new = tl.sum(live.to(tl.int32), 0)
        free = tl.atomic_add(counters + 4, -n_new) - n_new
        if free < 0:  # out of nodes: draft nothing
            tl.atomic_add(counters + 4, n_new)
            live = live & (d < 0)
            n_new = 0
        new = tl.load(stack + free + tl.cumsum(live.to(tl.int32), 0) - 1, mask=live, other=0)
        d_length = tl.where(live, d_length, 0)
        d_token = tl.where(live, d_token & (ENDS - 1), 0)
        out = rank * D + d
        tl.store(next_node + out, new, mask=d < D)
        tl.store(next_input + out, s + tl.zeros_like(d), mask=d < D)
        tl.store(next_length + out, d_length, mask=d < D)
        tl.store(next_token + out, d_token.to(tl.int64), mask=d < D)
        offset = tl.load(source_length + s) if BEHIND else 0
        tl.store(next_position + out, (d_length + offset).to(tl.int64), mask=d < D)
        tl.store(next_value + out, tl.where(live, d_value, -INF), mask=d < D)
        tl.store(next_parent + out, tl.where(live, d_parent, -1), mask=d < D)
        if LAST:
            tl.store(late_node + s * D + d, new, mask=d < D)
            tl.store(late_length + s * D + d, d_length, mask=d < D)
            tl.store(late_token + s * D + d, d_token.to(tl.int64), mask=d < D)
            tl.store(late_position + s * D + d, (d_length + offset).to(tl.int64), mask=d < D)
        lengths = tl.arange(0, LP)
        old = tl.load(
            paths + d_parent.to(tl.int64)[:, None] * L + lengths[None, :],
            mask=live[:, None] & (lengths[None, :] < d_length[:, None]), other=0,
        )  # fmt: skip
        path = tl.where(lengths[None, :] == d_length[:, None], new[:, None], old)
        reached = live[:, None] & (lengths[None, :] <= d_length[:, None])
        tl.store(paths + new.to(tl.int64)[:, None] * L + lengths[None, :], path, mask=reached)
        tl.store(hashes + new, hash_with(tl.load(hashes + d_parent, mask=live, other=0), d_token), mask=live)
        tl.store(node_token + new, d_token, mask=live)
        tl.store(node_input + new, s + tl.zeros_like(d), mask=live)
        tl.store(guessed + new, tl.full([DP], 1, tl.int8), mask=live)
        tl.store(rows + s, tl.load(rows + s) + n_new)
        tl.store(drafted + s, tl.load(drafted + s) + n_new)
        tl.atomic_add(counters + 2, n_new)


@triton.jit
def gather_rows(
    first, grant, row_node, row_length, row_token, row_position, level_node, level_length, level_token, level_position,
    level_parent, node_input, guessed, used, all_first, all_grant, all_node, all_input, all_length, all_token, all_position,
    all_parent, depth, level, D, S, most, LATE: tl.constexpr, RP: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """Lay all rows of an input side by side: those of the step, then the drafts, D for each of `depth` levels. LATE: the level
    is the last one of the step before, by slot, where its nodes are still the input's. The last program clears up to `most`."""
    s = tl.program_id(0)
    rank, active = rank_among_active(s, grant, S, SP)
    granted = tl.load(grant + s, mask=s < S, other=0)
    begin = tl.load(first + s, mask=s < S, other=0)
    start = begin + rank * depth * D
    n_rows = tl.where(granted > 0, granted + depth * D, 0)
    tl.store(all_first + s, start, mask=s < S)
    tl.store(all_grant + s, n_rows, mask=s < S)
    lanes = tl.arange(0, SP)
    total = tl.sum(tl.load(grant + lanes, mask=lanes < S, other=0), 0) + active * depth * D
    tl.store(used, total)
    if s == S:
        while total < most:
            i = total + tl.arange(0, RP)
            unused = tl.zeros([RP], tl.int32)
            tl.store(all_node + i, unused, mask=i < most)
            tl.store(all_length + i, unused, mask=i < most)
            tl.store(all_input + i, unused, mask=i < most)
            tl.store(all_token + i, unused.to(tl.int64), mask=i < most)
            tl.store(all_position + i, unused.to(tl.int64), mask=i < most)
            total += RP
    i0 = 0
    while i0 < n_rows:
        i = i0 + tl.arange(0, RP)
        is_own = i < tl.minimum(granted, n_rows)
        own_row = begin + i
        late = (i >= granted) & (i < n_rows)
        j = i - granted
        at = (j // D) * level + rank * D + j % D
        if LATE:
            at = s * D + j
            late = late & (tl.load(node_input + tl.load(level_node + at, mask=late, other=0), mask=late, other=-1) == s)
        node = tl.load(row_node + own_row, mask=is_own, other=0)
        tl.store(guessed + node, tl.zeros([RP], tl.int8), mask=is_own)
        node = tl.where(late, tl.load(level_node + at, mask=late, other=0), node)
        tl.store(all_node + start + i, node, mask=i < n_rows)
        length = tl.load(row_length + own_row, mask=is_own, other=0)
        length = tl.where(late, tl.load(level_length + at, mask=late, other=0), length)
        tl.store(all_length + start + i, length, mask=i < n_rows)
        token = tl.load(row_token + own_row, mask=is_own, other=0)
        token = tl.where(late, tl.load(level_token + at, mask=late, other=0), token)
        tl.store(all_token + start + i, token, mask=i < n_rows)
        place = tl.load(row_position + own_row, mask=is_own, other=0)
        place = tl.where(late, tl.load(level_position + at, mask=late, other=0), place)
        tl.store(all_position + start + i, place, mask=i < n_rows)
        if LATE == 0:
            tl.store(all_parent + start + i, tl.load(level_parent + at, mask=late, other=-1), mask=i < n_rows)
        tl.store(all_input + start + i, s + tl.zeros_like(i), mask=i < n_rows)
        i0 += RP


@triton.jit
def link_guesses(counters, row_node, row_token, parents, logprob, token, child, W, WP: tl.constexpr):
    """Where the token of a drafted row is a successor of its parent, make the row's node the child of that entry."""
    r = tl.program_id(0)
    if r < tl.load(counters):
        parent = tl.load(parents + r)
        if parent >= 0:
            j = tl.arange(0, WP)
            e = parent.to(tl.int64) * W + j
            successor = tl.load(token + e, mask=j < W, other=-1)
            known = tl.load(logprob + e, mask=j < W, other=-INF) > -INF
            confirmed = known & (successor == tl.load(row_token + r).to(tl.int32))  # never one that ends an output: it is flagged
            tl.store(child + e, tl.load(row_node + r) + tl.zeros_like(j), mask=confirmed)


@triton.jit
def look_up(
    used, row_node, row_input, row_length, paths, node_token, source_tokens, source_start, source_length, guess_logprob,
    guess_token, L, C, SIZE: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Prompt lookup: C candidates for what follows a row, from earlier occurrences of its last tokens in its input or its own
    output. Longer matches are preferred, among equals the latest."""
    r = tl.program_id(0)
    if r < tl.load(used):
        s = tl.load(row_input + r)
        n = tl.load(source_length + s)
        node = tl.load(row_node + r).to(tl.int64)
        start = tl.load(source_start + s)
        last = n + tl.load(row_length + r)  # position of the row's own token, behind its input
        c = tl.arange(0, CP)
        best = tl.full([CP], -1, tl.int32)  # (matched tokens, position) packed into one number
        guess = tl.zeros([CP], tl.int32)
        first = 0
        while first < last:
            end = first + tl.arange(0, SIZE)
            matched = tl.zeros([SIZE], tl.int32)
            same = end < last
            j = 0
            while j < LONGEST_MATCH:
                earlier = end - j
                own = last - j
                x = token_at(earlier, same & (earlier >= 0), n, start, node, paths, node_token, source_tokens, L)
                y = token_at(own, own >= 0, n, start, node, paths, node_token, source_tokens, L)
                same = same & (earlier >= 0) & (x == y)
                matched += same.to(tl.int32)
                j += 1
            follows = token_at(end + 1, matched > 0, n, start, node, paths, node_token, source_tokens, L)
            key = tl.where(matched > 0, matched * (1 << 24) + end, -1)
            i = 0
            while i < C:
                top = tl.max(key, 0)
                w = tl.max(tl.where(key == top, follows, -1), 0)
                known = tl.max(((guess == w) & (best >= 0)).to(tl.int32), 0)
                worst = tl.min(tl.where(c < C, best, 1 << 30), 0)
                place = tl.min(tl.where((best == worst) & (c < C), c, CP - 1), 0)
                place = tl.where(known != 0, tl.min(tl.where((guess == w) & (best >= 0), c, CP - 1), 0), place)
                better = (c == place) & (top > best) & (top >= 0)
                guess = tl.where(better, w, guess)
                best = tl.where(better, top, best)
                key = tl.where(follows == w, -1, key)
                i += 1
            first += SIZE
        n_matched = best // (1 << 24)
        logprob = tl.where(n_matched >= LONGEST_MATCH, -0.1, tl.where(n_matched == 3, -0.2, tl.where(n_matched == 2, -0.5, -1.2)))
        e = node * C + c
        tl.store(guess_logprob + e, tl.where(best >= 0, logprob, -INF), mask=c < C)
        tl.store(guess_token + e, guess, mask=c < C)


@triton.jit
def token_at(place, valid, n, start, node, paths, node_token, source_tokens, L):
    """The token at a position of the source tokens followed by a row's path."""
    on_path = valid & (place >= n)
    ancestor = tl.load(paths + node * L + place - n, mask=on_path, other=0)
    path_token = tl.load(node_token + ancestor, mask=on_path, other=-1)
    return tl.where(place >= n, path_token, tl.load(source_tokens + start + place, mask=valid & (place < n), other=-1))


@triton.jit
def count_drafted(slots, node, count, deepest, guessed, drafted, out, L, KP: tl.constexpr):
    """Per input, write how many rows were drafted, and how many of these are on its beams."""
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
