# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Beams on the device: one program an input keeps its beams true to what was scored, and names what to score next.

The beams are those of `bestfirst.search`: of every length, the best k unfinished hypotheses of all that is known, and the
finished ones beside them (rule `leave`). They are a function of the set of scored hypotheses (`docs/algorithm.md`), so it does
not matter in which order these were scored, nor how many at a time.

A *list* is a sorted row of at most k cells; list 2 (s L + t) holds the unfinished hypotheses of input s and length t, the next
one the finished. A *cell* knows its value, its *entry*, its node (`OPEN` until it is scored) and whether its children have been
pushed. An entry is a place among all successors ever scored: the j-th of node p is entry p W + j, so a hypothesis that comes
back to a beam finds its node again. Equal values are told apart by a hash of the parent's tokens, then by the token: an order
that no schedule can change.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous
from .answers import (
    AS_HUGGING_FACE,
    BEAM,
    BY_LEVEL,
    CHOSEN,
    ENOUGH,
    INF,
    KEEPS,
    NBEST,
    OPEN,
    PRUNES,
    RISES,
    RULES,
    SCORE,
    SEARCH,
    SETTLED,
    TRUNCATED,
    answers_by_length,
    bound,
    final,
    hugging_face_step,
    n_best,
    nothing_precedes,
)  # fmt: skip
from .beam_lists import push, push_many
from .keep_rule import cut


@triton.jit
def begin(
    many, given_caps, slots, limits, lengths, settings, value, entry, tie, node, pushed, count, head, scored, child,
    status, deepest, limit, source_length, rules, caps, rows, steps, drafted, stride, L, roots, P, KP: tl.constexpr,
    LP: tl.constexpr,
):  # fmt: skip
    """A new input in a slot, with its settings: every beam empty, but for the root."""
    i = tl.program_id(0)
    if i < tl.load(many):
        s = tl.load(slots + i)
        t = tl.arange(0, LP)
        tl.store(count + 2 * (s * L + t), (t == 0).to(tl.int32), mask=t < L)
        tl.store(count + 2 * (s * L + t) + 1, tl.zeros_like(t), mask=t < L)
        tl.store(head + s * L + t, tl.where(t == 0, 0.0, -INF).to(tl.float64), mask=t < L)
        tl.store(scored + s * L + t, tl.zeros_like(t), mask=t < L)
        cell = (2 * s * L).to(tl.int64) * KP
        tl.store(value + cell, 0.0)
        tl.store(entry + cell, roots + s.to(tl.int64))
        tl.store(tie + cell, 0)
        tl.store(node + cell, OPEN)
        tl.store(pushed + cell, 0)
        tl.store(child + roots + s.to(tl.int64), OPEN)
        tl.store(status + s, 1)
        tl.store(deepest + s, 0)
        tl.store(limit + s, tl.load(limits + i) + P - 1)
        tl.store(source_length + s, tl.load(lengths + i))
        tl.store(caps + s, tl.load(given_caps + i))
        r = tl.arange(0, RULES)
        tl.store(rules + s * RULES + r, tl.load(settings + r * stride + i))
        tl.store(rows + s, 0)
        tl.store(steps + s, 0)
        tl.store(drafted + s, 0)


