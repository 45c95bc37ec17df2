# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Successors: each row's best tokens and their log-probabilities, into the entries of its node; of all tokens, or of a trie's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from .answers import ENDS, INF, OPEN, RULES, WIDTH

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
    ANY_BANNED: tl.constexpr, EDITED: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """A row's log-sum-exp, if it is one of the rows in use, and the greatest logit of each of its G groups of C tokens.

    Edited rows are log-probabilities already: their log-sum-exp counts as 0. `banned`: a bit for each token of a group.
    """
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
    V, W, P, G: tl.constexpr, C: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """Top of a row, as many as its input's width, ties to the smaller token. Within the prompt: its next token, for nothing.

    The best is looked for among the groups' maxima, and only its own group is looked through again. What was taken is
    overwritten in `logits`.
    """
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
def keep_children(
    logits, logits_row, total, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt, row_entry,
    trie_tokens, trie_first, trie_items, node_place, eos, V, W, P, WP: tl.constexpr,
):  # fmt: skip
    """As `successors.keep_best`, of a row's children in the trie, and of what ends an output where an item ends.

    Logit and token are one number, by which all are sorted: the WP best so far and the next WP together.
    """
    r = tl.program_id(0)
    if r < tl.load(counters):
        t = tl.load(row_length + r)
        e = tl.load(row_entry + r)
        place = 0
        if t >= P:
            place = child_of(tl.load(node_place + e // W), tl.load(token + e) & (ENDS - 1), trie_tokens, trie_first)
        tl.store(node_place + tl.load(row_node + r), place)
        begin = tl.load(trie_first + place)
        many = tl.load(trie_first + place + 1) - begin
        item = tl.load(trie_items + place) >= 0
        every = many + tl.where(item, tl.load(eos), 0)
        row = logits + r.to(tl.int64) * logits_row
        j = tl.arange(0, 2 * WP)
        best = tl.full([2 * WP], LOWEST, tl.int64)
        seen = 0
        while seen < every:
            fresh = (seen == 0) | (j >= WP)
            i = tl.where(seen == 0, j, seen + j - WP)
            of_trie = fresh & (i < many)
            ending = fresh & (i >= many) & (i < every)
            w = tl.load(trie_tokens + begin + i, mask=of_trie, other=0)
            w = tl.where(ending, tl.load(eos + 1 + i - many, mask=ending, other=0), w)
            twice = of_trie & item & (tl.load(ends + w, mask=of_trie, other=0) != 0)
            x = tl.load(row + w, mask=(of_trie | ending) & (twice == 0), other=-INF).to(tl.float32) + 0.0
            bits = x.to(tl.int32, bitcast=True)
            bits = tl.where(bits < 0, bits ^ LAST, bits)  # in the order of the numbers
            key = tl.where(x > -INF, (bits.to(tl.int64) << 32) | (w ^ LAST).to(tl.int64), LOWEST)
            best = tl.sort(tl.where(fresh, key, best), 0, True)
            seen += tl.where(seen == 0, 2 * WP, WP)
        bits = (best >> 32).to(tl.int32)
        bits = tl.where(bits < 0, bits ^ LAST, bits)
        wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        value = tl.where((best > LOWEST) & (j < wanted), bits.to(tl.float32, bitcast=True), -INF)
        which = tl.where(best > LOWEST, (best & LAST).to(tl.int32) ^ LAST, 0)
        write(value, which, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, 2 * WP)
