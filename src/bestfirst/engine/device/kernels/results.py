"""Results of finished inputs: the certificate's count of `calls`, the order of the answers, and their tokens."""

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
    INF,
    NBEST,
    PRUNES,
    RISES,
    RULES,
    SCORE,
    SEARCH,
    TEMPERATURE,
    best_by_length,
    bound,
    count_answers_by_length,
    final,
    write_ranked_answers,
)  # fmt: skip
from .rows import LEAVING


@triton.jit
def stopped_before(x, t, first, last, kth_of, best, norms, gains, cap, LP: tl.constexpr, WIDE: tl.constexpr):
    """Whether Hugging Face's stop precedes each hypothesis of length t and value x: `hugging_face_step`, for many at once.
    `kth_of`: for each length from `first` to `last`, the score of the answer that settles the stop there."""
    lengths = tl.arange(0, LP)
    before = tl.max(tl.where(lengths == first - 1, best, -INF), 0)
    undecided = x <= before
    stops = x != x
    u = first
    while u <= last:
        best_u = tl.max(tl.where(lengths == u, best, -INF), 0)
        kth = tl.max(tl.where(lengths == u, kth_of, -INF), 0)
        rival = final(tl.where(best_u >= x, best_u, x), u + tl.zeros([WIDE], tl.int32), norms, gains, cap)
        tie = (kth == rival) & (best_u >= x) & ((x < best_u) | (t >= u))
        stops_now = undecided & ((kth > rival) | tie)
        stops = stops | stops_now
        undecided = undecided & (best_u >= x) & (stops_now == 0)
        u += 1
    return stops


@triton.jit
def attainable(x, t, kths, lasts, longest, end, rises, norms, gains, cap, LP: tl.constexpr, WIDE: tl.constexpr):
    """The best score with which a continuation of each hypothesis of length t and value x can be accepted.
    `AnyOrderSearch._attainable` has the argument. `kths`, `lasts`: value of the k-th member, and of the k-th
    unfinished one, per length."""
    lengths = tl.arange(0, LP)
    best = tl.full([WIDE], -INF, tl.float64)
    going = x > -INF
    u = t + 1
    while u <= longest:
        kth = tl.max(tl.where(lengths == u, kths, -INF), 0)
        last = tl.max(tl.where(lengths == u, lasts, -INF), 0)
        score_u = final(x, u + tl.zeros([WIDE], tl.int32), norms, gains, cap)
        best = tl.where(going & (kth <= x), tl.maximum(best, score_u), best)
        going = going & (last <= x)
        u = tl.where(tl.max(going.to(tl.int32), 0) > 0, u + 1, LP)
    beyond = bound(x, longest, end, rises, norms, gains, cap)
    return tl.where(going, tl.maximum(best, beyond), best)


