# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Successors: each row's best tokens and their log-probabilities, into the entries of its node; of all tokens, or of a trie's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous
from .answers import ENDS, INF, OPEN, RULES, WIDTH
from .beam_lists import not_above

GROUP = 64  # tokens that are looked through together


def bits_of(tokens: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Tokens as `survey` looks them up: an integer a group, a bit a token."""
    bits = np.zeros(-(-vocabulary // GROUP), np.uint64)
    for token in tokens:
        bits[token // GROUP] |= np.uint64(1 << token % GROUP)
    return torch.from_numpy(bits.view(np.int64))


@triton.jit
def survey(
    logits, logits_row, total, maxima, banned, counters, V,
    ANY_BANNED: tl.constexpr, EDITED: tl.constexpr, G: tl.constexpr, C: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """A row's log-sum-exp, if it is one of the rows in use, and the greatest logit of each of its G groups of C tokens.

    Edited rows are log-probabilities already: their log-sum-exp counts as 0. `banned`: a bit for each token of a group.
    """
    wait_for_previous(OVERLAP)
    r = tl.program_id(0).to(tl.int64)
    if r < tl.load(counters):
        group = tl.arange(0, G)
        at = group[:, None] * C + tl.arange(0, C)[None, :]
        x = tl.load(logits + r * logits_row + at, mask=at < V, other=-INF).to(tl.float32)
        if EDITED:
            tl.store(total + r, 0.0)
        else:
            peak = tl.max(tl.max(x, 1), 0)
            sum_all = peak + tl.log(tl.sum(tl.sum(tl.exp(x - peak), 1), 0))
            if sum_all != sum_all:
                tl.store(counters + 6, 1)
            tl.store(total + r, sum_all)
        if ANY_BANNED:
            bits = tl.load(banned + group, mask=group * C < V, other=0)
            none = ((bits[:, None] >> tl.arange(0, C)[None, :]) & 1) != 0
            x = tl.where(none, -INF, x)
            tl.store(logits + r * logits_row + at, x, mask=none)
        tl.store(maxima + r * G + group, tl.max(x, 1))


@triton.jit
def keep_best(
    logits, logits_row, total, maxima, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt,
    V, W, P, G: tl.constexpr, C: tl.constexpr, WP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Top of a row, as many as its input's width, ties to the smaller token. Within the prompt: its next token, for nothing.

    The best is looked for among the groups' maxima, and only its own group is looked through again. What was taken is
    overwritten in `logits`.
    """
    wait_for_previous(OVERLAP)
    r = tl.program_id(0)
    if r < tl.load(counters):
        row = logits + r.to(tl.int64) * logits_row
        group = tl.arange(0, G)
        c = tl.arange(0, C)
        most = tl.load(maxima + r.to(tl.int64) * G + group)
        j = tl.arange(0, WP)
        best = tl.full([WP], -INF, tl.float32)
        which = tl.zeros([WP], tl.int32)
        i = 0
        wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        while i < wanted:
            top = tl.max(most, 0)
            g = tl.min(tl.where(most == top, group, G - 1), 0)
            tl.debug_barrier()
            y = tl.load(row + g * C + c, mask=g * C + c < V, other=-INF).to(tl.float32)
            place = tl.min(tl.where(y == top, c, C - 1), 0)
            tl.store(row + g * C + c, tl.full([C], -INF, tl.float32), mask=(c == place) & (g * C + c < V))
            most = tl.where(group == g, tl.max(tl.where(c == place, -INF, y), 0), most)
            best = tl.where(j == i, top, best)
            which = tl.where(j == i, tl.minimum(g * C + place, V - 1), which)
            i += 1
        write(best, which, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def write(best, which, total, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP: tl.constexpr):
    """The entries of a row's node."""
    j = tl.arange(0, WP)
    t = tl.load(row_length + r)
    forced = t + 1 < P
    which = tl.where(forced, tl.load(prompt + tl.where(forced, t + 1, 0)), which)
    gain = tl.minimum(best - total, 0.0)
    gain = tl.where(forced, tl.where(j == 0, 0.0, -INF), gain)
    mark = tl.load(ends + which, mask=j < W, other=0).to(tl.int32) * ENDS
    e = tl.load(row_node + r).to(tl.int64) * W + j
    tl.store(logprob + e, gain, mask=j < W)
    tl.store(token + e, which | tl.where(forced, 0, mark), mask=j < W)
    tl.store(child + e, tl.full([WP], OPEN, tl.int32), mask=j < W)


@triton.jit
def keep_given(best, which, total, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP: tl.constexpr):
    """The same for what was found elsewhere: best logits and tokens (rows, W), sorted, and their log-sum-exp."""
    r = tl.program_id(0)
    j = tl.arange(0, WP)
    some = tl.load(best + r * W + j, mask=j < W, other=-INF)
    ids = tl.load(which + r * W + j, mask=j < W, other=0).to(tl.int32)
    write(some, ids, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def survey_part(
    logits, logits_row, sums, maxima, banned, counters, V, P, ANY_BANNED: tl.constexpr, G: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """A part's log-sum-exp, and the greatest logit of each of its G groups of C tokens."""
    r = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if r < tl.load(counters):
        group = part * G + tl.arange(0, G)
        at = group[:, None] * C + tl.arange(0, C)[None, :]
        x = tl.load(logits + r * logits_row + at, mask=at < V, other=-INF).to(tl.float32)
        peak = tl.max(tl.max(x, 1), 0)
        low = tl.where(peak > -INF, peak, 0.0)
        tl.store(sums + r * P + part, low + tl.log(tl.sum(tl.sum(tl.exp(x - low), 1), 0)))
        if ANY_BANNED:
            bits = tl.load(banned + group, mask=group * C < V, other=0)
            none = ((bits[:, None] >> tl.arange(0, C)[None, :]) & 1) != 0
            x = tl.where(none, -INF, x)
            tl.store(logits + r * logits_row + at, x, mask=none)
        tl.store(maxima + r * P * G + group, tl.max(x, 1))


@triton.jit
def sum_parts(sums, total, counters, P, EDITED: tl.constexpr, PP: tl.constexpr):
    """A row's log-sum-exp, of its parts'. Edited rows are log-probabilities already: theirs counts as 0."""
    r = tl.program_id(0)
    if r < tl.load(counters):
        part = tl.arange(0, PP)
        x = tl.load(sums + r * P + part, mask=part < P, other=-INF)
        peak = tl.max(x, 0)
        sum_all = peak + tl.log(tl.sum(tl.exp(x - peak), 0))
        if EDITED:
            sum_all = tl.zeros_like(sum_all)
        if sum_all != sum_all:
            tl.store(counters + 6, 1)
        tl.store(total + r, sum_all)


LOWEST = tl.constexpr(-(1 << 63))
LAST = tl.constexpr((1 << 31) - 1)


@triton.jit
def child_of(place, w, trie_tokens, trie_first):
    """The child of node `place` of the trie that token w leads to: it is there, since w was one of its children."""
    low = tl.load(trie_first + place)
    high = tl.load(trie_first + place + 1)
    while low < high:
        half = (low + high) // 2
        less = tl.load(trie_tokens + half) < w
        low = tl.where(less, half + 1, low)
        high = tl.where(less, high, half)
    return low


@triton.jit
def key_of(x, w):
    """Logit and token as one number: the greater logit, then the smaller token has the greater; LOWEST stands for none."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ LAST, bits)  # in the order of the numbers
    return tl.where(x > -INF, (bits.to(tl.int64) << 32) | (w ^ LAST).to(tl.int64), LOWEST)


@triton.jit
def of_key(key):
    """The logit and the token; -inf and 0 for none."""
    bits = (key >> 32).to(tl.int32)
    bits = tl.where(bits < 0, bits ^ LAST, bits)
    there = key > LOWEST
    return tl.where(there, bits.to(tl.float32, bitcast=True), -INF), tl.where(there, (key & LAST).to(tl.int32) ^ LAST, 0)


@triton.jit
def children_of(r, row_length, row_entry, row_node, token, trie_first, trie_tokens, trie_items, node_place, eos, W, P):
    """Where in the trie a row is, which its node is told: the first of its children, how many they are, how many with what ends
    an output there, and whether an item ends."""
    e = tl.load(row_entry + r)
    place = 0
    if tl.load(row_length + r) >= P:
        place = child_of(tl.load(node_place + e // W), tl.load(token + e) & (ENDS - 1), trie_tokens, trie_first)
    tl.store(node_place + tl.load(row_node + r), place)
    begin = tl.load(trie_first + place)
    many = tl.load(trie_first + place + 1) - begin
    item = tl.load(trie_items + place) >= 0
    return begin, many, many + tl.where(item, tl.load(eos), 0), item


@triton.jit
def keys_of(i, row, begin, many, every, item, trie_tokens, eos, ends):
    """The i-th of what may follow a row: its children, then what ends an output, which may be among them."""
    of_trie = i < many
    ending = (i >= many) & (i < every)
    w = tl.load(trie_tokens + begin + i, mask=of_trie, other=0)
    w = tl.where(ending, tl.load(eos + 1 + i - many, mask=ending, other=0), w)
    twice = of_trie & item & (tl.load(ends + w, mask=of_trie, other=0) != 0)
    x = tl.load(row + w, mask=(of_trie | ending) & (twice == 0), other=-INF).to(tl.float32) + 0.0
    return key_of(x, w)


@triton.jit
def keep_children(
    logits, logits_row, total, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt, row_entry,
    trie_tokens, trie_first, trie_items, node_place, eos, V, W, P, WP: tl.constexpr, LANES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """As `successors.keep_best`, of a row's children in the trie, and of what ends an output where an item ends.

    Up to FEW are sorted at once. Of more, the WP best so far and the next are sorted together, as many as there are LANES; or,
    where the best alone would be more than these, LANES of them are merged into the best so far, which lie among the entries.
    """
    r = tl.program_id(0)
    if r < tl.load(counters):
        begin, many, every, item = children_of(
            r, row_length, row_entry, row_node, token, trie_first, trie_tokens, trie_items, node_place, eos, W, P
        )
        row = logits + r.to(tl.int64) * logits_row
        sum_all = tl.load(total + r)
        wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        first = tl.load(row_node + r).to(tl.int64) * W
        if every <= FEW:
            f = tl.arange(0, FEW)
            of_few = tl.sort(keys_of(f, row, begin, many, every, item, trie_tokens, eos, ends), 0, True)
            x, w = of_key(tl.where(f < wanted, of_few, LOWEST))
            write(x, w, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, FEW)
            rest = FEW + tl.arange(0, WP)
            tl.store(logprob + first + rest, tl.full([WP], -INF, tl.float32), mask=rest < W)
        elif WP < LANES:
            j = tl.arange(0, LANES)
            best = tl.full([LANES], LOWEST, tl.int64)
            seen = 0
            while seen < every:
                fresh = (seen == 0) | (j >= WP)
                i = tl.where(fresh, tl.where(seen == 0, j, seen + j - WP), every)
                key = keys_of(i, row, begin, many, every, item, trie_tokens, eos, ends)
                best = tl.sort(tl.where(fresh, key, best), 0, True)
                seen += tl.where(seen == 0, LANES, LANES - WP)
            logit, which = of_key(tl.where(j < wanted, best, LOWEST))
            write(logit, which, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, LANES)
        else:
            lanes = tl.arange(0, LANES)
            m = 0
            seen = 0
            while seen < every:
                key = keys_of(seen + lanes, row, begin, many, every, item, trie_tokens, eos, ends)
                m = merge_keys(tl.sort(key, 0, True), logprob + first, token + first, child + first, m, W, LANES)
                seen += LANES
            j = tl.arange(0, WP)
            logit = tl.load(logprob + first + j, mask=(j < m) & (j < wanted), other=-INF)
            which = tl.load(token + first + j, mask=j < m, other=0)
            tl.debug_barrier()
            write(logit, which, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def merge_keys(key, logit, token, places, m, W, LANES: tl.constexpr):
    """Merge sorted keys into the m best so far, of which there are at most W; returns how many there are then.

    `places`: room for a number of each key (W is more than LANES).
    """
    lanes = tl.arange(0, LANES)
    comes = key > LOWEST
    before = tl.zeros_like(lanes)
    high = tl.where(comes, m, 0)
    while tl.max(high - before, 0) > 0:
        half = (before + high) // 2
        asked = before < high
        x = tl.load(logit + half, mask=asked, other=-INF)
        ahead = key_of(x, tl.load(token + half, mask=asked, other=0)) > key
        before = tl.where(asked & ahead, half + 1, before)
        high = tl.where(asked & (ahead == 0), half, high)
    tl.debug_barrier()
    tl.store(places + lanes, before, mask=comes)
    tl.debug_barrier()
    many = tl.sum(comes.to(tl.int32), 0)
    start = tl.cdiv(m, LANES) * LANES - LANES
    while start >= 0:  # from the end: members only move back
        at = start + lanes
        to = at + not_above(places, many, at)
        x = tl.load(logit + at, mask=at < m, other=-INF)
        w = tl.load(token + at, mask=at < m, other=0)
        tl.debug_barrier()
        tl.store(logit + to, x, mask=(at < m) & (to < W))
        tl.store(token + to, w, mask=(at < m) & (to < W))
        start -= LANES
    x, w = of_key(key)
    tl.store(logit + before + lanes, x, mask=comes & (before + lanes < W))
    tl.store(token + before + lanes, w, mask=comes & (before + lanes < W))
    tl.debug_barrier()
    return tl.minimum(W, m + many)
