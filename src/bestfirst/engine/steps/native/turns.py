"""Turns: whose it is in compiled searches that go best first, `strict_searches` and `step_searches`."""

from __future__ import annotations

from math import inf
from typing import Any

from . import search_plan as s
from . import step_searches
from .kernels import compiled
from .memory_views import doubles, ints, longs
from .search_nodes import guessed
from .search_queue import switch
from .strict_searches import open_, pop


@compiled()
def next_of(q: Any, h: Any) -> int:
    """As `pop`; and what is set aside when it has its turn (`StepSearch._pop`)."""
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
    """On to the next that must be scored and is not."""
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
    for i in range(numbers.shape[0]):  # an array at once would need Python's errors
        to[i] = numbers[i]


@compiled()
def look_ahead(e: Any, h: Any, place: int, m: int, guesses: int) -> int:
    """Add up to `m` hypotheses that would be needed next, if what is not scored had no children, to the guesses of a step."""
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
        guesses = guessed(e, place, y, best - doubles(h[s.VALUES_AT], (h[s.NODES],))[y], guesses)
        m -= 1
    return guesses
