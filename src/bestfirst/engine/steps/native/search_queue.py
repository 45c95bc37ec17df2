"""Search queue: of a compiled search, the next child of each scored hypothesis, and what is put away (`search/step.py`).

Of a progress, `q`, and a search, `h`.
"""

from __future__ import annotations

from typing import Any

from . import search_plan as s
from .kernels import compiled
from .memory_views import doubles, ints
from .search_nodes import token_of, tokens_before


@compiled()
def is_before(q: Any, h: Any, a: int, b: int) -> bool:
    """Whether cursor `a` of a queue comes before `b`: by value, length, tokens."""
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    if costs[a] != costs[b]:
        return costs[a] < costs[b]
    if cursors[a, 0] != cursors[b, 0]:
        return cursors[a, 0] < cursors[b, 0]
    one, other = cursors[a, 1], cursors[b, 1]
    return tokens_before(h, one, token_of(h, one, cursors[a, 2]), other, token_of(h, other, cursors[b, 2]))


@compiled()
def swap(q: Any, a: int, b: int) -> None:
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    costs[a], costs[b] = costs[b], costs[a]
    for i in range(3):
        cursors[a, i], cursors[b, i] = cursors[b, i], cursors[a, i]


@compiled()
def push(q: Any, h: Any, cost: float, length: int, parent: int, j: int) -> None:
    """The j-th child of `parent` waits for its turn."""
    at = q[s.QUEUED]
    q[s.QUEUED] = at + 1
    doubles(q[s.COSTS_AT], (at + 1,))[at] = cost
    cursor = ints(q[s.CURSORS_AT], (at + 1, 3))[at]
    cursor[0], cursor[1], cursor[2] = length, parent, j
    while at > 0 and is_before(q, h, at, (at - 1) // 2):
        swap(q, at, (at - 1) // 2)
        at = (at - 1) // 2


@compiled()
def sink(q: Any, h: Any, at: int) -> None:
    """Put a cursor behind those after it that come before it."""
    while 2 * at + 1 < q[s.QUEUED]:
        child = 2 * at + 1
        if child + 1 < q[s.QUEUED] and is_before(q, h, child + 1, child):
            child += 1
        if not is_before(q, h, child, at):
            return
        swap(q, at, child)
        at = child


@compiled()
def drop_first(q: Any, h: Any) -> None:
    q[s.QUEUED] -= 1
    last = q[s.QUEUED]
    costs, cursors = doubles(q[s.COSTS_AT], (last + 1,)), ints(q[s.CURSORS_AT], (last + 1, 3))
    move(costs, cursors, last, costs, cursors, 0)
    sink(q, h, 0)


@compiled()
def move(costs: Any, cursors: Any, at: int, to_costs: Any, to_cursors: Any, to: int) -> None:
    to_costs[to] = costs[at]
    for i in range(3):
        to_cursors[to, i] = cursors[at, i]


@compiled()
def order(q: Any, h: Any) -> None:
    for back in range(1, q[s.QUEUED] // 2 + 1):
        sink(q, h, q[s.QUEUED] // 2 - back)


@compiled()
def put_away(q: Any, h: Any, off: int) -> None:
    """What is shorter than `off`."""
    n, away, kept = q[s.QUEUED], q[s.AWAY], 0
    costs, cursors = doubles(q[s.COSTS_AT], (n,)), ints(q[s.CURSORS_AT], (n, 3))
    their_costs, theirs = doubles(q[s.AWAY_COSTS_AT], (away + n,)), ints(q[s.AWAY_CURSORS_AT], (away + n, 3))
    for at in range(n):
        if cursors[at, 0] < off:
            move(costs, cursors, at, their_costs, theirs, away)
            away += 1
        else:
            move(costs, cursors, at, costs, cursors, kept)
            kept += 1
    q[s.QUEUED], q[s.AWAY] = kept, away
    order(q, h)


@compiled()
def switch(q: Any, h: Any) -> None:
    """From what is shorter to what is not, or back."""
    n = max(q[s.QUEUED], q[s.AWAY])
    costs, cursors = doubles(q[s.COSTS_AT], (n,)), ints(q[s.CURSORS_AT], (n, 3))
    their_costs, theirs = doubles(q[s.AWAY_COSTS_AT], (n,)), ints(q[s.AWAY_CURSORS_AT], (n, 3))
    for at in range(n):
        costs[at], their_costs[at] = their_costs[at], costs[at]
        for i in range(3):
            cursors[at, i], theirs[at, i] = theirs[at, i], cursors[at, i]
    q[s.QUEUED], q[s.AWAY], q[s.SHORTER] = q[s.AWAY], q[s.QUEUED], 1 - q[s.SHORTER]
    order(q, h)
