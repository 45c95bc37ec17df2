# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Successors: each row's best tokens and their log-probabilities, into the entries of its node."""

from __future__ import annotations

import triton
import triton.language as tl

from .beams import ENDS, INF, OPEN


@triton.jit
def keep_best(
    logits, row_node, row_length, logprob, token, child, ends, banned, prompt, counters,
    V, W, P, ANY_BANNED: tl.constexpr, VP: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """Top W of V logits, ties to the smaller token, less their log-sum-exp. Within the prompt: its next token, for nothing."""
    r = tl.program_id(0)
    lanes = tl.arange(0, VP)
    x = tl.load(logits + r.to(tl.int64) * V + lanes, mask=lanes < V, other=-INF).to(tl.float32)
    peak = tl.max(x, 0)
    total = peak + tl.log(tl.sum(tl.exp(x - peak), 0))
    if total != total:
        tl.store(counters + 6, 1)
    if ANY_BANNED:
        x = tl.where(tl.load(banned + lanes, mask=lanes < V, other=1) != 0, -INF, x)
    j = tl.arange(0, WP)
    best = tl.full([WP], -INF, tl.float32)
    which = tl.zeros([WP], tl.int32)
    i = 0
    while i < W:
        top, place = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
        best = tl.where(j == i, top, best)
        which = tl.where(j == i, place, which)
        x = tl.where(lanes == place, -INF, x)
        i += 1
    write(best, which, total, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


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
