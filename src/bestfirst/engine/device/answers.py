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
# place), and whether a level's rest is left out once it cannot matter.
RULES = tl.constexpr(16)
BEAM, WIDTH, NBEST, TRUNCATED, SEARCH, SCORE, RISES, ENOUGH, FULL, PROGRAM, PRUNES = (tl.constexpr(i) for i in range(11))
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
    """How many answers each length has: the first so many of its finished hypotheses."""
    found = tl.zeros_like(lists)
    i = 0
    more = 1
    while (i < k) & (more > 0):
        taken, _ = accepted(found, lists, unfinished, tl.where(found == i, finished, 0), value, entry, tie, k, KP)
        found += taken.to(tl.int32)
        more = tl.sum(taken.to(tl.int32), 0)
        i += 1
    return found


@triton.jit
def best_answers(
    n, s, lists, unfinished, finished, value, entry, tie, answers, answer_value, norms, gains, cap, k, most,
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
            tl.store(answer_value + s * most + i, tl.sum(tl.where(here, f_value, 0.0), 0))
        else:
            tl.store(answers + (s * most + i) * 2, -1)
        i += 1
        taken = tl.where(here, taken + 1, taken)
    return bar, bar_length


@triton.jit
def answers_above(rival, longest, found, lists, known, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr):
    """How many answers of at most `longest` tokens score above `rival`, and how many no less. `found`: answers of each length."""
    lengths = tl.arange(0, LP)
    above = 0
    level = 0
    i = 0
    deepest = tl.max(tl.where(lengths <= longest, found, 0), 0)
    while i < deepest:
        there = known & (lengths <= longest) & (i < found)
        v = tl.load(value + (lists + 1).to(tl.int64) * KP + i, mask=there, other=-INF)
        score = tl.where(there, final(v, lengths, norms, gains, cap), -INF)
        above += tl.sum((there & (score > rival)).to(tl.int32), 0)
        level += tl.sum((there & (score >= rival)).to(tl.int32), 0)
        i += 1
    return above, level


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
