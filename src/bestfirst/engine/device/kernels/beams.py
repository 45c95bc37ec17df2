"""Beams on the device: one program per input updates its beams with what was scored, and picks what to score next.

The beams are those of `bestfirst.search`: for each length, the k best unfinished hypotheses of all that are known and, in a list
of their own, the finished ones (rule `leave`; `keep_rule` for `keep`). They are a function of the set of scored hypotheses
(`docs/algorithm.md`), so neither the order nor the number of hypotheses scored per step matters.

A *list* is a sorted row of at most k cells; list 2 (s L + t) holds the unfinished hypotheses of input s and length t, the next
list the finished ones. A *cell* stores a value, an *entry*, a node (`OPEN` until it is scored) and whether its children have been
pushed. An entry indexes all successors ever stored, the j-th of node p being p W + j, so a hypothesis that returns to a beam
finds its node again. Ties in value are broken by a hash of the parent's tokens, then by the token: no schedule changes that.
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
    bound,
    count_answers_by_length,
    final,
    hugging_face_step,
    nothing_precedes,
    update_n_best,
)  # fmt: skip
from .beam_lists import push_children, push_children_of_many
from .keep_rule import cut_beam


@triton.jit
def start_inputs(
    n_inputs, given_caps, slots, limits, lengths, settings, value, entry, tie, node, pushed, count, head, scored, child,
    status, deepest, limit, source_length, rules, caps, rows, steps, drafted, stride, L, roots, P, KP: tl.constexpr,
    LP: tl.constexpr,
):  # fmt: skip
    """Put a new input and its settings into a slot: all beams are empty, but for the root."""
    i = tl.program_id(0)
    if i < tl.load(n_inputs):
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
def push_scored(
    s, value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places, deepest,
    end, truncated, keeps, k, norms, gains, cap, L, W, KP: tl.constexpr, CP: tl.constexpr, LP: tl.constexpr, TILE: tl.constexpr,
    CROWD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Push the children of what the last step scored, from the shortest such length up.

    A beam is rebuilt when the one before it has lost a member whose children had been pushed. Under `keep`, every beam is
    visited, because slot holders pass from each beam to the next. Returns the length of the longest beam and, under `keep`, how
    many finished hypotheses of each length hold a slot of it.
    """
    lanes = tl.arange(0, KP)
    lengths = tl.arange(0, LP)
    longest = tl.load(deepest + s)
    fresh = tl.load(scored + s * L + lengths, mask=lengths < L, other=0)
    tl.store(scored + s * L + lengths, tl.zeros_like(fresh), mask=lengths < L)
    t = tl.min(tl.where(fresh != 0, lengths, LP), 0)
    n_held = tl.zeros([LP], tl.int32)
    n_inside = 1
    if KEEP:
        t = tl.where(keeps != 0, 0, t)
    rebuild = 0
    while (t < end) & (t <= longest):
        at = 2 * (s * L + t)
        below = at + 2
        longer = t + 1
        m = tl.load(count + at)
        cells = at.to(tl.int64) * KP + lanes
        if KEEP and keeps != 0:
            out = (lanes >= n_inside) & (lanes < m)
            rebuild = rebuild | tl.max(tl.load(pushed + cells, mask=out, other=0).to(tl.int32), 0)
            tl.debug_barrier()
            tl.store(pushed + cells, tl.zeros_like(lanes).to(tl.int8), mask=out)
            tl.store(inside + s * L + t, n_inside)
            m = tl.minimum(n_inside, m)
        x_value = tl.load(value + cells, mask=lanes < m, other=-INF)
        x_node = tl.load(node + cells, mask=lanes < m, other=OPEN)
        x_pushed = tl.load(pushed + cells, mask=lanes < m, other=0).to(tl.int32)
        tl.debug_barrier()
        o_node = tl.full([KP], OPEN, tl.int32)
        if rebuild != 0:
            # Mark members below whose children were pushed: they are not pushed again, unless one of these members is lost.
            o_cells = below.to(tl.int64) * KP + lanes
            valid = lanes < tl.load(count + below)
            o_pushed = tl.load(pushed + o_cells, mask=valid, other=0).to(tl.int32)
            o_node = tl.load(node + o_cells, mask=valid & (o_pushed != 0), other=OPEN)
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
        lost = 0
        scored_entered = 0
        if CROWD > 1:
            lost, scored_entered = push_children_of_many(
                value, entry, tie, node, pushed, count, logprob, token, child, hashes, turns + s * KP, places + s * CROWD,
                at, below, todo, last_length, k, W, KP, TILE, CROWD,
            )  # fmt: skip
        else:
            remaining = tl.sum(todo.to(tl.int32), 0)
            while remaining > 0:
                i = tl.min(tl.where(todo, lanes, KP), 0)
                parent = tl.sum(tl.where(lanes == i, x_node, 0), 0)
                v = tl.sum(tl.where(lanes == i, x_value, 0.0), 0)
                lost_now, entered_now = push_children(
                    value, entry, tie, node, pushed, count, logprob, token, child, hashes,
                    parent, v, below, last_length, k, W, KP, CP,
                )  # fmt: skip
                lost = lost | lost_now
                scored_entered = scored_entered | entered_now
                todo = todo & (lanes != i)
                remaining -= 1
        m = tl.load(count + below)
        y_value = tl.load(value + below.to(tl.int64) * KP + lanes, mask=lanes < m, other=-INF)
        y_node = tl.load(node + below.to(tl.int64) * KP + lanes, mask=lanes < m, other=OPEN)
        if rebuild != 0:
            was_pushed = tl.load(mark + y_node, mask=y_node >= 0, other=0)
            tl.debug_barrier()
            tl.store(pushed + below.to(tl.int64) * KP + lanes, was_pushed, mask=y_node >= 0)
            tl.store(mark + y_node, tl.zeros_like(was_pushed), mask=y_node >= 0)
            tl.debug_barrier()
            marked = tl.load(mark + o_node, mask=o_node >= 0, other=0)
            lost = tl.max(marked.to(tl.int32), 0)
            tl.debug_barrier()
            tl.store(mark + o_node, tl.zeros_like(marked), mask=o_node >= 0)
        best = tl.max(tl.where(y_node == OPEN, y_value, -INF), 0)
        tl.store(head + s * L + t + 1, tl.where(t + 1 < end, best, -INF))
        if m + tl.load(count + below + 1) > 0:
            longest = tl.maximum(longest, t + 1)
        rebuild = lost
        next_scored = tl.min(tl.where((fresh != 0) & (lengths > t), lengths, LP), 0)
        t = tl.where((rebuild | scored_entered) != 0, t + 1, next_scored)
        if KEEP and keeps != 0:
            t = longer
            n_held = tl.where(lengths == longer, tl.load(count + below + 1), n_held)
            n_inside, n_held = cut_beam(
                s, longer, tl.load(count + below), n_held, value, entry, tie, k, norms, gains, cap, L, KP, LP
            )
        tl.debug_barrier()
    tl.store(deepest + s, longest)
    return longest, n_held


