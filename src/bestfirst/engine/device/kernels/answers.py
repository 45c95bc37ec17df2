# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Scores, bounds and answers on the device: what ranks finished hypotheses, and when Hugging Face's beam search would stop."""

from __future__ import annotations

import triton
import triton.language as tl

OPEN = tl.constexpr(-1)
CHOSEN = tl.constexpr(-2)  # named for the next step, which may have no room for it
ENDS = tl.constexpr(1 << 30)  # marks a token that ends an output
INF = tl.constexpr(float("inf"))

# What `rules` holds of each input: its beam, how many successors of a node matter to it, n-best, whether truncated outputs count,
# how it is searched, which of the score tables is its own, whether the score of a fixed value rises with the length, how many
# answers end its search, the rows of a step beyond which nothing is scored ahead, its edits (0, or one more than their
# place), whether a level's rest is left out once it cannot matter, whether finished hypotheses are kept, how many answers end its
# search once nothing can precede the last of them (0: no number does), and the bits of its temperature (0: none).
RULES = tl.constexpr(16)
BEAM, WIDTH, NBEST, TRUNCATED, SEARCH, SCORE, RISES, ENOUGH, FULL, PROGRAM, PRUNES, KEEPS, SETTLED, HEAT = (
    tl.constexpr(i) for i in range(14)
)
BEST_FIRST, AS_HUGGING_FACE, BY_LEVEL = (tl.constexpr(i) for i in range(3))


@triton.jit
def precedes(a_value, a_tie, a_entry, b_value, b_tie, b_entry):
    """Whether a comes before b among hypotheses of one length."""
    return (a_value > b_value) | ((a_value == b_value) & ((a_tie < b_tie) | ((a_tie == b_tie) & (a_entry < b_entry))))


@triton.jit
def final(v, t, norms, gains, cap):
    """The score of a hypothesis of value v and length t: v / norm + gain (`Score.final`), by tables over the length."""
    return v / tl.load(norms + t) + tl.minimum(tl.load(gains + t), cap)


@triton.jit
def bound(v, t, end, rises, norms, gains, cap):
    """The best score of any longer continuation (`Score.bound`): it is reached at the greatest length, or at the next."""
    return tl.where(t < end, final(v, tl.where(rises != 0, end, tl.minimum(t + 1, end)), norms, gains, cap), -INF)


@triton.jit
def accepted(i, lists, unfinished, finished, value, entry, tie, k, KP: tl.constexpr):
    """Whether the i-th finished hypothesis of each length is an answer: fewer than k members of its length precede it.

    Returns that and its value. `unfinished` and `finished`: how many of each a length has.
    """
    f = (lists + 1).to(tl.int64) * KP + i
    u = lists.to(tl.int64) * KP + k - 1 - i
    have = i < tl.minimum(finished, k)
    rival = have & (unfinished > k - 1 - i)
    f_value = tl.load(value + f, mask=have, other=-INF)
    u_value = tl.load(value + u, mask=rival, other=-INF)
    f_tie = tl.load(tie + f, mask=have, other=0)
    u_tie = tl.load(tie + u, mask=rival, other=0)
    f_entry = tl.load(entry + f, mask=have, other=0)
    u_entry = tl.load(entry + u, mask=rival, other=0)
    return have & ((rival == 0) | precedes(f_value, f_tie, f_entry, u_value, u_tie, u_entry)), f_value


@triton.jit
def answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP: tl.constexpr):
    """How many answers each length has: the first so many of its finished hypotheses, found by bisection."""
    found = tl.zeros_like(lists)
    most = tl.minimum(finished, k)
    while tl.max(most - found, 0) > 0:
        half = (found + most) // 2
        taken, _ = accepted(half, lists, unfinished, tl.where(found < most, finished, 0), value, entry, tie, k, KP)
        most = tl.where(taken, most, half)
        found = tl.where(taken, half + 1, found)
    return found


