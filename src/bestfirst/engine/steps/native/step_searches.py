"""Step searches: what `search/step.py` does differently from `search/strict.py`, compiled. Named after its methods."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from . import search_plan as s
from .code import doubles, floats, ints, longs
from .kernels import compiled
from .search_state import add_answer, divisor, enter, is_end, length_of, precedes, put_away, score_of, token_of, tokens_before


@compiled()
def finish(q: Any, h: Any, counts: Any, marks: Any, parent: int, j: int, length: int, value: float) -> None:
    """A finished hypothesis: an answer if its beam has a free place, and nothing of its length was left out."""
    if counts[s.MEMBERS, length] >= h[s.K]:
        return
    enter(h, counts, marks, length, value)
    find(q, h, marks, parent, j, length, value)


@compiled()
def find(q: Any, h: Any, marks: Any, parent: int, j: int, length: int, value: float) -> None:
    """Add an answer, unless it is known or something of its length was left out."""
    whence = ints(q[s.ANSWERS_AT], (q[s.FOUND], 2))
    for i in range(q[s.FOUND]):
        if whence[i, 0] == parent and whence[i, 1] == j:
            return
    if marks[s.HIDDEN, length] == inf:
        add_answer(q, h, value, length, parent, j)


@compiled()
def find_equals(q: Any, h: Any, counts: Any, marks: Any, y: int) -> None:
    """Add the answers with the value and the length of `y` that follow it by their tokens and fit on the beam."""
    length, value = ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.LENGTH], doubles(h[s.VALUES_AT], (h[s.NODES],))[y]
    n, slots = q[s.QUEUED], h[s.K] - counts[s.MEMBERS, length]
    costs, cursors = doubles(q[s.COSTS_AT], (n,)), ints(q[s.CURSORS_AT], (n, 3))
    if n == 0 or costs[0] != -value or cursors[0, 0] != length:
        return
    for at in range(n):
        if costs[at] == -value and cursors[at, 0] == length:
            parent, j = cursors[at, 1], cursors[at, 2]
            while is_worth(h, parent, j, value):
                token = token_of(h, parent, j)
                if is_end(h, length, token) and equals_before(q, h, value, length, parent, token) < slots:
                    find(q, h, marks, parent, j, length, value)
                j += 1


@compiled()
def equals_before(q: Any, h: Any, value: float, length: int, parent: int, token: int) -> int:
    """How many queued hypotheses of this value and length precede the child of `parent` with this token."""
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    count = 0
    for at in range(q[s.QUEUED]):
        if costs[at] == -value and cursors[at, 0] == length:
            other, j = cursors[at, 1], cursors[at, 2]
            while is_worth(h, other, j, value) and tokens_before(h, other, token_of(h, other, j), parent, token):
                count += 1
                j += 1
    return count


@compiled()
def is_worth(h: Any, parent: int, j: int, value: float) -> bool:
    """Whether `parent` has a j-th child, and that has this value."""
    row = ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.ROW]
    if j >= ints(h[s.ROWS_AT], (row + 1, 4))[row, s.COUNT]:
        return False
    more = np.float64(floats(h[s.BEST_AT], (h[s.SCORED], h[s.WIDTH]))[row, j])
    return doubles(h[s.VALUES_AT], (h[s.NODES],))[parent] + more == value


@compiled()
def is_hopeless(q: Any, h: Any, counts: Any, marks: Any, y: int, length: int, value: float) -> bool:
    """Whether `y`, first in the queue, need not be scored: the search is over, or no continuation of it matters."""
    if not q[s.SHORTER] and ends(q, h, counts, marks, y):
        return True
    if length == q[s.KNOWN]:
        marks[s.FIRST, length] = value
        q[s.KNOWN] += 1
    if counts[s.UNFINISHED, length] >= h[s.K]:
        q[s.FULL] = max(q[s.FULL], length)
    if q[s.FULL] <= length and q[s.LENGTHS] <= h[s.N_MAX]:
        return False
    return is_left_out(q, h, counts, marks, y)


@compiled()
def is_free(h: Any, counts: Any, marks: Any, at: int, value: float) -> bool:
    """Whether a hypothesis of this value may still enter the beam of length `at`."""
    return counts[s.MEMBERS, at] < h[s.K] or marks[s.KTH, at] <= value


@compiled()
def final(h: Any, value: float, length: int) -> float:
    """The score of a hypothesis of this value and length."""
    return value / divisor(h, s.SCORE, length)


@compiled()
def rival(q: Any, h: Any, counts: Any, y: int) -> float:
    """The score that answers must reach to count for the step that is decided when `y` is first."""
    length = ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.LENGTH]
    return final(h, doubles(h[s.VALUES_AT], (h[s.NODES],))[y], length if counts[s.UNFINISHED, length] == 1 else q[s.KNOWN])


@compiled()
def is_left_out(q: Any, h: Any, counts: Any, marks: Any, y: int) -> bool:
    """Whether all continuations of `y` fall off a beam, and none before is an answer before the n-th; or `y` is set aside."""
    nodes, values = ints(h[s.NODES_AT], (h[s.NODES], 5)), doubles(h[s.VALUES_AT], (h[s.NODES],))
    length, value = nodes[y, s.LENGTH], values[y]
    free = 0  # the greatest length at which a continuation may finish before it falls off
    end = length + 1
    while end < q[s.LENGTHS] and not (counts[s.UNFINISHED, end] >= h[s.K] and marks[s.LAST, end] > value):
        if is_free(h, counts, marks, end, value):
            free = end
        end += 1
    if end == q[s.LENGTHS]:
        return free == 0 and q[s.LENGTHS] > h[s.N_MAX]
    if free == 0:
        return True
    if not h[s.LEAVES_OUT]:
        return False
    attains = final(h, value, free)
    behind = q[s.FOUND] >= h[s.N] and precedes(q, h, h[s.N] - 1, attains, length, nodes[y, s.PARENT], nodes[y, s.TOKEN])
    w = q[s.NEXT] if q[s.SHORTER] else -1
    may_stop = w >= 0 and counts[s.UNFINISHED, nodes[w, s.LENGTH]] == 1 and attains >= final(h, values[w], nodes[w, s.LENGTH])
    if may_stop or not behind:  # not known yet
        if q[s.SHORTER]:
            return False
        counts[s.ASIDE, q[s.ASIDES]] = y
        q[s.ASIDES], q[s.OFF] = q[s.ASIDES] + 1, end
        marks[s.ATTAINS, 0] = max(marks[s.ATTAINS, 0], attains)
        put_away(q, h, end)
        return True
    for at in range(length + 1, end):
        if is_free(h, counts, marks, at, value) and marks[s.HIDDEN, at] == inf:
            marks[s.HIDDEN, at] = final(h, value, at)
    return True


@compiled()
def ends(q: Any, h: Any, counts: Any, marks: Any, y: int) -> bool:
    """Whether, before `y` is scored, the n best answers or the step at which Hugging Face stops are settled."""
    find_equals(q, h, counts, marks, y)
    if q[s.FOUND] < h[s.N]:
        return False
    node, value = ints(h[s.NODES_AT], (h[s.NODES], 5))[y], doubles(h[s.VALUES_AT], (h[s.NODES],))[y]
    q[s.LAST_STEP] = step(q, h, marks, value, node[s.LENGTH])
    bound = final(h, value, h[s.N_MAX])
    certain = precedes(q, h, h[s.N] - 1, bound, node[s.LENGTH], node[s.PARENT], node[s.TOKEN])
    q[s.DECIDED] = q[s.SETTLED] = q[s.LAST_STEP] >= 0 or certain
    return q[s.SETTLED] != 0


@compiled()
def enough_of(q: Any, h: Any, length: int) -> float:
    """The score of the last of ENOUGH answers of at most this length; -inf if there are fewer."""
    count = 0
    for i in range(q[s.FOUND]):
        count += length_of(q, h, i) <= length
        if count == h[s.ENOUGH]:
            return score_of(q, h, i)
    return -inf


@compiled()
def step(q: Any, h: Any, marks: Any, value: float, length: int) -> int:
    """The step at which Hugging Face stops, if what precedes open hypotheses of this value and length settles it; else -1."""
    last = q[s.KNOWN] - 1
    if q[s.FOUND] < h[s.ENOUGH]:
        return -1
    answer, best = score_of(q, h, h[s.ENOUGH] - 1), marks[s.FIRST, last]
    rival = best / divisor(h, s.SCORE, last)
    if answer >= rival:
        there = enough_of(q, h, last)
        if there > rival or (there == rival and (value < best or length >= last)):
            return last
    rival = value / divisor(h, s.SCORE, last + 1)  # -inf if the value is
    return last + 1 if answer > rival or (answer == rival and length > last) else -1


@compiled()
def end(q: Any, h: Any) -> int:
    """The queue is empty: keep the n best answers up to the step (-1), or begin again (root) if what was left out may matter."""
    n_max = h[s.N_MAX]
    marks = doubles(q[s.MARKS_AT], (5, n_max + 2))
    last = q[s.LAST_STEP] if q[s.DECIDED] else step(q, h, marks, -inf, 0)
    found = longest = 0
    for i in range(q[s.FOUND]):
        if found < h[s.N] and (last < 0 or length_of(q, h, i) <= last):
            found, longest = found + 1, max(longest, length_of(q, h, i))
    if h[s.LEAVES_OUT] and not is_certain(q, h, marks, min(longest, q[s.KNOWN])):
        begin_again(q, h, longs(q[s.COUNTS_AT], (3, n_max + 2)), marks)
        return 0
    values, whence = doubles(q[s.ANSWER_VALUES_AT], (q[s.FOUND],)), ints(q[s.ANSWERS_AT], (q[s.FOUND], 2))
    found = 0
    for i in range(q[s.FOUND]):
        if found < h[s.N] and (last < 0 or length_of(q, h, i) <= last):
            values[found], whence[found, 0], whence[found, 1] = values[i], whence[i, 0], whence[i, 1]
            found += 1
    q[s.FOUND] = found
    return -1


@compiled()
def is_certain(q: Any, h: Any, marks: Any, steps: int) -> bool:
    """Whether no answer below what was left out or set aside could have stopped Hugging Face at one of these steps."""
    hidden = -inf
    for at in range(1, steps):
        if marks[s.HIDDEN, at] != inf:
            hidden = max(hidden, marks[s.HIDDEN, at])
        least = final(h, marks[s.FIRST, at], at)
        if hidden >= least or enough_of(q, h, at) >= least:
            return False
    return True


@compiled()
def begin_again(q: Any, h: Any, counts: Any, marks: Any) -> None:
    """Restart with the scores that are known, leaving nothing out."""
    h[s.LEAVES_OUT] = 0
    q[s.QUEUED] = q[s.FOUND] = q[s.FULL] = q[s.SETTLED] = q[s.DECIDED] = q[s.ASIDES] = q[s.SHORTER] = q[s.AWAY] = 0
    q[s.LENGTHS] = q[s.KNOWN] = 1
    q[s.LAST_STEP] = -1
    counts[s.MEMBERS, 0] = counts[s.UNFINISHED, 0] = 1
    marks[s.KTH, 0], marks[s.LAST, 0], marks[s.FIRST, 0], marks[s.HIDDEN, 0] = inf, 0.0, 0.0, inf
