"""Strict searches: `search/strict.py`, compiled. Names are those of that file; of a progress, `q`, and a search, `h`."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from . import search_plan as s
from . import step_searches
from .kernels import compiled
from .memory_views import doubles, floats, ints, longs
from .search_nodes import child_of, enter, is_end
from .search_queue import drop_first, push


@compiled()
def finish(q: Any, h: Any, counts: Any, marks: Any, parent: int, j: int, length: int, value: float) -> None:
    """A finished hypothesis: an answer if there is a slot for it; under `keep`, at every later length as well."""
    last = q[s.LENGTHS] if h[s.KEEP] else length + 1
    for at in range(length, last):
        if counts[s.MEMBERS, at] >= h[s.K]:
            return
        enter(h, counts, marks, at, value)
    if q[s.IN_EARNEST]:
        answer = ints(q[s.ANSWERS_AT], (h[s.N], 2))[q[s.FOUND]]
        answer[0], answer[1] = parent, j
        doubles(q[s.ANSWER_VALUES_AT], (h[s.N],))[q[s.FOUND]] = value
    q[s.FOUND] += 1
    q[s.SETTLED] = q[s.FOUND] >= h[s.N]


@compiled()
def is_hopeless(q: Any, h: Any, counts: Any, marks: Any, length: int, value: float) -> bool:
    """Whether everything that a hypothesis could become is sure to fall off a beam."""
    k = h[s.K]
    for longer in range(length + 1, q[s.LENGTHS]):
        if h[s.KEEP]:
            if counts[s.MEMBERS, longer] >= k and marks[s.LAST, longer] > value:
                return True
            continue
        if counts[s.MEMBERS, longer] < k or marks[s.KTH, longer] <= value:
            return False
        if counts[s.UNFINISHED, longer] >= k and marks[s.LAST, longer] > value:
            return True
    return not h[s.KEEP] and q[s.LENGTHS] > h[s.N_MAX]


@compiled()
def pop(q: Any, h: Any) -> int:
    """The next unfinished hypothesis that must be scored, or -1 when the search is over (Alg. 2, lines 5 to 10)."""
    k, n_max = h[s.K], h[s.N_MAX]
    counts, marks = longs(q[s.COUNTS_AT], (3, n_max + 2)), doubles(q[s.MARKS_AT], (5, n_max + 2))
    taken = counts[s.MEMBERS] if h[s.KEEP] else counts[s.UNFINISHED]
    while q[s.QUEUED] > 0 and q[s.SETTLED] == 0:
        value = -doubles(q[s.COSTS_AT], (1,))[0]
        cursor = ints(q[s.CURSORS_AT], (1, 3))[0]
        length, parent, j = cursor[0], cursor[1], cursor[2]
        drop_first(q, h)
        if taken[length] >= k:
            continue  # the beam is full; its siblings, which are no better, would not enter either
        row = ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.ROW]
        if j + 1 < ints(h[s.ROWS_AT], (row + 1, 4))[row, s.COUNT]:
            more = np.float64(floats(h[s.BEST_AT], (h[s.SCORED], h[s.WIDTH]))[row, j + 1])
            push(q, h, -(doubles(h[s.VALUES_AT], (h[s.NODES],))[parent] + more), length, parent, j + 1)
        token = ints(h[s.TOKENS_AT], (h[s.SCORED], h[s.WIDTH]))[row, j]
        if is_end(h, length, token):
            if h[s.BY_STEP]:
                step_searches.finish(q, h, counts, marks, parent, j, length, value)
            else:
                finish(q, h, counts, marks, parent, j, length, value)
            continue
        counts[s.UNFINISHED, length] += 1
        marks[s.LAST, length] = value
        enter(h, counts, marks, length, value)
        y = child_of(h, parent, row, j, token, length, value)
        if q[s.IN_EARNEST] and length > ints(h[s.NODES_AT], (h[s.NODES], 5))[h[s.DEEPEST], s.LENGTH]:
            h[s.DEEPEST] = y
        if length == n_max:
            continue
        if h[s.BY_STEP]:
            if not step_searches.is_hopeless(q, h, counts, marks, y, length, value):
                return y
        elif not is_hopeless(q, h, counts, marks, length, value):
            return y
    return -1


@compiled()
def open_(q: Any, h: Any, y: int) -> None:
    """Let the children of `y`, which is scored, wait for their turn (Alg. 2, lines 11 to 15)."""
    node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
    length = node[s.LENGTH] + 1
    if length == q[s.LENGTHS]:
        counts, marks = longs(q[s.COUNTS_AT], (3, h[s.N_MAX] + 2)), doubles(q[s.MARKS_AT], (5, h[s.N_MAX] + 2))
        carried = counts[s.MEMBERS, length - 1] - counts[s.UNFINISHED, length - 1] if h[s.KEEP] else 0
        counts[s.MEMBERS, length], counts[s.UNFINISHED, length] = carried, 0
        marks[s.KTH, length], marks[s.LAST, length], marks[s.HIDDEN, length] = -inf, inf, inf
        q[s.LENGTHS] = length + 1
    row = node[s.ROW]
    if ints(h[s.ROWS_AT], (row + 1, 4))[row, s.COUNT] > 0:
        best = np.float64(floats(h[s.BEST_AT], (h[s.SCORED], h[s.WIDTH]))[row, 0])
        push(q, h, -(doubles(h[s.VALUES_AT], (h[s.NODES],))[y] + best), length, y, 0)
