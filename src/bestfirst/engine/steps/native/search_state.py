"""Search state: the hypotheses of a compiled search, those that wait for their turn, and the answers that it has found.

Of a progress, `q`, and a search, `h`.
"""

from __future__ import annotations

from typing import Any

from . import search_plan as s
from .code import doubles, ints, longs
from .kernels import compiled

# -- hypotheses, and in which order they come ----------------------------------------------------------------------------


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


# -- the queue: the next child of each scored hypothesis, and what is put away (`search/step.py`) --------------------------


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


# -- answers, ranked by score, length and tokens ---------------------------------------------------------------------------


@compiled()
def norm(h: Any, what: int, length: int) -> float:
    """What values of this length are divided by."""
    return doubles(h[s.NORMS_AT], (2, h[s.N_MAX] + 2))[what, length]


@compiled()
def length_of(q: Any, h: Any, i: int) -> int:
    """The i-th answer's."""
    parent = ints(q[s.ANSWERS_AT], (i + 1, 2))[i, 0]
    return ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.LENGTH] + 1


@compiled()
def score_of(q: Any, h: Any, i: int) -> float:
    return doubles(q[s.ANSWER_VALUES_AT], (i + 1,))[i] / norm(h, s.SCORE, length_of(q, h, i))


@compiled()
def precedes(q: Any, h: Any, i: int, worth: float, length: int, parent: int, token: int) -> bool:
    """Whether the i-th answer comes before what is worth so much, of this length, and ends in `token` after `parent`."""
    score, own = score_of(q, h, i), length_of(q, h, i)
    if score != worth:
        return score > worth
    if own != length:
        return own < length
    whence = ints(q[s.ANSWERS_AT], (i + 1, 2))[i]
    return tokens_before(h, whence[0], token_of(h, whence[0], whence[1]), parent, token)


@compiled()
def answers_before(q: Any, h: Any, worth: float, length: int, y: int) -> int:
    """How many answers precede what is worth so much, of this length, with the tokens of `y`."""
    node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
    count = 0
    while count < q[s.FOUND] and precedes(q, h, count, worth, length, node[s.PARENT], node[s.TOKEN]):
        count += 1
    return count


@compiled()
def add_answer(q: Any, h: Any, value: float, length: int, parent: int, j: int) -> None:
    """The j-th child of `parent`, to its place."""
    at, token = q[s.FOUND], token_of(h, parent, j)
    worth = value / norm(h, s.SCORE, length)
    values, whence = doubles(q[s.ANSWER_VALUES_AT], (at + 1,)), ints(q[s.ANSWERS_AT], (at + 1, 2))
    while at > 0 and not precedes(q, h, at - 1, worth, length, parent, token):
        values[at], whence[at, 0], whence[at, 1] = values[at - 1], whence[at - 1, 0], whence[at - 1, 1]
        at -= 1
    values[at], whence[at, 0], whence[at, 1] = value, parent, j
    q[s.FOUND] += 1
