# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Kept slots on the device: under `finished="keep"`, the paper's rule, a beam is the k best of what is unfinished and of what
finished on the beam before, by score; so what has finished holds a slot of every longer beam while it is good enough.

Lists are what they are under `leave`. A beam is the first part of each: `inside` of the unfinished ones of its length, `held` of
the finished ones of each length up to its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import BEAM, BEST_FIRST, INF, KEEPS, RISES, RULES, SCORE, SEARCH, best_by_length, bound, final


@triton.jit
def ranks_before(a_score, a_length, a_tie, a_entry, b_score, b_length, b_tie, b_entry):
    """Whether a comes before b among hypotheses of any length: by score, the shorter first."""
    tie = (a_tie < b_tie) | ((a_tie == b_tie) & (a_entry < b_entry))
    return (a_score > b_score) | ((a_score == b_score) & ((a_length < b_length) | ((a_length == b_length) & tie)))


@triton.jit
def finished_before(
    x_score, t, x_tie, x_entry, held, s, value, entry, tie, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr
):  # fmt: skip
    """How many of the held ones come before a hypothesis of length t."""
    lengths = tl.arange(0, LP)
    first = (2 * (s * L + lengths) + 1).to(tl.int64) * KP
    low = tl.zeros_like(held)
    high = held
    while tl.max(high - low, 0) > 0:
        half = (low + high) // 2
        asked = low < high
        score = final(tl.load(value + first + half, mask=asked, other=-INF), lengths, norms, gains, cap)
        f_tie = tl.load(tie + first + half, mask=asked, other=0)
        f_entry = tl.load(entry + first + half, mask=asked, other=0)
        before = ranks_before(score, lengths, f_tie, f_entry, x_score, t, x_tie, x_entry)
        low = tl.where(asked & before, half + 1, low)
        high = tl.where(asked & (before == 0), half, high)
    return tl.sum(low, 0)


@triton.jit
def cut(s, t, m, held, value, entry, tie, k, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr):
    """The beam of length t, of m unfinished and of the held finished ones: how many of the former are inside, which it holds."""
    lengths = tl.arange(0, LP)
    first = (2 * (s * L + t)).to(tl.int64) * KP
    inside = 0
    most = m
    while inside < most:
        half = (inside + most) // 2
        score = final(tl.load(value + first + half), t, norms, gains, cap)
        x_tie = tl.load(tie + first + half)
        x_entry = tl.load(entry + first + half)
        before = finished_before(score, t, x_tie, x_entry, held, s, value, entry, tie, norms, gains, cap, L, KP, LP)
        fits = half + before < k
        inside = tl.where(fits, half + 1, inside)
        most = tl.where(fits, most, half)
    held, _, _ = best_by_length(k - inside, held, 2 * (s * L + lengths), value, norms, gains, cap, KP, LP)
    return inside, held


@triton.jit
def last_of(s, t, inside, held, value, entry, tie, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr):
    """The last member of the beam of length t: its score, length, tie and entry."""
    lengths = tl.arange(0, LP)
    place = (2 * (s * L + lengths) + 1).to(tl.int64) * KP + held - 1
    scores = final(tl.load(value + place, mask=held > 0, other=INF), lengths, norms, gains, cap)
    scores = tl.where(held > 0, scores, INF)
    score = tl.min(scores, 0)
    length = tl.max(tl.where((held > 0) & (scores == score), lengths, -1), 0)
    place = tl.max(tl.where(lengths == length, place, 0), 0)
    its_tie = tl.load(tie + place)
    its_entry = tl.load(entry + place)
    if inside > 0:
        own = (2 * (s * L + t)).to(tl.int64) * KP + inside - 1
        own_score = final(tl.load(value + own), t, norms, gains, cap)
        own_tie = tl.load(tie + own)
        own_entry = tl.load(entry + own)
        if (length < 0) | ranks_before(score, length, its_tie, its_entry, own_score, t, own_tie, own_entry):
            score = own_score
            length = t
            its_tie = own_tie
            its_entry = own_entry
    return score, length, its_tie, its_entry


@triton.jit
def pick(x, at, LP: tl.constexpr):
    """The number of x (LP) that stands at a place."""
    return tl.sum(tl.where(tl.arange(0, LP) == at, x, 0), 0)