@triton.jit
def best_by_length(n, found, lists, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr):
    """How many of each length are among the n best answers; and the n-th's score and length, -inf where there are fewer.

    By selection, some at a time: of m sorted lists, the best of the b-th next members is among the next m b.
    """
    lengths = tl.arange(0, LP)
    first = (lists + 1).to(tl.int64) * KP
    taken = tl.zeros_like(found)
    left = n
    while left > 0:
        lists_left = tl.sum((taken < found).to(tl.int32), 0)
        some = tl.maximum(1, left // tl.maximum(lists_left, 1))
        there = taken + some <= found
        v = tl.load(value + first + taken + some - 1, mask=there, other=-INF)
        score = tl.where(there, final(v, lengths, norms, gains, cap), -INF)
        best = tl.max(score, 0)
        here = lengths == tl.min(tl.where(there & (score == best), lengths, LP), 0)
        none = tl.max(there.to(tl.int32), 0) == 0
        rest = tl.sum(found - taken, 0)  # where no list has so many, all of them are among the next
        taken = tl.where(none, found, taken + tl.where(here, some, 0))
        left = tl.where(none, tl.where(rest > 0, left - rest, -1), left - some)
    v = tl.load(value + first + taken - 1, mask=taken > 0, other=INF)
    score = tl.where(taken > 0, final(v, lengths, norms, gains, cap), INF)
    bar = tl.min(score, 0)
    bar_length = tl.max(tl.where((taken > 0) & (score == bar), lengths, -1), 0)
    return taken, tl.where(left < 0, -INF, bar), tl.where(left < 0, LP, bar_length)


@triton.jit
def nothing_precedes(
    n, top, t, end, rises, found, lists, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr
):  # fmt: skip
    """Whether there are n answers, at least one, that precede all that a hypothesis of value `top` and length t has or can reach
    (`stops.settled`)."""
    t = tl.minimum(t, end)
    _, score, length = best_by_length(n, found, lists, value, norms, gains, cap, KP, LP)
    reach = tl.maximum(final(top, t, norms, gains, cap), bound(top, t, end, rises, norms, gains, cap))
    return (n > 0) & ((score > reach) | ((score == reach) & (length <= t)))


@triton.jit
def best_answers(
    n, s, lists, unfinished, finished, value, entry, tie, answers, norms, gains, cap, k, most,
    KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """Write down the n best answers; returns the n-th's score and length, -inf where there are fewer."""
    lengths = tl.arange(0, LP)
    taken = tl.zeros_like(lists)
    bar = tl.full([], INF, tl.float64)
    bar_length = 0
    i = 0
    while i < n:
        has, f_value = accepted(taken, lists, unfinished, finished, value, entry, tie, k, KP)
        score = tl.where(has, final(f_value, lengths, norms, gains, cap), -INF)
        bar = tl.max(score, 0)
        bar_length = tl.min(tl.where(has & (score == bar), lengths, LP), 0)
        here = lengths == bar_length
        if bar > -INF:
            tl.store(answers + (s * most + i) * 2, bar_length)
            tl.store(answers + (s * most + i) * 2 + 1, tl.sum(tl.where(here, taken, 0), 0))
        else:
            tl.store(answers + (s * most + i) * 2, -1)
        i += 1
        taken = tl.where(here, taken + 1, taken)
    return bar, bar_length


@triton.jit
def rank_answers(n, s, taken, value, answers, norms, gains, cap, most, L, KP: tl.constexpr, LP: tl.constexpr, KQ: tl.constexpr):
    """Write down many answers: of each length the first so many finished ones. Each finds its place by bisection."""
    lengths = tl.arange(0, LP)
    lanes = tl.arange(0, KQ)
    all_taken = tl.sum(taken, 0)
    tl.store(answers + (s * most + lanes) * 2, tl.full([KQ], -1, tl.int32), mask=(lanes >= all_taken) & (lanes < n))
    t = tl.min(tl.where(taken > 0, lengths, LP), 0)
    while t < LP:
        mine = lanes < tl.sum(tl.where(lengths == t, taken, 0), 0)
        first = (2 * (s * L + t) + 1).to(tl.int64) * KP
        score = final(tl.load(value + first + lanes, mask=mine, other=-INF), t, norms, gains, cap)
        rank = lanes
        u = tl.min(tl.where(taken > 0, lengths, LP), 0)
        while u < LP:
            other = (2 * (s * L + u) + 1).to(tl.int64) * KP
            low = tl.zeros_like(lanes)
            high = tl.where(mine & (u != t), tl.sum(tl.where(lengths == u, taken, 0), 0), 0)
            while tl.max(high - low, 0) > 0:
                half = (low + high) // 2
                asked = low < high
                rival = final(tl.load(value + other + half, mask=asked, other=-INF), u, norms, gains, cap)
                ahead = (rival > score) | ((rival == score) & (u < t))
                low = tl.where(asked & ahead, half + 1, low)
                high = tl.where(asked & (ahead == 0), half, high)
            rank += low
            u = tl.min(tl.where((taken > 0) & (lengths > u), lengths, LP), 0)
        tl.store(answers + (s * most + rank) * 2, t + tl.zeros_like(rank), mask=mine)
        tl.store(answers + (s * most + rank) * 2 + 1, lanes, mask=mine)
        t = tl.min(tl.where((taken > 0) & (lengths > t), lengths, LP), 0)


@triton.jit
def n_best(
    n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k, most, L,
    MANY: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """The n-th best answer's score and length. MANY answers are only counted, by length; they are written down when the input is
    done (`results.settle`)."""
    if MANY:
        found = answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
        taken, bar, bar_length = best_by_length(n, found, lists, value, norms, gains, cap, KP, LP)
        tl.store(kept + s * L + tl.arange(0, LP), taken, mask=tl.arange(0, LP) < L)
    else:
        bar, bar_length = best_answers(
            n, s, lists, unfinished, finished, value, entry, tie, answers, norms, gains, cap, k, most, KP, LP
        )
    return bar, bar_length


@triton.jit
def answers_above(rival, longest, found, lists, known, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr):
    """How many answers of at most `longest` tokens score above `rival`, and how many no less. `found`: answers of each length."""
    lengths = tl.arange(0, LP)
    first = (lists + 1).to(tl.int64) * KP
    above = tl.zeros_like(found)
    level = tl.zeros_like(found)
    step = KP
    while step > 0:  # the greatest counts that hold, by their digits
        there = known & (lengths <= longest) & (above + step <= found)
        v = tl.load(value + first + above + step - 1, mask=there, other=-INF)
        above += tl.where(there & (final(v, lengths, norms, gains, cap) > rival), step, 0)
        there = known & (lengths <= longest) & (level + step <= found)
        v = tl.load(value + first + level + step - 1, mask=there, other=-INF)
        level += tl.where(there & (final(v, lengths, norms, gains, cap) >= rival), step, 0)
        step = step // 2
    return tl.sum(above, 0), tl.sum(level, 0)


@triton.jit
def hugging_face_step(
    y_value, y_length, enough, found, best, lists, known, deep, end, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr
):  # fmt: skip
    """The step at which Hugging Face's `early_stopping=False` stops, if what precedes an open hypothesis settles it; else LP.

    `HuggingFaceStep` has the argument. `best`: of each length, the value of the best unfinished hypothesis.
    """
    lengths = tl.arange(0, LP)
    step = LP
    first = tl.min(tl.where((tl.cumsum(found, 0) >= enough) & known, lengths, LP), 0)
    before = tl.max(tl.where(lengths == first - 1, best, -INF), 0)
    t = tl.where((first < LP) & (before >= y_value), first, LP)
    while t <= tl.minimum(deep + 1, end):
        b = tl.max(tl.where(lengths == t, best, -INF), 0)
        rival = final(tl.where(b >= y_value, b, y_value), t, norms, gains, cap)
        above, level = answers_above(rival, t, found, lists, known, value, norms, gains, cap, KP, LP)
        tie = (level >= enough) & (b >= y_value) & ((y_value < b) | (y_length >= t))
        stops = (above >= enough) | tie
        step = tl.where(stops, t, step)
        t = tl.where(stops | (b < y_value), LP, t + 1)
    return step
