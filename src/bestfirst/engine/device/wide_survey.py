# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""The survey of a large vocabulary, a row in parts (`successors.survey` has the small one's)."""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import INF


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
