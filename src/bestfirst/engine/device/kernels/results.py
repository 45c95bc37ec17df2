# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Results of inputs that are done: what the certificate counts, the order of answers, and their tokens."""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import (
    AS_HUGGING_FACE,
    BEAM,
    BEST_FIRST,
    BY_LEVEL,
    ENDS,
    ENOUGH,
    HEAT,
    INF,
    NBEST,
    PRUNES,
    RISES,
    RULES,
    SCORE,
    SEARCH,
    answers_by_length,
    best_by_length,
    bound,
    final,
    rank_answers,
)  # fmt: skip
from .rows import LEAVING


@triton.jit
def stops_before(x, t, first, last, kth_of, best, norms, gains, cap, LP: tl.constexpr, WIDE: tl.constexpr):
    """Whether Hugging Face's stop comes before each hypothesis of length t and value x (`hugging_face_step`, for many).

    `kth_of`: the score that settles it at each length from `first` to `last`.
    """
    lengths = tl.arange(0, LP)
    before = tl.max(tl.where(lengths == first - 1, best, -INF), 0)
    undecided = x <= before
    stops = x != x
    u = first
    while u <= last:
        b = tl.max(tl.where(lengths == u, best, -INF), 0)
        kth = tl.max(tl.where(lengths == u, kth_of, -INF), 0)
        rival = final(tl.where(b >= x, b, x), u + tl.zeros([WIDE], tl.int32), norms, gains, cap)
        tie = (kth == rival) & (b >= x) & ((x < b) | (t >= u))
        now = undecided & ((kth > rival) | tie)
        stops = stops | now
        undecided = undecided & (b >= x) & (now == 0)
        u += 1
    return stops


@triton.jit
def attainable(x, t, kths, lasts, deep, end, rises, norms, gains, cap, LP: tl.constexpr, WIDE: tl.constexpr):
    """The best score that a continuation of each hypothesis of length t and value x can be accepted with.

    `AnyOrderSearch` has the argument. `kths`, `lasts`: of each length, the value of the k-th member, and of the k-th unfinished.
    """
    lengths = tl.arange(0, LP)
    best = tl.full([WIDE], -INF, tl.float64)
    going = x > -INF
    u = t + 1
    while u <= deep:
        kth = tl.max(tl.where(lengths == u, kths, -INF), 0)
        last = tl.max(tl.where(lengths == u, lasts, -INF), 0)
        there = final(x, u + tl.zeros([WIDE], tl.int32), norms, gains, cap)
        best = tl.where(going & (kth <= x), tl.maximum(best, there), best)
        going = going & (last <= x)
        u = tl.where(tl.max(going.to(tl.int32), 0) > 0, u + 1, LP)
    beyond = bound(x, deep, end, rises, norms, gains, cap)
    return tl.where(going, tl.maximum(best, beyond), best)


