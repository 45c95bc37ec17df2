"""Search state: the nodes of a compiled search `h`, and the queue and the ranked answers of its progress `q` (`search_plan`)."""

from __future__ import annotations

from typing import Any

from . import search_plan as s
from .code import doubles, ints, longs
from .kernels import compiled

# -- nodes, and their order ------------------------------------------------------------------------------------------------


@compiled()
def search_at(e: Any, place: int) -> Any:
    """The state `h` of a search of this step."""
    return longs(longs(e[s.SEARCHES_AT], (e[s.SEARCHES],))[place], (s.SEARCH,))


@compiled()
def token_of(h: Any, parent: int, j: int) -> int:
    """The token of the j-th child of `parent`, which is scored."""
    row = ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.ROW]
    return ints(h[s.TOKENS_AT], (h[s.SCORED], h[s.WIDTH]))[row, j]


@compiled()
def tokens_before(h: Any, one: int, first: int, other: int, second: int) -> bool:
    """Whether node `one` followed by `first` precedes node `other` followed by `second`, by tokens; both have the same length."""
    nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
    while one != other:  # up to their last common ancestor
        first, second = nodes[one, s.TOKEN], nodes[other, s.TOKEN]
        one, other = nodes[one, s.PARENT], nodes[other, s.PARENT]
    return first < second


@compiled()
def is_end(h: Any, length: int, token: int) -> bool:
    """Whether a hypothesis of this length that ends in `token` is finished."""
    if length == h[s.COMPLETE]:
        return True
    ends = longs(h[s.ENDS_AT], (h[s.ENDS],))
    for end in ends:  # noqa: SIM110
        if token == end:
            return True
    return False


@compiled()
def child_of(h: Any, parent: int, row: int, j: int, token: int, length: int, value: float) -> int:
    """The node of the j-th child of `parent`, made on first use. `row`: the parent's row."""
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
def add_guess(e: Any, place: int, y: int, gap: float, guesses: int) -> int:
    """Append a guess to the step's: the search's place, the node, and how much worse it is than the hypothesis that is needed."""
    doubles(e[s.GUESS_COSTS_AT], (guesses + 1,))[guesses] = gap
    guess = ints(e[s.GUESSES_AT], (guesses + 1, 3))[guesses]
    guess[0], guess[1], guess[2] = place, y, 0
    return guesses + 1


@compiled()
def enter(h: Any, counts: Any, marks: Any, length: int, value: float) -> None:
    """Add one member, of this value, to the beam of this length."""
    counts[s.MEMBERS, length] += 1
    if counts[s.MEMBERS, length] == h[s.K]:
        marks[s.KTH, length] = value


# -- the queue: a heap of cursors, one per scored hypothesis, at its next child (length, parent, child number, cost) -------


@compiled()
def is_before(q: Any, h: Any, a: int, b: int) -> bool:
    """Whether cursor `a` of the queue precedes cursor `b`: by value, length, tokens."""
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    if costs[a] != costs[b]:
        return costs[a] < costs[b]
    if cursors[a, 0] != cursors[b, 0]:
        return cursors[a, 0] < cursors[b, 0]
    one, other = cursors[a, 1], cursors[b, 1]
    return tokens_before(h, one, token_of(h, one, cursors[a, 2]), other, token_of(h, other, cursors[b, 2]))


@compiled()
def swap_cursors(q: Any, a: int, b: int) -> None:
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    costs[a], costs[b] = costs[b], costs[a]
    for i in range(3):
        cursors[a, i], cursors[b, i] = cursors[b, i], cursors[a, i]