@triton.jit
def grow(
    value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places,
    status, deepest, limit, rules, caps, norm, gain, answers, kept, bars, pick_length, pick_place, wants, counters,
    most, L, W, MANY: tl.constexpr, PICKS: tl.constexpr, KP: tl.constexpr, CP: tl.constexpr, LP: tl.constexpr,
    TILE: tl.constexpr, CROWD: tl.constexpr, KEEP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Push what the last step scored, update the n best answers, and pick the open hypotheses that come first. Each input follows
    its own rules. Best first: open hypotheses whose bound precedes the n-th answer; `AS_HUGGING_FACE`: until that stop is
    settled; by level: all open ones of the shortest length that has any, until there are enough answers."""
    wait_for_previous(OVERLAP)
    s = tl.program_id(0)
    tl.store(wants + s, 0)
    if tl.load(status + s) == 1:
        own_rules = rules + s * RULES
        k = tl.load(own_rules + BEAM)
        n = tl.load(own_rules + NBEST)
        search = tl.load(own_rules + SEARCH)
        rises = tl.load(own_rules + RISES)
        norms = norm + tl.load(own_rules + SCORE) * LP
        gains = gain + tl.load(own_rules + SCORE) * LP
        cap = tl.load(caps + s)
        end = tl.load(limit + s)
        lanes = tl.arange(0, KP)
        lengths = tl.arange(0, LP)
        keeps = tl.load(own_rules + KEEPS)
        longest, n_held = push_scored(
            s, value, entry, tie, node, pushed, count, inside, head, scored, logprob, token, child, hashes, mark, turns, places,
            deepest, end, tl.load(own_rules + TRUNCATED), keeps, k, norms, gains, cap, L, W, KP, CP, LP, TILE, CROWD, KEEP,
        )  # fmt: skip
        lists = 2 * (s * L + lengths)
        known = lengths <= longest
        unfinished = tl.load(count + lists, mask=known, other=0)
        finished = tl.load(count + lists + 1, mask=known, other=0)
        if KEEP:  # slot holders are the answers
            finished = tl.where(keeps != 0, n_held, finished)
            unfinished = tl.where(keeps != 0, 0, unfinished)
        heads = tl.load(head + s * L + lengths, mask=known & (lengths < end), other=-INF)
        min_reach = tl.full([], -INF, tl.float64)  # by level: what reaches less cannot matter
        whole_level = 0  # by level: whether the whole level is needed, whatever the answers
        if search == BY_LEVEL:
            # Prune what reaches less than the last member of a full next beam: its children would find k better ones there.
            full = (lengths < longest) & (tl.load(count + lists + 2, mask=lengths < longest, other=0) >= k)
            last = tl.load(value + (lists + 2).to(tl.int64) * KP + k - 1, mask=full, other=-INF)
            longer = tl.minimum(lengths + 1, LP - 1)
            reach = tl.maximum(final(last, longer, norms, gains, cap), bound(last, longer, end, rises, norms, gains, cap))
            reach = tl.where(full & (tl.load(own_rules + PRUNES) != 0), reach, -INF)
            heads = tl.where(bound(heads, lengths, end, rises, norms, gains, cap) < reach, -INF, heads)
            level = tl.min(tl.where(heads > -INF, lengths, LP), 0)
            min_reach = tl.max(tl.where(lengths == level, reach, -INF), 0)
            n_answers = count_answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
            whole_level = ((level < longest) | (tl.load(own_rules + PRUNES) == 0)).to(tl.int32)
            firsts = tl.load(value + lists.to(tl.int64) * KP, mask=unfinished > 0, other=-INF)
            top = tl.max(tl.where(lengths == level, firsts, -INF), 0)
            proven = nothing_precedes(
                tl.load(own_rules + SETTLED), top, level, end, rises, n_answers, lists, value, norms, gains, cap, KP, LP
            )  # fmt: skip
            level_done = (level == longest) & (proven | (tl.sum(n_answers, 0) >= tl.load(own_rules + ENOUGH)))
            heads = tl.where((lengths == level) & (level_done == 0), heads, -INF)
        bounds = bound(heads, lengths, end, rises, norms, gains, cap)
        bar, bar_length = update_n_best(
            n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k, most, L,
            MANY, KP, LP,
        )  # fmt: skip
        tl.store(bars + s * 2, bar)
        tl.store(bars + s * 2 + 1, bar_length.to(tl.float64))
        best = tl.max(bounds, 0)
        t = tl.min(tl.where(bounds == best, lengths, LP), 0)
        bar = tl.where(whole_level != 0, -INF, bar)
        if search == AS_HUGGING_FACE:
            n_answers = count_answers_by_length(lists, unfinished, finished, value, entry, tie, k, KP)
            enough = tl.load(own_rules + ENOUGH)
            if tl.sum(n_answers, 0) >= enough:
                firsts = tl.load(value + lists.to(tl.int64) * KP, mask=unfinished > 0, other=-INF)
                y_value = tl.max(tl.where(lengths == t, heads, -INF), 0)
                step = hugging_face_step(
                    y_value, tl.where(best > -INF, t, 0), enough, n_answers, firsts, lists, known, longest, end, value, norms,
                    gains, cap, KP, LP,
                )  # fmt: skip
                if step < LP:
                    finished = tl.where(lengths <= step, finished, 0)
                    update_n_best(
                        n, s, lists, unfinished, finished, value, entry, tie, answers, kept, norms, gains, cap, k,
                        most, L, MANY, KP, LP,
                    )  # fmt: skip
                    best = tl.full([], -INF, tl.float64)
        # Pick the first open hypotheses over all lengths.
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
            # All of this length that come before the first one of any other length.
            other = tl.max(tl.where(lengths == t, -INF, bounds), 0)
            other_length = tl.min(tl.where((bounds == other) & (lengths != t), lengths, LP), 0)
            reach = bound(x_value, t, end, rises, norms, gains, cap)
            before_others = (reach > other) | ((reach == other) & (t < other_length))
            needed = (reach >= min_reach) & ((reach > bar) | ((reach == bar) & (t < bar_length)))
            chosen = (x_node == OPEN) & before_others & needed
            rank = tl.cumsum(chosen.to(tl.int32), 0) - 1
            chosen = chosen & (rank < allowed - picked)
            tl.debug_barrier()
            tl.store(node + cells, tl.full([KP], CHOSEN, tl.int32), mask=chosen)
            tl.store(pick_length + s * PICKS + picked + rank, t + tl.zeros_like(rank), mask=chosen)
            tl.store(pick_place + s * PICKS + picked + rank, lanes, mask=chosen)
            picked += tl.sum(chosen.to(tl.int32), 0)
            rest = tl.max(tl.where((x_node == OPEN) & (chosen == 0), x_value, -INF), 0)
            bounds = tl.where(lengths == t, bound(rest, t, end, rises, norms, gains, cap), bounds)
            bounds = tl.where(tl.max(bounds, 0) < min_reach, -INF, bounds)
            best = tl.max(bounds, 0)
            t = tl.min(tl.where(bounds == best, lengths, LP), 0)
            tl.debug_barrier()
        tl.store(wants + s, picked)
        if picked == 0:
            tl.store(status + s, 2)