@triton.jit
def settle_kept(
    slots, value, entry, tie, node, count, deepest, limit, rules, caps, norm, gain, bars, out, most, L, P,
    KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """The calls of an input whose finished hypotheses are kept, into `out` (`AnyOrderSearch.calls`).

    What a member can attain (`AnyOrderSearch._attainable_kept`): it goes on until its score is behind the last of a full beam,
    and what it finishes as must not be behind the last of any longer one.
    """
    i = tl.program_id(0)
    s = tl.load(slots + i)
    mine = rules + s * RULES
    if tl.load(mine + KEEPS) != 0:
        k = tl.load(mine + BEAM)
        rises = tl.load(mine + RISES)
        norms = norm + tl.load(mine + SCORE) * LP
        gains = gain + tl.load(mine + SCORE) * LP
        cap = tl.load(caps + s)
        deep = tl.load(deepest + s)
        end = tl.load(limit + s)
        bar = tl.load(bars + s * 2)
        bar_length = tl.load(bars + s * 2 + 1).to(tl.int32)
        lengths = tl.arange(0, LP)
        lanes = tl.arange(0, KP)
        # Of each beam, forward: how many are inside, and the last, where it is full.
        held = tl.zeros([LP], tl.int32)
        insides = tl.zeros([LP], tl.int32)
        score_of = tl.full([LP], -INF, tl.float64)
        length_of = tl.zeros([LP], tl.int32)
        tie_of = tl.zeros([LP], tl.int32)
        entry_of = tl.zeros([LP], tl.int64)
        t = 0
        while t <= deep:
            here = lengths == t
            m = tl.load(count + 2 * (s * L + t))
            held = tl.where(here, tl.load(count + 2 * (s * L + t) + 1), held)
            inside, held = cut(s, t, m, held, value, entry, tie, k, norms, gains, cap, L, KP, LP)
            insides = tl.where(here, inside, insides)
            if inside + tl.sum(held, 0) >= k:
                score, length, its_tie, its_entry = last_of(
                    s, t, inside, held, value, entry, tie, norms, gains, cap, L, KP, LP
                )  # fmt: skip
                score_of = tl.where(here, score, score_of)
                length_of = tl.where(here, length, length_of)
                tie_of = tl.where(here, its_tie, tie_of)
                entry_of = tl.where(here, its_entry, entry_of)
            t += 1
        # Of each beam, what a finished one must precede to hold its slot ever after: the first of these last ones.
        slot_score = score_of
        slot_length = length_of
        slot_tie = tie_of
        slot_entry = entry_of
        t = deep - 1
        while t >= 0:
            after = t + 1
            later = ranks_before(
                pick(slot_score, after, LP), pick(slot_length, after, LP), pick(slot_tie, after, LP), pick(slot_entry, after, LP),
                pick(slot_score, t, LP), pick(slot_length, t, LP), pick(slot_tie, t, LP), pick(slot_entry, t, LP),
            )  # fmt: skip
            here = (lengths == t) & (later != 0)
            slot_score = tl.where(here, pick(slot_score, after, LP), slot_score)
            slot_length = tl.where(here, pick(slot_length, after, LP), slot_length)
            slot_tie = tl.where(here, pick(slot_tie, after, LP), slot_tie)
            slot_entry = tl.where(here, pick(slot_entry, after, LP), slot_entry)
            t -= 1
        one = tl.full([], -1.0, tl.float64)
        by_length = final(one, P, norms, gains, cap) != final(one, end, norms, gains, cap)
        calls = 0
        t = 0
        while t <= deep:
            m = pick(insides, t, LP)
            cells = (2 * (s * L + t)).to(tl.int64) * KP + lanes
            x = tl.load(value + cells, mask=lanes < m, other=-INF)
            x_tie = tl.load(tie + cells, mask=lanes < m, other=0)
            x_entry = tl.load(entry + cells, mask=lanes < m, other=0)
            counts = tl.load(node + cells, mask=lanes < m, other=-1) >= 0
            if tl.load(mine + SEARCH) == BEST_FIRST:
                best = tl.full([KP], -INF, tl.float64)
                going = counts
                u = t + 1
                while u <= deep:
                    there = final(x, u + tl.zeros([KP], tl.int32), norms, gains, cap)
                    barred = ranks_before(
                        pick(slot_score, u, LP), pick(slot_length, u, LP), pick(slot_tie, u, LP), pick(slot_entry, u, LP),
                        there, t, x_tie, x_entry,
                    )  # fmt: skip
                    best = tl.where(going & (barred == 0), tl.maximum(best, there), best)
                    behind = ranks_before(
                        pick(score_of, u, LP), pick(length_of, u, LP), pick(tie_of, u, LP), pick(entry_of, u, LP),
                        there, t, x_tie, x_entry,
                    )  # fmt: skip
                    going = going & (behind == 0)
                    u = tl.where(tl.max(going.to(tl.int32), 0) > 0, u + 1, LP)
                best = tl.where(going, tl.maximum(best, bound(x, deep, end, rises, norms, gains, cap)), best)
                reach = tl.where(by_length, best, bound(x, t, end, rises, norms, gains, cap))
                counts = counts & (best > -INF) & ((reach > bar) | ((reach == bar) & (t < bar_length)))
            calls += tl.where(t < end, tl.sum(counts.to(tl.int32), 0), 0)
            t += 1
        tl.store(out + i * (3 + 2 * most), calls - (P - 1))
