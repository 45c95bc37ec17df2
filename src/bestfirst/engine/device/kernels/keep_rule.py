"""Rule `finished="keep"`, the paper's: finished hypotheses hold slots of longer beams while their scores are good enough.

A beam of length t is the k best, by score, of the hypotheses of that length, finished or not, and of the finished ones on the
beam before. The lists are those of rule `leave`; a beam is a prefix of each: `inside` of the unfinished list of its
length, `n_held` of the finished list of every length up to its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import BEAM, BEST_FIRST, INF, KEEPS, RISES, RULES, SCORE, SEARCH, best_by_length, bound, final


@triton.jit
def precedes_by_score(a_score, a_length, a_tie, a_entry, b_score, b_length, b_tie, b_entry):
    """Whether a precedes b, of any lengths: by score, then the shorter one, then as `precedes`."""
    tie = (a_tie < b_tie) | ((a_tie == b_tie) & (a_entry < b_entry))
    return (a_score > b_score) | ((a_score == b_score) & ((a_length < b_length) | ((a_length == b_length) & tie)))


@triton.jit
def count_finished_before(
    x_score, t, x_tie, x_entry, n_held, s, value, entry, tie, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr
):  # fmt: skip
    """How many finished slot holders (`n_held` of each length) precede hypothesis x of length t."""
    lengths = tl.arange(0, LP)
    first = (2 * (s * L + lengths) + 1).to(tl.int64) * KP
    low = tl.zeros_like(n_held)
    high = n_held
    while tl.max(high - low, 0) > 0:
        mid = (low + high) // 2
        searching = low < high
        score = final(tl.load(value + first + mid, mask=searching, other=-INF), lengths, norms, gains, cap)
        f_tie = tl.load(tie + first + mid, mask=searching, other=0)
        f_entry = tl.load(entry + first + mid, mask=searching, other=0)
        before = precedes_by_score(score, lengths, f_tie, f_entry, x_score, t, x_tie, x_entry)
        low = tl.where(searching & before, mid + 1, low)
        high = tl.where(searching & (before == 0), mid, high)
    return tl.sum(low, 0)


@triton.jit
def cut_beam(s, t, m, n_held, value, entry, tie, k, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr):
    """Cut the beam of length t to k members, out of m unfinished hypotheses and `n_held` finished ones per length. Returns how
    many unfinished ones are inside, and the new `n_held`."""
    lengths = tl.arange(0, LP)
    first = (2 * (s * L + t)).to(tl.int64) * KP
    inside = 0
    high = m
    while inside < high:
        mid = (inside + high) // 2
        score = final(tl.load(value + first + mid), t, norms, gains, cap)
        x_tie = tl.load(tie + first + mid)
        x_entry = tl.load(entry + first + mid)
        before = count_finished_before(score, t, x_tie, x_entry, n_held, s, value, entry, tie, norms, gains, cap, L, KP, LP)
        fits = mid + before < k
        inside = tl.where(fits, mid + 1, inside)
        high = tl.where(fits, high, mid)
    n_held, _, _ = best_by_length(k - inside, n_held, 2 * (s * L + lengths), value, norms, gains, cap, KP, LP)
    return inside, n_held


@triton.jit
def last_member(s, t, inside, n_held, value, entry, tie, norms, gains, cap, L, KP: tl.constexpr, LP: tl.constexpr):
    """The last member of the beam of length t: its score, length, tie and entry."""
    lengths = tl.arange(0, LP)
    place = (2 * (s * L + lengths) + 1).to(tl.int64) * KP + n_held - 1
    scores = final(tl.load(value + place, mask=n_held > 0, other=INF), lengths, norms, gains, cap)
    scores = tl.where(n_held > 0, scores, INF)
    score = tl.min(scores, 0)
    length = tl.max(tl.where((n_held > 0) & (scores == score), lengths, -1), 0)
    place = tl.max(tl.where(lengths == length, place, 0), 0)
    its_tie = tl.load(tie + place)
    its_entry = tl.load(entry + place)
    if inside > 0:
        own = (2 * (s * L + t)).to(tl.int64) * KP + inside - 1
        own_score = final(tl.load(value + own), t, norms, gains, cap)
        own_tie = tl.load(tie + own)
        own_entry = tl.load(entry + own)
        if (length < 0) | precedes_by_score(score, length, its_tie, its_entry, own_score, t, own_tie, own_entry):
            score = own_score
            length = t
            its_tie = own_tie
            its_entry = own_entry
    return score, length, its_tie, its_entry


@triton.jit
def element(x, at, LP: tl.constexpr):
    """x[at], of a vector x of LP numbers."""
    return tl.sum(tl.where(tl.arange(0, LP) == at, x, 0), 0)


@triton.jit
def count_calls_kept(
    slots, value, entry, tie, node, count, deepest, limit, rules, caps, norm, gain, bars, out, most, L, P,
    KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """The `calls` of inputs under `keep`, into `out` (`AnyOrderSearch.calls`). A closed member counts if it can still attain an
    answer (`AnyOrderSearch._attainable_kept`): it continues until its score is behind the last member of a full beam, and what it
    finishes as must not be behind the last member of any longer beam."""
    i = tl.program_id(0)
    s = tl.load(slots + i)
    own_rules = rules + s * RULES
    if tl.load(own_rules + KEEPS) != 0:
        k = tl.load(own_rules + BEAM)
        rises = tl.load(own_rules + RISES)
        norms = norm + tl.load(own_rules + SCORE) * LP
        gains = gain + tl.load(own_rules + SCORE) * LP
        cap = tl.load(caps + s)
        longest = tl.load(deepest + s)
        end = tl.load(limit + s)
        bar = tl.load(bars + s * 2)
        bar_length = tl.load(bars + s * 2 + 1).to(tl.int32)
        lengths = tl.arange(0, LP)
        lanes = tl.arange(0, KP)
        # Forward: how many are inside each beam, and the last member of each full beam.
        n_held = tl.zeros([LP], tl.int32)
        insides = tl.zeros([LP], tl.int32)
        score_of = tl.full([LP], -INF, tl.float64)
        length_of = tl.zeros([LP], tl.int32)
        tie_of = tl.zeros([LP], tl.int32)
        entry_of = tl.zeros([LP], tl.int64)
        t = 0
        while t <= longest:
            here = lengths == t
            m = tl.load(count + 2 * (s * L + t))
            n_held = tl.where(here, tl.load(count + 2 * (s * L + t) + 1), n_held)
            inside, n_held = cut_beam(s, t, m, n_held, value, entry, tie, k, norms, gains, cap, L, KP, LP)
            insides = tl.where(here, inside, insides)
            if inside + tl.sum(n_held, 0) >= k:
                score, length, its_tie, its_entry = last_member(
                    s, t, inside, n_held, value, entry, tie, norms, gains, cap, L, KP, LP
                )  # fmt: skip
                score_of = tl.where(here, score, score_of)
                length_of = tl.where(here, length, length_of)
                tie_of = tl.where(here, its_tie, tie_of)
                entry_of = tl.where(here, its_entry, entry_of)
            t += 1
        # Backward: the first of the last members of this and all longer beams. A finished hypothesis behind it loses its slot.
        slot_score = score_of
        slot_length = length_of
        slot_tie = tie_of
        slot_entry = entry_of
        t = longest - 1
        while t >= 0:
            next_t = t + 1
            next_is_first = precedes_by_score(
                element(slot_score, next_t, LP), element(slot_length, next_t, LP), element(slot_tie, next_t, LP),
                element(slot_entry, next_t, LP), element(slot_score, t, LP), element(slot_length, t, LP),
                element(slot_tie, t, LP), element(slot_entry, t, LP),
            )  # fmt: skip
            here = (lengths == t) & (next_is_first != 0)
            slot_score = tl.where(here, element(slot_score, next_t, LP), slot_score)
            slot_length = tl.where(here, element(slot_length, next_t, LP), slot_length)
            slot_tie = tl.where(here, element(slot_tie, next_t, LP), slot_tie)
            slot_entry = tl.where(here, element(slot_entry, next_t, LP), slot_entry)
            t -= 1
        one = tl.full([], -1.0, tl.float64)
        by_length = final(one, P, norms, gains, cap) != final(one, end, norms, gains, cap)
        calls = 0
        t = 0
        while t <= longest:
            m = element(insides, t, LP)
            cells = (2 * (s * L + t)).to(tl.int64) * KP + lanes
            x = tl.load(value + cells, mask=lanes < m, other=-INF)
            x_tie = tl.load(tie + cells, mask=lanes < m, other=0)
            x_entry = tl.load(entry + cells, mask=lanes < m, other=0)
            counts = tl.load(node + cells, mask=lanes < m, other=-1) >= 0
            if tl.load(own_rules + SEARCH) == BEST_FIRST:
                best = tl.full([KP], -INF, tl.float64)
                going = counts
                u = t + 1
                while u <= longest:
                    score_u = final(x, u + tl.zeros([KP], tl.int32), norms, gains, cap)
                    barred = precedes_by_score(
                        element(slot_score, u, LP), element(slot_length, u, LP), element(slot_tie, u, LP),
                        element(slot_entry, u, LP), score_u, t, x_tie, x_entry,
                    )  # fmt: skip
                    best = tl.where(going & (barred == 0), tl.maximum(best, score_u), best)
                    behind = precedes_by_score(
                        element(score_of, u, LP), element(length_of, u, LP), element(tie_of, u, LP), element(entry_of, u, LP),
                        score_u, t, x_tie, x_entry,
                    )  # fmt: skip
                    going = going & (behind == 0)
                    u = tl.where(tl.max(going.to(tl.int32), 0) > 0, u + 1, LP)
                best = tl.where(going, tl.maximum(best, bound(x, longest, end, rises, norms, gains, cap)), best)
                reach = tl.where(by_length, best, bound(x, t, end, rises, norms, gains, cap))
                counts = counts & (best > -INF) & ((reach > bar) | ((reach == bar) & (t < bar_length)))
            calls += tl.where(t < end, tl.sum(counts.to(tl.int32), 0), 0)
            t += 1
        tl.store(out + i * (3 + 2 * most), calls - (P - 1))