@triton.jit
def finish_inputs(
    slots, value, entry, tie, node, count, deepest, limit, rules, caps, norm, gain, bars, rows, steps, answers, kept, status,
    out, most, L, P, MANY: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr, KQ: tl.constexpr,
):  # fmt: skip
    """Write each input's calls, rows and steps to `out`, put many answers in order and mark the slot `LEAVING`. KQ > any beam.

    Calls: the closed members that precede what stopped the search and are not hopeless (`AnyOrderSearch.calls`).

    Hopeless is what cannot reach H[t] = max(B[t+1], min(A[t+1], H[t+1])), where B is the reach of the k-th unfinished member of a
    beam and A that of the k-th of all its members: the paper's Theorem 4.4, evaluated from the longest beam down. Best first,
    with a score that depends on the length, `attainable` takes the place of the bound.
    """
    i = tl.program_id(0)
    s = tl.load(slots + i)
    own_rules = rules + s * RULES
    k = tl.load(own_rules + BEAM)
    n = tl.load(own_rules + NBEST)
    search = tl.load(own_rules + SEARCH)
    rises = tl.load(own_rules + RISES)
    prunes = tl.load(own_rules + PRUNES)
    norms = norm + tl.load(own_rules + SCORE) * LP
    gains = gain + tl.load(own_rules + SCORE) * LP
    cap = tl.load(caps + s)
    lanes = tl.arange(0, KQ)
    lengths = tl.arange(0, LP)
    longest = tl.load(deepest + s)
    end = tl.load(limit + s)
    lists = 2 * (s * L + lengths)
    known = lengths <= longest
    bar = tl.load(bars + s * 2)
    bar_length = tl.load(bars + s * 2 + 1).to(tl.int32)
    n_answers = tl.zeros_like(lists)
    best = tl.full([LP], -INF, tl.float64)
    enough = tl.load(own_rules + ENOUGH)
    kth_of = tl.full([LP], -INF, tl.float64)
    first = tl.full([], LP, tl.int32)
    final_step = tl.minimum(longest + 1, end)
    stops_early = (search == AS_HUGGING_FACE).to(tl.int32)
    if stops_early != 0:
        n_open = tl.load(count + lists, mask=known, other=0)
        n_answers = count_answers_by_length(
            lists, n_open, tl.load(count + lists + 1, mask=known, other=0), value, entry, tie, k, KP
        )
        stops_early = (tl.sum(n_answers, 0) >= enough).to(tl.int32)
        best = tl.load(value + lists.to(tl.int64) * KP, mask=n_open > 0, other=-INF)
        if stops_early != 0:
            first = tl.min(tl.where((tl.cumsum(n_answers, 0) >= enough) & known, lengths, LP), 0)
            u = first
            while u <= final_step:
                shorter = tl.where(lengths <= u, n_answers, 0)
                _, kth, _ = best_by_length(enough, shorter, lists, value, norms, gains, cap, KP, LP)
                kth_of = tl.where(lengths == u, kth, kth_of)
                u += 1
    one = tl.full([], -1.0, tl.float64)
    by_length = (search == BEST_FIRST) & (final(one, P, norms, gains, cap) != final(one, end, norms, gains, cap))
    kths = tl.full([LP], -INF, tl.float64)  # per length: value of the k-th member, of the k-th unfinished one
    lasts = tl.full([LP], -INF, tl.float64)
    calls = 0
    t = longest
    hope = tl.where(longest >= end, INF, -INF).to(tl.float64)
    while t >= 0:
        at = 2 * (s * L + t)
        unfinished = at.to(tl.int64) * KP
        finished = unfinished + KP
        n_unfinished_t = tl.load(count + at)
        n_finished_t = tl.load(count + at + 1)
        x_value = tl.load(value + unfinished + lanes, mask=lanes < n_unfinished_t, other=-INF)
        x_node = tl.load(node + unfinished + lanes, mask=lanes < n_unfinished_t, other=-1)
        reach = bound(x_value, t, end, rises, norms, gains, cap)
        counts = (x_node >= 0) & ((reach >= hope) | (prunes == 0))
        if by_length:
            reach = attainable(x_value, t, kths, lasts, longest, end, rises, norms, gains, cap, LP, KQ)
        if search != BY_LEVEL:
            counts = counts & ((reach > bar) | ((reach == bar) & (t < bar_length)))
        if stops_early != 0:
            before = stopped_before(x_value, t, first, final_step, kth_of, best, norms, gains, cap, LP, KQ)
            counts = counts & (before == 0)
        calls += tl.where(t < end, tl.sum(counts.to(tl.int32), 0), 0)
        # The k-th of both lists together is the maximum over i of min(i-th unfinished, (k - i)-th finished).
        u = tl.load(value + unfinished + lanes - 1, mask=(lanes > 0) & (lanes <= n_unfinished_t), other=-INF)
        u = tl.where(lanes == 0, INF, u)
        v = tl.load(value + finished + k - 1 - lanes, mask=(lanes < k) & (k - 1 - lanes < n_finished_t), other=-INF)
        v = tl.where(lanes == k, INF, v)
        kth = tl.max(tl.where(lanes <= k, tl.minimum(u, v), -INF), 0)
        last = tl.max(tl.where((lanes == k - 1) & (lanes < n_unfinished_t), x_value, -INF), 0)
        kths = tl.where(lengths == t, kth, kths)
        lasts = tl.where(lengths == t, last, lasts)
        kth_reach = tl.maximum(final(kth, t, norms, gains, cap), bound(kth, t, end, rises, norms, gains, cap))
        last_reach = tl.maximum(final(last, t, norms, gains, cap), bound(last, t, end, rises, norms, gains, cap))
        # By level, no longer beam was known when the beam before this one was scored.
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
        write_ranked_answers(n, s, taken, value, answers, norms, gains, cap, most, L, KP, LP, KQ)


@triton.jit
def write_answers(
    slots, value, entry, token, paths, node_token, cooled, deepest, rules, caps, norm, gain, answers, node_place, trie_items,
    out, out_values, out_tokens, most, L, W, P, TRIE: tl.constexpr, HEATED: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """Write one answer per program: its length and trie item to `out`, its log-probability and score, and its tokens. Tokens are
    the parent's path and the entry's token. If nothing has finished, answer 0 is the best hypothesis of the longest beam, with a
    negative length."""
    i = tl.program_id(0)
    a = tl.program_id(1)
    s = tl.load(slots + i)
    own_rules = rules + s * RULES
    if a < tl.load(own_rules + NBEST):
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
            ids = tl.load(node_token + path, mask=lengths < length, other=0)
            ids = tl.where(lengths == length, tl.load(token + e) & (ENDS - 1), ids)
            tl.store(out_tokens + (i * most + a).to(tl.int64) * L + lengths - P, ids, mask=(lengths >= P) & (lengths <= length))
            log_p = tl.load(value + cell)
            score = tl.load(own_rules + SCORE) * LP
            tl.store(out_values + (i * most + a) * 2 + 1, final(log_p, length, norm + score, gain + score, tl.load(caps + s)))
            if HEATED:
                bits = tl.load(own_rules + TEMPERATURE)
                extra = tl.load(cooled + path, mask=(lengths >= P - 1) & (lengths < length), other=0.0).to(tl.float64)
                log_p = tl.where(bits != 0, log_p * bits.to(tl.float32, bitcast=True).to(tl.float64) + tl.sum(extra, 0), log_p)
            tl.store(out_values + (i * most + a) * 2, log_p)
            if TRIE:
                item = tl.load(trie_items + tl.load(node_place + parent))
                item = tl.where((tl.load(token + e) & ENDS) != 0, item, -1)
                tl.store(out + i * (3 + 2 * most) + 3 + most + a, item)
        tl.store(out + i * (3 + 2 * most) + 3 + a, tl.where(sign == 0, 0, sign * (length - P + 1)))
