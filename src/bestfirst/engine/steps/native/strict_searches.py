"""Strict searches: `search/strict.py` compiled, and which hypothesis comes next in these and in `step_searches`.

Functions are named after the methods there; `h` is a search and `q` its progress (`search_plan`).
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from . import search_plan as s
from . import step_searches
from .code import doubles, floats, ints, longs
from .kernels import compiled
from .search_state import add_guess, child_of, enter, is_end, pop_first, push, switch


@compiled()
def finish(q: Any, h: Any, counts: Any, marks: Any, parent: int, j: int, length: int, value: float) -> None:
    """A finished hypothesis: an answer if its beam has a free place; under `keep` it takes one at every later length, too."""
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
    """Whether all continuations of a hypothesis of this length and value are sure to fall off a beam."""
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
    """The next unfinished hypothesis to score, or -1 when the search is over (Alg. 2, lines 5 to 10)."""
    k, n_max = h[s.K], h[s.N_MAX]
    counts, marks = longs(q[s.COUNTS_AT], (3, n_max + 2)), doubles(q[s.MARKS_AT], (5, n_max + 2))
    taken = counts[s.MEMBERS] if h[s.KEEP] else counts[s.UNFINISHED]
    while q[s.QUEUED] > 0 and q[s.SETTLED] == 0:
        value = -doubles(q[s.COSTS_AT], (1,))[0]
        cursor = ints(q[s.CURSORS_AT], (1, 3))[0]
        length, parent, j = cursor[0], cursor[1], cursor[2]
        pop_first(q, h)
        if taken[length] >= k:
            continue  # the beam is full; further siblings are no better and would not enter either
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
    """Queue the children of `y`, which is scored (Alg. 2, lines 11 to 15)."""
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


# -- which hypothesis comes next -------------------------------------------------------------------------------------------


@compiled()
def next_of(q: Any, h: Any) -> int:
    """As `pop`; in step searches also the hypotheses set aside, when they come next (`StepSearch._pop`)."""
    if not h[s.BY_STEP]:
        return pop(q, h)
    counts, marks = longs(q[s.COUNTS_AT], (3, h[s.N_MAX] + 2)), doubles(q[s.MARKS_AT], (5, h[s.N_MAX] + 2))
    while True:
        if not q[s.SHORTER]:
            y = pop(q, h)
            if q[s.ASIDES] == 0 or (y >= 0 and marks[s.ATTAINS, 0] < step_searches.rival(q, h, counts, y)):
                return y
            q[s.NEXT], q[s.SETTLED] = y, 0
            switch(q, h)
        while q[s.ASIDES] > 0:
            y = counts[s.ASIDE, 0]
            q[s.ASIDES] -= 1
            for i in range(q[s.ASIDES]):
                counts[s.ASIDE, i] = counts[s.ASIDE, i + 1]
            if not step_searches.is_left_out(q, h, counts, marks, y):
                return y
        y, later = pop(q, h), q[s.NEXT]
        values = doubles(h[s.VALUES_AT], (h[s.NODES],))
        if y >= 0 and (later < 0 or values[y] >= values[later]):
            return y
        switch(q, h)
        q[s.ASIDES], marks[s.ATTAINS, 0] = 0, -inf
        if y >= 0:
            q[s.ASIDES], counts[s.ASIDE, 0], marks[s.ATTAINS, 0] = 1, y, step_searches.final(h, values[y], q[s.OFF])
        if later < 0 or not step_searches.ends(q, h, counts, marks, later):
            return later


@compiled()
def advance(h: Any) -> None:
    """Advance NEEDED to the next hypothesis that must be scored and is not, or -1."""
    q, y = h[s.PROGRESS :], h[s.NEEDED]
    while y >= 0:
        node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
        if node[s.ROW] < 0:
            break
        if node[s.ON_BEAM] == 0:
            node[s.ON_BEAM] = 1
            h[s.CALLS] += 1
        open_(q, h, y)
        y = next_of(q, h)
        if y < 0 and h[s.BY_STEP]:
            y = step_searches.end(q, h)
    h[s.NEEDED] = y


@compiled()
def copy(numbers: Any, to: Any) -> None:
    for i in range(numbers.shape[0]):  # slice assignment would link numba's Python exceptions
        to[i] = numbers[i]


@compiled()
def look_ahead(e: Any, h: Any, place: int, m: int, guesses: int) -> int:
    """Add up to `m` hypotheses that would be needed next, if those not scored had no children, to the step's guesses."""
    if m < 1:
        return guesses
    q, played, n = h[s.PROGRESS :], e[s.PLAYED_AT :], h[s.N_MAX] + 2
    copy(q[s.QUEUED : s.NEXT + 1], played[s.QUEUED : s.NEXT + 1])
    played[s.IN_EARNEST] = 0
    copy(longs(q[s.COSTS_AT], (q[s.QUEUED],)), longs(played[s.COSTS_AT], (q[s.QUEUED],)))
    copy(ints(q[s.CURSORS_AT], (3 * q[s.QUEUED],)), ints(played[s.CURSORS_AT], (3 * q[s.QUEUED],)))
    for i in range(3 if h[s.BY_STEP] else 2):
        copy(longs(q[s.COUNTS_AT], (3, n))[i, : q[s.LENGTHS]], longs(played[s.COUNTS_AT], (3, n))[i, : q[s.LENGTHS]])
    for i in range(5 if h[s.BY_STEP] else 2):
        copy(longs(q[s.MARKS_AT], (5, n))[i, : q[s.LENGTHS]], longs(played[s.MARKS_AT], (5, n))[i, : q[s.LENGTHS]])
    if h[s.BY_STEP]:
        copy(longs(q[s.ANSWERS_AT], (q[s.FOUND],)), longs(played[s.ANSWERS_AT], (q[s.FOUND],)))  # two integers each
        copy(longs(q[s.AWAY_COSTS_AT], (q[s.AWAY],)), longs(played[s.AWAY_COSTS_AT], (q[s.AWAY],)))
        copy(ints(q[s.AWAY_CURSORS_AT], (3 * q[s.AWAY],)), ints(played[s.AWAY_CURSORS_AT], (3 * q[s.AWAY],)))
        copy(longs(q[s.ANSWER_VALUES_AT], (q[s.FOUND],)), longs(played[s.ANSWER_VALUES_AT], (q[s.FOUND],)))
    best = doubles(h[s.VALUES_AT], (h[s.NODES],))[h[s.NEEDED]]
    while m > 0:
        y = next_of(played, h)
        if y < 0:
            break
        if ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.ROW] >= 0:
            open_(played, h, y)
            continue
        guesses = add_guess(e, place, y, best - doubles(h[s.VALUES_AT], (h[s.NODES],))[y], guesses)
        m -= 1
    return guesses
