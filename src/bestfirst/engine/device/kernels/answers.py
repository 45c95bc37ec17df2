"""Scores and bounds on the device, the ranking of answers, and the step at which Hugging Face's beam search would stop.

An *answer* is a finished hypothesis that fewer than k members of its length precede. The helpers here run inside the kernels of
`beams`, `keep_rule` and `results`: one program per input, one lane per length (LP) or per list cell (KP).
"""

from __future__ import annotations

import triton
import triton.language as tl

OPEN = tl.constexpr(-1)
CHOSEN = tl.constexpr(-2)  # picked for the next step, which may have no row left for it
ENDS = tl.constexpr(1 << 30)  # flag on a token that ends an output
INF = tl.constexpr(float("inf"))

# Columns of `rules`, one row per input: beam k, successors per node, n-best, whether truncated outputs count, kind of search,
# index of its score tables, whether the score of a fixed value rises with length, answers that end the search, rows of a step
# beyond which nothing is scored ahead, logits edits (0: none, else 1 + index), whether the rest of a level is skipped once it
# cannot matter, whether finished hypotheses keep slots (`keep_rule`), answers that end the search once nothing can precede
# them (0: no number does), and the float32 bits of the temperature (0: it is 1).
RULES = tl.constexpr(16)
BEAM, WIDTH, NBEST, TRUNCATED, SEARCH, SCORE, RISES, ENOUGH, FULL, PROGRAM, PRUNES, KEEPS, SETTLED, TEMPERATURE = (
    tl.constexpr(i) for i in range(14)
)
BEST_FIRST, AS_HUGGING_FACE, BY_LEVEL = (tl.constexpr(i) for i in range(3))


@triton.jit
def precedes(a_value, a_tie, a_entry, b_value, b_tie, b_entry):
    """Whether a precedes b, both of one length: greater value, then smaller hash of the parent, then smaller entry."""
    return (a_value > b_value) | ((a_value == b_value) & ((a_tie < b_tie) | ((a_tie == b_tie) & (a_entry < b_entry))))


@triton.jit
def final(v, t, norms, gains, cap):
    """Score of a hypothesis of value v and length t, v / norm[t] + min(gain[t], cap) (`Score.final`)."""
    return v / tl.load(norms + t) + tl.minimum(tl.load(gains + t), cap)


@triton.jit
def bound(v, t, end, rises, norms, gains, cap):
    """Best score of any longer continuation (`Score.bound`): at length t + 1, or at `end` if scores rise with length."""
    return tl.where(t < end, final(v, tl.where(rises != 0, end, tl.minimum(t + 1, end)), norms, gains, cap), -INF)


@triton.jit
def accepted(i, lists, unfinished, finished, value, entry, tie, k, KP: tl.constexpr):
    """Whether the i-th finished hypothesis of each length is an answer, and its value. `unfinished` and `finished` are the
    members of each length. i finished members precede this one, so it is an answer unless the unfinished member k - 1 - i
    precedes it, too."""
    f = (lists + 1).to(tl.int64) * KP + i
    u = lists.to(tl.int64) * KP + k - 1 - i
    exists = i < tl.minimum(finished, k)
    rival = exists & (unfinished > k - 1 - i)
    f_value = tl.load(value + f, mask=exists, other=-INF)
    u_value = tl.load(value + u, mask=rival, other=-INF)
    f_tie = tl.load(tie + f, mask=exists, other=0)
    u_tie = tl.load(tie + u, mask=rival, other=0)
    f_entry = tl.load(entry + f, mask=exists, other=0)
    u_entry = tl.load(entry + u, mask=rival, other=0)
    return exists & ((rival == 0) | precedes(f_value, f_tie, f_entry, u_value, u_tie, u_entry)), f_value


@triton.jit
def count_answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP: tl.constexpr):
    """Answers of each length. They are a prefix of the finished list, whose end is found by bisection."""
    n_answers = tl.zeros_like(lists)
    high = tl.minimum(finished, k)
    while tl.max(high - n_answers, 0) > 0:
        mid = (n_answers + high) // 2
        is_answer, _ = accepted(mid, lists, unfinished, tl.where(n_answers < high, finished, 0), value, entry, tie, k, KP)
        high = tl.where(is_answer, high, mid)
        n_answers = tl.where(is_answer, mid + 1, n_answers)
    return n_answers


