"""Search nodes: the hypotheses of a compiled search, and in which order they come."""

from __future__ import annotations

from typing import Any

from . import search_plan as s
from .kernels import compiled
from .memory_views import doubles, ints, longs


@compiled()
def search_at(e: Any, place: int) -> Any:
    return longs(longs(e[s.SEARCHES_AT], (e[s.SEARCHES],))[place], (s.SEARCH,))


@compiled()
def token_of(h: Any, parent: int, j: int) -> int:
    """The j-th child's."""
    row = ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.ROW]
    return ints(h[s.TOKENS_AT], (h[s.SCORED], h[s.WIDTH]))[row, j]


@compiled()
def tokens_before(h: Any, one: int, first: int, other: int, second: int) -> bool:
    """Whether node `one` and a token come before another and another, of the same length."""
    nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
    while one != other:  # up to where they part
        first, second = nodes[one, s.TOKEN], nodes[other, s.TOKEN]
        one, other = nodes[one, s.PARENT], nodes[other, s.PARENT]
    return first < second


@compiled()
def is_end(h: Any, length: int, token: int) -> bool:
    if length == h[s.COMPLETE]:
        return True
    ends = longs(h[s.ENDS_AT], (h[s.ENDS],))
    for end in ends:  # noqa: SIM110
        if token == end:
            return True
    return False


@compiled()
def child_of(h: Any, parent: int, row: int, j: int, token: int, length: int, value: float) -> int:
    """The same node each time it is looked at."""
    children = ints(h[s.CHILDREN_AT], (h[s.SCORED], h[s.WIDTH]))
    y = children[row, j]
    if y < 0:
        y = children[row, j] = h[s.NODES]
        h[s.NODES] += 1
        node = ints(h[s.NODES_AT], (y + 1, 5))[y]
        node[s.PARENT], node[s.TOKEN], node[s.LENGTH], node[s.ROW], node[s.ON_BEAM] = parent, token, length, -1, 0
        doubles(h[s.VALUES_AT], (y + 1,))[y] = value
    return y


@compiled()
def guessed(e: Any, place: int, y: int, gap: float, guesses: int) -> int:
    """One more guess of a step: whose, which, and by how much it is worse than what is needed."""
    doubles(e[s.GUESS_COSTS_AT], (guesses + 1,))[guesses] = gap
    guess = ints(e[s.GUESSES_AT], (guesses + 1, 3))[guesses]
    guess[0], guess[1], guess[2] = place, y, 0
    return guesses + 1


@compiled()
def enter(h: Any, counts: Any, marks: Any, length: int, value: float) -> None:
    """One more on the beam of this length."""
    counts[s.MEMBERS, length] += 1
    if counts[s.MEMBERS, length] == h[s.K]:
        marks[s.KTH, length] = value
