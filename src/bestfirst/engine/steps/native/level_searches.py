"""Level searches: `search/level.py` compiled, for its order by bounds; functions are named after its methods. `h`: a search.

A candidate is a child without a node yet: its negated value (`costs`), its parent and which child it is (`whence`). They are kept
sorted, unfinished ones in GOING, finished ones in ENDED.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from . import search_plan as s
from .code import doubles, floats, ints
from .kernels import compiled
from .search_state import add_answer, add_guess, answers_before, child_of, divisor, is_end, token_of, tokens_before


@compiled()
def insert(h: Any, costs_at: int, whence_at: int, size: int, most: int, cost: float, parent: int, j: int) -> int:
    """Insert a candidate into a sorted list of `size`, of which at most `most` are kept. Returns the new size."""
    costs, whence = doubles(costs_at, (size + 1,)), ints(whence_at, (size + 1, 2))
    token = token_of(h, parent, j)
    at = size
    while at > 0:
        if costs[at - 1] < cost:
            break
        if costs[at - 1] == cost:
            other = whence[at - 1, 0]
            if tokens_before(h, other, token_of(h, other, whence[at - 1, 1]), parent, token):
                break
        at -= 1
    if at == most:
        return size
    for i in range(size if size < most else most - 1, at, -1):
        costs[i], whence[i, 0], whence[i, 1] = costs[i - 1], whence[i - 1, 0], whence[i - 1, 1]
    costs[at], whence[at, 0], whence[at, 1] = cost, parent, j
    return min(size + 1, most)


@compiled()
def going_first(h: Any, i: int, j: int) -> bool:
    """Whether the i-th unfinished candidate precedes the j-th finished one; one of the lists may be exhausted."""
    if i == h[s.GOING] or j == h[s.ENDED]:
        return i < h[s.GOING]
    one, other = doubles(h[s.GOING_AT], (i + 1,))[i], doubles(h[s.ENDED_AT], (j + 1,))[j]
    if one != other:
        return one < other
    a, b = ints(h[s.GOING_FROM_AT], (i + 1, 2))[i], ints(h[s.ENDED_FROM_AT], (j + 1, 2))[j]
    return tokens_before(h, a[0], token_of(h, a[0], a[1]), b[0], token_of(h, b[0], b[1]))


@compiled()
def add_children(h: Any, y: int) -> None:
    """Add the children of `y` as candidates, but for those that k unfinished ones precede."""
    k, now, bar = h[s.K], h[s.NOW], doubles(h[s.BAR_AT], (1,))
    row = ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.ROW]
    value = doubles(h[s.VALUES_AT], (h[s.NODES],))[y]
    best = floats(h[s.BEST_AT], (h[s.SCORED], h[s.WIDTH]))[row]
    for j in range(ints(h[s.ROWS_AT], (row + 1, 4))[row, s.COUNT]):
        cost = -(value + np.float64(best[j]))
        if cost > bar[0]:
            break
        if is_end(h, now + 1, token_of(h, y, j)):
            h[s.ENDED] = insert(h, h[s.ENDED_AT], h[s.ENDED_FROM_AT], h[s.ENDED], k * h[s.WIDTH], cost, y, j)
        else:
            h[s.GOING] = insert(h, h[s.GOING_AT], h[s.GOING_FROM_AT], h[s.GOING], k, cost, y, j)
    if now + 1 == h[s.N_MAX]:  # nothing continues beyond it: finished and unfinished compete
        if h[s.GOING] + h[s.ENDED] >= k:
            bar[0] = kth_of_all(h)
    elif h[s.GOING] >= k:
        bar[0] = doubles(h[s.GOING_AT], (k,))[k - 1]


@compiled()
def kth_of_all(h: Any) -> float:
    """The cost of the k-th candidate, finished or not."""
    i = j = 0
    cost = inf
    while i + j < h[s.K]:
        if going_first(h, i, j):
            cost = doubles(h[s.GOING_AT], (i + 1,))[i]
            i += 1
        else:
            cost = doubles(h[s.ENDED_AT], (j + 1,))[j]
            j += 1
    return cost


@compiled()
def ends_before(h: Any, y: int, value: float) -> bool:
    """Whether the next length is the last, and the n-th answer precedes whatever `y` could finish as there."""
    answers, last = h[s.PROGRESS + s.FOUND], h[s.NOW] + 1
    found = answers + h[s.ENDED]
    if found < h[s.N] or (found < h[s.ENOUGH] and last < h[s.N_MAX]):
        return False
    worth = value / divisor(h, s.SCORE, last)
    sure = before = i = j = 0
    while i + j < min(h[s.K], h[s.GOING] + h[s.ENDED]):
        if going_first(h, i, j):
            i += 1
            continue
        own = -doubles(h[s.ENDED_AT], (j + 1,))[j]
        j += 1
        if own <= value:
            break
        sure += 1
        before += own / divisor(h, s.SCORE, last) > worth  # at equal scores `y` would precede them: they are longer
    if last < h[s.N_MAX] and answers + sure < h[s.ENOUGH]:
        return False
    return before + answers_before(h[s.PROGRESS :], h, worth, h[s.NOW], y) >= h[s.N]


@compiled()
def is_needless(h: Any, y: int) -> bool:
    """Whether neither `y` nor those after it in its level need be scored, given the better ones so far."""
    value = doubles(h[s.VALUES_AT], (h[s.NODES],))[y]
    return -value > doubles(h[s.BAR_AT], (1,))[0] or ends_before(h, y, value)


@compiled()
def next_level(h: Any) -> None:
    """Make the next level of the unfinished candidates, and answers of the finished ones among the best k; or end the search."""
    length, level = h[s.NOW] + 1, ints(h[s.LEVEL_AT], (h[s.K],))
    i = j = 0
    if h[s.ENDED] > 0 and not going_first(h, 0, 0):
        h[s.LED] = 1
    while i < h[s.GOING] or j < h[s.ENDED]:
        if going_first(h, i, j):
            parent, which = ints(h[s.GOING_FROM_AT], (i + 1, 2))[i, 0], ints(h[s.GOING_FROM_AT], (i + 1, 2))[i, 1]
            row = ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.ROW]
            cost = doubles(h[s.GOING_AT], (i + 1,))[i]
            level[i] = child_of(h, parent, row, which, token_of(h, parent, which), length, -cost)
            i += 1
            continue
        if i + j < h[s.K]:
            whence = ints(h[s.ENDED_FROM_AT], (j + 1, 2))[j]
            add_answer(h[s.PROGRESS :], h, -doubles(h[s.ENDED_AT], (j + 1,))[j], length, whence[0], whence[1])
        j += 1
    if i > 0:
        h[s.DEEPEST] = level[0]
    over = i == 0 or length == h[s.N_MAX] or is_time_to_stop(h, length)
    h[s.LEVEL], h[s.NOW], h[s.TURN] = 0 if over else i, -1 if over else length, 0
    h[s.GOING] = h[s.ENDED] = 0
    doubles(h[s.BAR_AT], (1,))[0] = inf


@compiled()
def is_time_to_stop(h: Any, length: int) -> bool:
    """Whether the stop is reached with all answers up to this length."""
    answers, y = h[s.PROGRESS + s.FOUND], h[s.DEEPEST]
    if h[s.STOP] == s.AT_LEAD:
        return answers >= h[s.N] and h[s.LED] == 1
    if answers >= h[s.ENOUGH]:
        return True
    bound = doubles(h[s.VALUES_AT], (h[s.NODES],))[y] / divisor(h, s.BOUND, length)
    return answers >= h[s.N] and answers_before(h[s.PROGRESS :], h, bound, length, y) >= h[s.N]


@compiled()
def commit(h: Any, y: int) -> None:
    """`y` is scored: advance NEEDED to the next hypothesis to score, of this level or of the next, or -1 at the end."""
    nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
    if nodes[y, s.LENGTH] != h[s.NOW]:
        return
    add_children(h, y)
    while h[s.LEVEL] > 0:
        level = ints(h[s.LEVEL_AT], (h[s.K],))
        while h[s.TURN] < h[s.LEVEL] and not is_needless(h, level[h[s.TURN]]):
            if ints(h[s.NODES_AT], (h[s.NODES], 5))[level[h[s.TURN]], s.ROW] < 0:
                h[s.NEEDED] = level[h[s.TURN]]
                return
            h[s.CALLS] += 1
            h[s.TURN] += 1
        next_level(h)
    h[s.NEEDED] = -1


@compiled()
def look_ahead(e: Any, h: Any, place: int, m: int, guesses: int) -> int:
    """Add up to `m` hypotheses that come next in the level to the step's guesses. Returns how many guesses there are."""
    level, values = ints(h[s.LEVEL_AT], (h[s.K],)), doubles(h[s.VALUES_AT], (h[s.NODES],))
    best = values[h[s.NEEDED]] / divisor(h, s.BOUND, h[s.NOW])
    for i in range(h[s.TURN] + 1, h[s.LEVEL]):
        y = level[i]
        if m == 0:
            break
        if ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.ROW] >= 0:
            continue
        if is_needless(h, y):
            break  # nor are those after it needed
        guesses = add_guess(e, place, y, best - values[y] / divisor(h, s.BOUND, h[s.NOW]), guesses)
        m -= 1
    return guesses