@triton.jit
def push_all(
    s, value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places, deepest,
    end, truncated, keeps, k, norms, gains, cap, L, W, KP: tl.constexpr, CP: tl.constexpr, LP: tl.constexpr, TILE: tl.constexpr,
    CROWD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Push what the last step scored, from the shortest length that has news; returns the longest beam's length.

    A beam is built anew when the one before it has lost a member whose children had been pushed. Where finished hypotheses are
    kept, every beam is looked at, since what holds a slot does so at all of them; of each length, those that do are returned.
    """
    lanes = tl.arange(0, KP)
    lengths = tl.arange(0, LP)
    deep = tl.load(deepest + s)
    fresh = tl.load(scored + s * L + lengths, mask=lengths < L, other=0)
    tl.store(scored + s * L + lengths, tl.zeros_like(fresh), mask=lengths < L)
    t = tl.min(tl.where(fresh != 0, lengths, LP), 0)
    held = tl.zeros([LP], tl.int32)
    within = 1
    if KEEP:
        t = tl.where(keeps != 0, 0, t)
    rebuild = 0
    while (t < end) & (t <= deep):
        at = 2 * (s * L + t)
        below = at + 2
        longer = t + 1
        m = tl.load(count + at)
        cells = at.to(tl.int64) * KP + lanes
        if KEEP and keeps != 0:
            out = (lanes >= within) & (lanes < m)
            rebuild = rebuild | tl.max(tl.load(pushed + cells, mask=out, other=0).to(tl.int32), 0)
            tl.debug_barrier()
            tl.store(pushed + cells, tl.zeros_like(lanes).to(tl.int8), mask=out)
            tl.store(inside + s * L + t, within)
            m = tl.minimum(within, m)
        x_value = tl.load(value + cells, mask=lanes < m, other=-INF)
        x_node = tl.load(node + cells, mask=lanes < m, other=OPEN)
        x_pushed = tl.load(pushed + cells, mask=lanes < m, other=0).to(tl.int32)
        tl.debug_barrier()
        o_node = tl.full([KP], OPEN, tl.int32)
        if rebuild != 0:
            # Those below whose children were pushed are marked: they need not push them again, unless one of them is lost.
            o_cells = below.to(tl.int64) * KP + lanes
            there = lanes < tl.load(count + below)
            o_pushed = tl.load(pushed + o_cells, mask=there, other=0).to(tl.int32)
            o_node = tl.load(node + o_cells, mask=there & (o_pushed != 0), other=OPEN)
            tl.store(mark + o_node, tl.full([KP], 1, tl.int8), mask=o_node >= 0)
            tl.debug_barrier()
            tl.store(count + below, 0)
            tl.store(count + below + 1, 0)
            x_pushed = tl.zeros_like(x_pushed)
            tl.debug_barrier()
        todo = (x_node >= 0) & (x_pushed == 0)
        tl.store(pushed + cells, tl.full([KP], 1, tl.int8), mask=x_node >= 0)
        tl.store(head + s * L + t, tl.max(tl.where(x_node == OPEN, x_value, -INF), 0))
        last_length = ((truncated != 0) & (t + 1 == end)).to(tl.int32)
        fell = 0
        again = 0
        if CROWD > 1:
            fell, again = push_many(
                value, entry, tie, node, pushed, count, logprob, token, child, hashes, turns + s * KP, places + s * CROWD,
                at, below, todo, last_length, k, W, KP, TILE, CROWD,
            )  # fmt: skip
        else:
            left = tl.sum(todo.to(tl.int32), 0)
            while left > 0:
                i = tl.min(tl.where(todo, lanes, KP), 0)
                parent = tl.sum(tl.where(lanes == i, x_node, 0), 0)
                v = tl.sum(tl.where(lanes == i, x_value, 0.0), 0)
                a, b = push(
                    value, entry, tie, node, pushed, count, logprob, token, child, hashes,
                    parent, v, below, last_length, k, W, KP, CP,
                )  # fmt: skip
                fell = fell | a
                again = again | b
                todo = todo & (lanes != i)
                left -= 1
        m = tl.load(count + below)
        y_value = tl.load(value + below.to(tl.int64) * KP + lanes, mask=lanes < m, other=-INF)
        y_node = tl.load(node + below.to(tl.int64) * KP + lanes, mask=lanes < m, other=OPEN)
        if rebuild != 0:
            kept = tl.load(mark + y_node, mask=y_node >= 0, other=0)
            tl.debug_barrier()
            tl.store(pushed + below.to(tl.int64) * KP + lanes, kept, mask=y_node >= 0)
            tl.store(mark + y_node, tl.zeros_like(kept), mask=y_node >= 0)
            tl.debug_barrier()
            lost = tl.load(mark + o_node, mask=o_node >= 0, other=0)
            fell = tl.max(lost.to(tl.int32), 0)
            tl.debug_barrier()
            tl.store(mark + o_node, tl.zeros_like(lost), mask=o_node >= 0)
        best = tl.max(tl.where(y_node == OPEN, y_value, -INF), 0)
        tl.store(head + s * L + t + 1, tl.where(t + 1 < end, best, -INF))
        if m + tl.load(count + below + 1) > 0:
            deep = tl.maximum(deep, t + 1)
        rebuild = fell
        following = tl.min(tl.where((fresh != 0) & (lengths > t), lengths, LP), 0)
        t = tl.where((rebuild | again) != 0, t + 1, following)
        if KEEP and keeps != 0:
            t = longer
            held = tl.where(lengths == longer, tl.load(count + below + 1), held)
            within, held = cut(s, longer, tl.load(count + below), held, value, entry, tie, k, norms, gains, cap, L, KP, LP)
        tl.debug_barrier()
    tl.store(deepest + s, deep)
    return deep, held


@triton.jit
def grow(
    value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places,
    status, deepest, limit, rules, caps, norm, gain, answers, kept, bars, pick_length, pick_place, wants, counters,
    most, L, W, MANY: tl.constexpr, PICKS: tl.constexpr, KP: tl.constexpr, CP: tl.constexpr, LP: tl.constexpr,
    TILE: tl.constexpr, CROWD: tl.constexpr, KEEP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Push what the last step scored, find the n best answers, and pick the open hypotheses that come first.

    Every input has rules of its own. Best first: those whose bound precedes the n-th answer; as Hugging Face stops, until that
    is settled; by level: all of the shortest length that has open ones, until there are enough answers.
    """
    wait_for_previous(OVERLAP)
    s = tl.program_id(0)
    tl.store(wants + s, 0)
    if tl.load(status + s) == 1:
        mine = rules + s * RULES
        k = tl.load(mine + BEAM)
        n = tl.load(mine + NBEST)
        search = tl.load(mine + SEARCH)
        rises = tl.load(mine + RISES)
        norms = norm + tl.load(mine + SCORE) * LP
        gains = gain + tl.load(mine + SCORE) * LP
        cap = tl.load(caps + s)
        end = tl.load(limit + s)
        lanes = tl.arange(0, KP)
        lengths = tl.arange(0, LP)
        keeps = tl.load(mine + KEEPS)
        deep, held = push_all(
            s, value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places,
            deepest, end, tl.load(mine + TRUNCATED), keeps, k, norms, gains, cap, L, W, KP, CP, LP, TILE, CROWD, KEEP,
        )  # fmt: skip
        lists = 2 * (s * L + lengths)
        known = lengths <= deep
        unfinished = tl.load(count + lists, mask=known, other=0)
        finished = tl.load(count + lists + 1, mask=known, other=0)
        if KEEP:  # those that hold a slot are the answers
            finished = tl.where(keeps != 0, held, finished)
            unfinished = tl.where(keeps != 0, 0, unfinished)
        heads = tl.load(head + s * L + lengths, mask=known & (lengths < end), other=-INF)
        after = tl.full([], -INF, tl.float64)  # by level: what comes after this cannot matter
        whole = 0  # by level: whether all of the level is needed, whatever the answers are
        if search == BY_LEVEL:
            # What cannot matter: its children would find a beam full of better ones, whose last can reach so much.
            full = (lengths < deep) & (tl.load(count + lists + 2, mask=lengths < deep, other=0) >= k)
            last = tl.load(value + (lists + 2).to(tl.int64) * KP + k - 1, mask=full, other=-INF)
            longer = tl.minimum(lengths + 1, LP - 1)
            reach = tl.maximum(final(last, longer, norms, gains, cap), bound(last, longer, end, rises, norms, gains, cap))
            reach = tl.where(full & (tl.load(mine + PRUNES) != 0), reach, -INF)
            heads = tl.where(bound(heads, lengths, end, rises, norms, gains, cap) < reach, -INF, heads)
            level = tl.min(tl.where(heads > -INF, lengths, LP), 0)
            after = tl.max(tl.where(lengths == level, reach, -INF), 0)
            found = answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
            whole = ((level < deep) | (tl.load(mine + PRUNES) == 0)).to(tl.int32)
            firsts = tl.load(value + lists.to(tl.int64) * KP, mask=unfinished > 0, other=-INF)
            top = tl.max(tl.where(lengths == level, firsts, -INF), 0)
            proven = nothing_precedes(
                tl.load(mine + SETTLED), top, level, end, rises, found, lists, value, norms, gains, cap, KP, LP
            )  # fmt: skip
            over = (level == deep) & (proven | (tl.sum(found, 0) >= tl.load(mine + ENOUGH)))
            heads = tl.where((lengths == level) & (over == 0), heads, -INF)
        bounds = bound(heads, lengths, end, rises, norms, gains, cap)
        bar, bar_length = n_best(
            n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k, most, L,
            MANY, KP, LP,
        )  # fmt: skip
        tl.store(bars + s * 2, bar)
        tl.store(bars + s * 2 + 1, bar_length.to(tl.float64))
        best = tl.max(bounds, 0)
        t = tl.min(tl.where(bounds == best, lengths, LP), 0)
        bar = tl.where(whole != 0, -INF, bar)
        if search == AS_HUGGING_FACE:
            found = answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
            enough = tl.load(mine + ENOUGH)
            if tl.sum(found, 0) >= enough:
                firsts = tl.load(value + lists.to(tl.int64) * KP, mask=unfinished > 0, other=-INF)
                y_value = tl.max(tl.where(lengths == t, heads, -INF), 0)
                step = hugging_face_step(
                    y_value, tl.where(best > -INF, t, 0), enough, found, firsts, lists, known, deep, end, value, norms, gains,
                    cap, KP, LP,
                )  # fmt: skip
                if step < LP:
                    finished = tl.where(lengths <= step, finished, 0)
                    n_best(
                        n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k,
                        most, L, MANY, KP, LP,
                    )  # fmt: skip
                    best = tl.full([], -INF, tl.float64)
        # The first open ones of all lengths.
        allowed = tl.minimum(tl.load(counters + 5), PICKS)
        picked = 0
        while (picked < allowed) & (best > -INF) & ((best > bar) | ((best == bar) & (t < bar_length))):
            at = 2 * (s * L + t)
            m = tl.load(count + at)
            if KEEP:
                m = tl.where(keeps != 0, tl.load(inside + s * L + t), m)
            cells = at.to(tl.int64) * KP + lanes
            x_value = tl.load(value + cells, mask=lanes < m, other=-INF)
            x_node = tl.load(node + cells, mask=lanes < m, other=CHOSEN)
            # All of this length that come before the first of the others.
            other = tl.max(tl.where(lengths == t, -INF, bounds), 0)
            other_length = tl.min(tl.where((bounds == other) & (lengths != t), lengths, LP), 0)
            reach = bound(x_value, t, end, rises, norms, gains, cap)
            ahead = (reach > other) | ((reach == other) & (t < other_length))
            needed = (reach >= after) & ((reach > bar) | ((reach == bar) & (t < bar_length)))
            chosen = (x_node == OPEN) & ahead & needed
            rank = tl.cumsum(chosen.to(tl.int32), 0) - 1
            chosen = chosen & (rank < allowed - picked)
            tl.debug_barrier()
            tl.store(node + cells, tl.full([KP], CHOSEN, tl.int32), mask=chosen)
            tl.store(pick_length + s * PICKS + picked + rank, t + tl.zeros_like(rank), mask=chosen)
            tl.store(pick_place + s * PICKS + picked + rank, lanes, mask=chosen)
            picked += tl.sum(chosen.to(tl.int32), 0)
            rest = tl.max(tl.where((x_node == OPEN) & (chosen == 0), x_value, -INF), 0)
            bounds = tl.where(lengths == t, bound(rest, t, end, rises, norms, gains, cap), bounds)
            bounds = tl.where(tl.max(bounds, 0) < after, -INF, bounds)
            best = tl.max(bounds, 0)
            t = tl.min(tl.where(bounds == best, lengths, LP), 0)
            tl.debug_barrier()
        tl.store(wants + s, picked)
        if picked == 0:
            tl.store(status + s, 2)