@compiled()
def push(q: Any, h: Any, cost: float, length: int, parent: int, j: int) -> None:
    """Push the j-th child of `parent`."""
    at = q[s.QUEUED]
    q[s.QUEUED] = at + 1
    doubles(q[s.COSTS_AT], (at + 1,))[at] = cost
    cursor = ints(q[s.CURSORS_AT], (at + 1, 3))[at]
    cursor[0], cursor[1], cursor[2] = length, parent, j
    while at > 0 and is_before(q, h, at, (at - 1) // 2):
        swap_cursors(q, at, (at - 1) // 2)
        at = (at - 1) // 2


@compiled()
def sink(q: Any, h: Any, at: int) -> None:
    """Restore the heap below index `at`."""
    while 2 * at + 1 < q[s.QUEUED]:
        child = 2 * at + 1
        if child + 1 < q[s.QUEUED] and is_before(q, h, child + 1, child):
            child += 1
        if not is_before(q, h, child, at):
            return
        swap_cursors(q, at, child)
        at = child


@compiled()
def pop_first(q: Any, h: Any) -> None:
    """Remove the heap's first cursor."""
    q[s.QUEUED] -= 1
    last = q[s.QUEUED]
    costs, cursors = doubles(q[s.COSTS_AT], (last + 1,)), ints(q[s.CURSORS_AT], (last + 1, 3))
    move_cursor(costs, cursors, last, costs, cursors, 0)
    sink(q, h, 0)


@compiled()
def move_cursor(costs: Any, cursors: Any, at: int, to_costs: Any, to_cursors: Any, to: int) -> None:
    """Copy a cursor from index `at` to index `to` of these arrays."""
    to_costs[to] = costs[at]
    for i in range(3):
        to_cursors[to, i] = cursors[at, i]


@compiled()
def heapify(q: Any, h: Any) -> None:
    """Heapify the queue."""
    for back in range(1, q[s.QUEUED] // 2 + 1):
        sink(q, h, q[s.QUEUED] // 2 - back)


@compiled()
def put_away(q: Any, h: Any, off: int) -> None:
    """Move the cursors shorter than `off` to the other queue (`StepProgress.away`)."""
    n, away, kept = q[s.QUEUED], q[s.AWAY], 0
    costs, cursors = doubles(q[s.COSTS_AT], (n,)), ints(q[s.CURSORS_AT], (n, 3))
    their_costs, theirs = doubles(q[s.AWAY_COSTS_AT], (away + n,)), ints(q[s.AWAY_CURSORS_AT], (away + n, 3))
    for at in range(n):
        if cursors[at, 0] < off:
            move_cursor(costs, cursors, at, their_costs, theirs, away)
            away += 1
        else:
            move_cursor(costs, cursors, at, costs, cursors, kept)
            kept += 1
    q[s.QUEUED], q[s.AWAY] = kept, away
    heapify(q, h)


@compiled()
def switch(q: Any, h: Any) -> None:
    """Exchange the two queues: of what is shorter than OFF, and of what is not."""
    n = max(q[s.QUEUED], q[s.AWAY])
    costs, cursors = doubles(q[s.COSTS_AT], (n,)), ints(q[s.CURSORS_AT], (n, 3))
    their_costs, theirs = doubles(q[s.AWAY_COSTS_AT], (n,)), ints(q[s.AWAY_CURSORS_AT], (n, 3))
    for at in range(n):
        costs[at], their_costs[at] = their_costs[at], costs[at]
        for i in range(3):
            cursors[at, i], theirs[at, i] = theirs[at, i], cursors[at, i]
    q[s.QUEUED], q[s.AWAY], q[s.SHORTER] = q[s.AWAY], q[s.QUEUED], 1 - q[s.SHORTER]
    heapify(q, h)


# -- answers, sorted by score, length and tokens ---------------------------------------------------------------------------


@compiled()
def divisor(h: Any, which: int, length: int) -> float:
    """The divisor of values of this length, for their score or bound (`which`)."""
    return doubles(h[s.NORMS_AT], (2, h[s.N_MAX] + 2))[which, length]


@compiled()
def length_of(q: Any, h: Any, i: int) -> int:
    """The length of the i-th answer."""
    parent = ints(q[s.ANSWERS_AT], (i + 1, 2))[i, 0]
    return ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.LENGTH] + 1


@compiled()
def score_of(q: Any, h: Any, i: int) -> float:
    """The score of the i-th answer."""
    return doubles(q[s.ANSWER_VALUES_AT], (i + 1,))[i] / divisor(h, s.SCORE, length_of(q, h, i))


@compiled()
def precedes(q: Any, h: Any, i: int, worth: float, length: int, parent: int, token: int) -> bool:
    """Whether the i-th answer precedes a hypothesis of this score (`worth`) and length that is node `parent` and `token`."""
    score, own = score_of(q, h, i), length_of(q, h, i)
    if score != worth:
        return score > worth
    if own != length:
        return own < length
    whence = ints(q[s.ANSWERS_AT], (i + 1, 2))[i]
    return tokens_before(h, whence[0], token_of(h, whence[0], whence[1]), parent, token)


@compiled()
def answers_before(q: Any, h: Any, worth: float, length: int, y: int) -> int:
    """How many answers precede a hypothesis of this score (`worth`) and length with the tokens of `y`."""
    node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
    count = 0
    while count < q[s.FOUND] and precedes(q, h, count, worth, length, node[s.PARENT], node[s.TOKEN]):
        count += 1
    return count


@compiled()
def add_answer(q: Any, h: Any, value: float, length: int, parent: int, j: int) -> None:
    """Insert the j-th child of `parent` into the sorted answers."""
    at, token = q[s.FOUND], token_of(h, parent, j)
    worth = value / divisor(h, s.SCORE, length)
    values, whence = doubles(q[s.ANSWER_VALUES_AT], (at + 1,)), ints(q[s.ANSWERS_AT], (at + 1, 2))
    while at > 0 and not precedes(q, h, at - 1, worth, length, parent, token):
        values[at], whence[at, 0], whence[at, 1] = values[at - 1], whence[at - 1, 0], whence[at - 1, 1]
        at -= 1
    values[at], whence[at, 0], whence[at, 1] = value, parent, j
    q[s.FOUND] += 1