@triton.jit
def settle(
    slots, value, entry, tie, node, count, deepest, limit, rules, caps, norm, gain, bars, rows, steps, answers, kept, status,
    out, most, L, P, MANY: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr, KQ: tl.constexpr,
):  # fmt: skip
    """An input's calls, rows and steps into `out`; many answers are put in order. KQ: more than any beam.

    Calls: the closed members that precede what stopped the search and are not hopeless (`AnyOrderSearch.calls`).

    Hopeless is what cannot reach H[t] = max(B[t+1], min(A[t+1], H[t+1])), where B is what the k-th unfinished member of a beam
    can reach and A what the k-th of all its members can: the paper's Theorem 4.4, walked from the longest beam back. Best first,
    by a score that depends on the length, what a hypothesis can attain takes the place of its bound.
    """
    i = tl.program_id(0)
    s = tl.load(slots + i)
    mine = rules + s * RULES
    k = tl.load(mine + BEAM)
    n = tl.load(mine + NBEST)
    search = tl.load(mine + SEARCH)
    rises = tl.load(mine + RISES)
    prunes = tl.load(mine + PRUNES)
    norms = norm + tl.load(mine + SCORE) * LP
    gains = gain + tl.load(mine + SCORE) * LP
    cap = tl.load(caps + s)
    lanes = tl.arange(0, KQ)
    lengths = tl.arange(0, LP)
    deep = tl.load(deepest + s)
    end = tl.load(limit + s)
    lists = 2 * (s * L + lengths)
    known = lengths <= deep
    bar = tl.load(bars + s * 2)
    bar_length = tl.load(bars + s * 2 + 1).to(tl.int32)
    found = tl.zeros_like(lists)
    best = tl.full([LP], -INF, tl.float64)
    enough = tl.load(mine + ENOUGH)
    kth_of = tl.full([LP], -INF, tl.float64)
    first = tl.full([], LP, tl.int32)
    final_step = tl.minimum(deep + 1, end)
    asks = (search == AS_HUGGING_FACE).to(tl.int32)
    if asks != 0:
        many = tl.load(count + lists, mask=known, other=0)
        found = answers_by_length(lists, many, tl.load(count + lists + 1, mask=known, other=0), value, entry, tie, k, KP)
        asks = (tl.sum(found, 0) >= enough).to(tl.int32)
        best = tl.load(value + lists.to(tl.int64) * KP, mask=many > 0, other=-INF)
        if asks != 0:
            first = tl.min(tl.where((tl.cumsum(found, 0) >= enough) & known, lengths, LP), 0)
            u = first
            while u <= final_step:
                shorter = tl.where(lengths <= u, found, 0)
                _, kth, _ = best_by_length(enough, shorter, lists, value, norms, gains, cap, KP, LP)
                kth_of = tl.where(lengths == u, kth, kth_of)
                u += 1
    one = tl.full([], -1.0, tl.float64)
    by_length = (search == BEST_FIRST) & (final(one, P, norms, gains, cap) != final(one, end, norms, gains, cap))
    kths = tl.full([LP], -INF, tl.float64)  # of each length, the value of the k-th member, and of the k-th unfinished one
    lasts = tl.full([LP], -INF, tl.float64)
    calls = 0
    t = deep
    hope = tl.where(deep >= end, INF, -INF).to(tl.float64)
    while t >= 0:
        at = 2 * (s * L + t)
        unfinished = at.to(tl.int64) * KP
        finished = unfinished + KP
        m = tl.load(count + at)
        f = tl.load(count + at + 1)
        x_value = tl.load(value + unfinished + lanes, mask=lanes < m, other=-INF)
        x_node = tl.load(node + unfinished + lanes, mask=lanes < m, other=-1)
        reach = bound(x_value, t, end, rises, norms, gains, cap)
        counts = (x_node >= 0) & ((reach >= hope) | (prunes == 0))
        if by_length:
            reach = attainable(x_value, t, kths, lasts, deep, end, rises, norms, gains, cap, LP, KQ)
        if search != BY_LEVEL:
            counts = counts & ((reach > bar) | ((reach == bar) & (t < bar_length)))
        if asks != 0:
            before = stops_before(x_value, t, first, final_step, kth_of, best, norms, gains, cap, LP, KQ)
            counts = counts & (before == 0)
        calls += tl.where(t < end, tl.sum(counts.to(tl.int32), 0), 0)
        # The k-th of both lists together is the best over i of the lesser of the i-th unfinished and the (k - i)-th finished.
        u = tl.load(value + unfinished + lanes - 1, mask=(lanes > 0) & (lanes <= m), other=-INF)
        u = tl.where(lanes == 0, INF, u)
        v = tl.load(value + finished + k - 1 - lanes, mask=(lanes < k) & (k - 1 - lanes < f), other=-INF)
        v = tl.where(lanes == k, INF, v)
        kth = tl.max(tl.where(lanes <= k, tl.minimum(u, v), -INF), 0)
        last = tl.max(tl.where((lanes == k - 1) & (lanes < m), x_value, -INF), 0)
        kths = tl.where(lengths == t, kth, kths)
        lasts = tl.where(lengths == t, last, lasts)
        kth_reach = tl.maximum(final(kth, t, norms, gains, cap), bound(kth, t, end, rises, norms, gains, cap))
        last_reach = tl.maximum(final(last, t, norms, gains, cap), bound(last, t, end, rises, norms, gains, cap))
        # By level, nothing was known of a longer beam when the one before this had its turn.
        hope = tl.where((search == BY_LEVEL) & (t < end), -INF, hope)
        hope = tl.maximum(last_reach, tl.minimum(kth_reach, hope))
        t -= 1
    tl.store(status + s, LEAVING)
    numbers = out + i * (3 + 2 * most)
    tl.store(numbers, calls - (P - 1))
    tl.store(numbers + 1, tl.load(rows + s))
    tl.store(numbers + 2, tl.load(steps + s))
    if MANY:
        taken = tl.load(kept + s * L + lengths, mask=known, other=0)
        rank_answers(n, s, taken, value, answers, norms, gains, cap, most, L, KP, LP, KQ)


@triton.jit
def spell(
    slots, value, entry, token, paths, node_token, cooled, deepest, rules, caps, norm, gain, answers, node_place, trie_items,
    out, out_values, out_tokens, most, L, W, P, TRIE: tl.constexpr, HEATED: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """One answer of an input: its length and item into `out`, its log-probability and score, its tokens.

    Tokens: the parent's path, and the last one. Nothing finished: the first of the longest beam instead, its length negative.
    """
    i = tl.program_id(0)
    a = tl.program_id(1)
    s = tl.load(slots + i)
    mine = rules + s * RULES
    if a < tl.load(mine + NBEST):
        lengths = tl.arange(0, LP)
        length = tl.load(answers + (s * most + a) * 2)
        sign = 1
        cell = (2 * (s * L + length) + 1).to(tl.int64) * KP + tl.load(answers + (s * most + a) * 2 + 1)
        if length < 0:
            sign = tl.where(a == 0, -1, 0)
            length = tl.load(deepest + s)
            cell = (2 * (s * L + length)).to(tl.int64) * KP
        if sign != 0:
            e = tl.load(entry + cell)
            parent = tl.where(length > 0, e // W, 0)
            path = tl.load(paths + parent * L + lengths, mask=lengths < length, other=0)
            words = tl.load(node_token + path, mask=lengths < length, other=0)
            words = tl.where(lengths == length, tl.load(token + e) & (ENDS - 1), words)
            tl.store(out_tokens + (i * most + a).to(tl.int64) * L + lengths - P, words, mask=(lengths >= P) & (lengths <= length))
            worth = tl.load(value + cell)
            score = tl.load(mine + SCORE) * LP
            tl.store(out_values + (i * most + a) * 2 + 1, final(worth, length, norm + score, gain + score, tl.load(caps + s)))
            if HEATED:
                bits = tl.load(mine + HEAT)
                lost = tl.load(cooled + path, mask=(lengths >= P - 1) & (lengths < length), other=0.0).to(tl.float64)
                worth = tl.where(bits != 0, worth * bits.to(tl.float32, bitcast=True).to(tl.float64) + tl.sum(lost, 0), worth)
            tl.store(out_values + (i * most + a) * 2, worth)
            if TRIE:
                item = tl.load(trie_items + tl.load(node_place + parent))
                item = tl.where((tl.load(token + e) & ENDS) != 0, item, -1)
                tl.store(out + i * (3 + 2 * most) + 3 + most + a, item)
        tl.store(out + i * (3 + 2 * most) + 3 + a, tl.where(sign == 0, 0, sign * (length - P + 1)))
