# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Successors: each row's best tokens and their log-probabilities, into the entries of its node."""

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
def keep_given(
    best, which, total, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP: tl.constexpr
):  # fmt: skip
    """The same for what was found elsewhere: best logits and tokens (rows, W), sorted, and their log-sum-exp."""
    r = tl.program_id(0)
    j = tl.arange(0, WP)
    some = tl.load(best + r * W + j, mask=j < W, other=-INF)
    ids = tl.load(which + r * W + j, mask=j < W, other=0).to(tl.int32)
    write(some, ids, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)