@triton.jit
def best_by_length(n, available, lists, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr):
    """How many of the n best answers have each length, and score and length of the n-th: (-inf, LP) if there are fewer.
    `available`: answers of each length. Selects whole chunks: of m sorted lists, the best of the b-th next members is among the m
    b best that remain, so all b up to it are taken at once."""
    lengths = tl.arange(0, LP)
    first = (lists + 1).to(tl.int64) * KP
    taken = tl.zeros_like(available)
    remaining = n
    while remaining > 0:
        n_lists = tl.sum((taken < available).to(tl.int32), 0)
        chunk = tl.maximum(1, remaining // tl.maximum(n_lists, 1))
        has_chunk = taken + chunk <= available
        v = tl.load(value + first + taken + chunk - 1, mask=has_chunk, other=-INF)
        score = tl.where(has_chunk, final(v, lengths, norms, gains, cap), -INF)
        best = tl.max(score, 0)
        chosen = lengths == tl.min(tl.where(has_chunk & (score == best), lengths, LP), 0)
        no_chunk = tl.max(has_chunk.to(tl.int32), 0) == 0
        n_untaken = tl.sum(available - taken, 0)  # where no list has a chunk left, all that is left is taken
        taken = tl.where(no_chunk, available, taken + tl.where(chosen, chunk, 0))
        remaining = tl.where(no_chunk, tl.where(n_untaken > 0, remaining - n_untaken, -1), remaining - chunk)
    v = tl.load(value + first + taken - 1, mask=taken > 0, other=INF)
    score = tl.where(taken > 0, final(v, lengths, norms, gains, cap), INF)
    bar = tl.min(score, 0)
    bar_length = tl.max(tl.where((taken > 0) & (score == bar), lengths, -1), 0)
    return taken, tl.where(remaining < 0, -INF, bar), tl.where(remaining < 0, LP, bar_length)


@triton.jit
def nothing_precedes(
    n, top, t, end, rises, n_answers, lists, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr
):  # fmt: skip
    """Whether n > 0 answers precede everything that a hypothesis of value `top` and length t has or can reach
    (`stops.settled`)."""
    t = tl.minimum(t, end)
    _, score, length = best_by_length(n, n_answers, lists, value, norms, gains, cap, KP, LP)
    reach = tl.maximum(final(top, t, norms, gains, cap), bound(top, t, end, rises, norms, gains, cap))
    return (n > 0) & ((score > reach) | ((score == reach) & (length <= t)))


@triton.jit
def write_best_answers(
    n, s, lists, unfinished, finished, value, entry, tie, answers, norms, gains, cap, k, most,
    KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """Write the n best answers, one by one, as (length, place in its finished list); length -1 where there are fewer. Returns the
    score and length of the n-th, or -inf."""
    lengths = tl.arange(0, LP)
    taken = tl.zeros_like(lists)
    bar = tl.full([], INF, tl.float64)
    bar_length = 0
    i = 0
    while i < n:
        exists, f_value = accepted(taken, lists, unfinished, finished, value, entry, tie, k, KP)
        score = tl.where(exists, final(f_value, lengths, norms, gains, cap), -INF)
        bar = tl.max(score, 0)
        bar_length = tl.min(tl.where(exists & (score == bar), lengths, LP), 0)
        chosen = lengths == bar_length
        if bar > -INF:
            tl.store(answers + (s * most + i) * 2, bar_length)
            tl.store(answers + (s * most + i) * 2 + 1, tl.sum(tl.where(chosen, taken, 0), 0))
        else:
            tl.store(answers + (s * most + i) * 2, -1)
        i += 1
        taken = tl.where(chosen, taken + 1, taken)
    return bar, bar_length


@triton.jit
def write_ranked_answers(
    n, s, taken, value, answers, norms, gains, cap, most, L, KP: tl.constexpr, LP: tl.constexpr, KQ: tl.constexpr
):
    """Write many answers in order, the first `taken` of each length; ranks are counted by bisection in the other lengths."""
    lengths = tl.arange(0, LP)
    lanes = tl.arange(0, KQ)
    n_taken = tl.sum(taken, 0)
    tl.store(answers + (s * most + lanes) * 2, tl.full([KQ], -1, tl.int32), mask=(lanes >= n_taken) & (lanes < n))
    t = tl.min(tl.where(taken > 0, lengths, LP), 0)
    while t < LP:
        valid = lanes < tl.sum(tl.where(lengths == t, taken, 0), 0)
        first = (2 * (s * L + t) + 1).to(tl.int64) * KP
        score = final(tl.load(value + first + lanes, mask=valid, other=-INF), t, norms, gains, cap)
        rank = lanes
        u = tl.min(tl.where(taken > 0, lengths, LP), 0)
        while u < LP:
            other = (2 * (s * L + u) + 1).to(tl.int64) * KP
            low = tl.zeros_like(lanes)
            high = tl.where(valid & (u != t), tl.sum(tl.where(lengths == u, taken, 0), 0), 0)
            while tl.max(high - low, 0) > 0:
                mid = (low + high) // 2
                searching = low < high
                rival = final(tl.load(value + other + mid, mask=searching, other=-INF), u, norms, gains, cap)
                ahead = (rival > score) | ((rival == score) & (u < t))
                low = tl.where(searching & ahead, mid + 1, low)
                high = tl.where(searching & (ahead == 0), mid, high)
            rank += low
            u = tl.min(tl.where((taken > 0) & (lengths > u), lengths, LP), 0)
        tl.store(answers + (s * most + rank) * 2, t + tl.zeros_like(rank), mask=valid)
        tl.store(answers + (s * most + rank) * 2 + 1, lanes, mask=valid)
        t = tl.min(tl.where((taken > 0) & (lengths > t), lengths, LP), 0)


@triton.jit
def update_n_best(
    n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k, most, L,
    MANY: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """Score and length of the n-th best answer. With MANY answers, only their counts by length are kept: `results.finish_inputs`
    writes the answers themselves, once, when the input is done."""
    if MANY:
        n_answers = count_answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
        taken, bar, bar_length = best_by_length(n, n_answers, lists, value, norms, gains, cap, KP, LP)
        tl.store(kept + s * L + tl.arange(0, LP), taken, mask=tl.arange(0, LP) < L)
    else:
        bar, bar_length = write_best_answers(
            n, s, lists, unfinished, finished, value, entry, tie, answers, norms, gains, cap, k, most, KP, LP
        )
    return bar, bar_length


@triton.jit
def count_answers_above(rival, longest, n_answers, lists, known, value, norms, gains, cap, KP: tl.constexpr, LP: tl.constexpr):
    """How many answers of at most `longest` tokens score above `rival`, and how many at least as much."""
    lengths = tl.arange(0, LP)
    first = (lists + 1).to(tl.int64) * KP
    above = tl.zeros_like(n_answers)
    not_below = tl.zeros_like(n_answers)
    step = KP
    while step > 0:  # the greatest counts that hold, bit by bit
        valid = known & (lengths <= longest) & (above + step <= n_answers)
        v = tl.load(value + first + above + step - 1, mask=valid, other=-INF)
        above += tl.where(valid & (final(v, lengths, norms, gains, cap) > rival), step, 0)
        valid = known & (lengths <= longest) & (not_below + step <= n_answers)
        v = tl.load(value + first + not_below + step - 1, mask=valid, other=-INF)
        not_below += tl.where(valid & (final(v, lengths, norms, gains, cap) >= rival), step, 0)
        step = step // 2
    return tl.sum(above, 0), tl.sum(not_below, 0)


@triton.jit
def hugging_face_step(
    y_value, y_length, enough, n_answers, best, lists, known, longest, end, value, norms, gains, cap, KP: tl.constexpr,
    LP: tl.constexpr
):  # fmt: skip
    """The step at which Hugging Face's `early_stopping=False` stops, if what precedes an open hypothesis y settles it; else LP.
    `HuggingFaceStep` has the argument. `best`: the value of each length's best unfinished hypothesis."""
    lengths = tl.arange(0, LP)
    step = LP
    first = tl.min(tl.where((tl.cumsum(n_answers, 0) >= enough) & known, lengths, LP), 0)
    before = tl.max(tl.where(lengths == first - 1, best, -INF), 0)
    t = tl.where((first < LP) & (before >= y_value), first, LP)
    while t <= tl.minimum(longest + 1, end):
        best_t = tl.max(tl.where(lengths == t, best, -INF), 0)
        rival = final(tl.where(best_t >= y_value, best_t, y_value), t, norms, gains, cap)
        above, not_below = count_answers_above(rival, t, n_answers, lists, known, value, norms, gains, cap, KP, LP)
        tie = (not_below >= enough) & (best_t >= y_value) & ((y_value < best_t) | (y_length >= t))
        stops = (above >= enough) | tie
        step = tl.where(stops, t, step)
        t = tl.where(stops | (best_t < y_value), LP, t + 1)
    return step
