"""Searches: `search/strict.py` and the row budget of `HostEngine`, compiled with the forward pass: many steps in one call.

The same numbers in the same order give the same answers, calls, rows and steps (`tests/engine/test_compiled_engine.py`). Names
are those of the two files; where numbers lie is in `search_plan`. Of equal values and lengths, the one whose tokens come first
comes first, as there.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from . import search_plan as s
from .kernels import compiled
from .memory_views import doubles, floats, ints, longs


@compiled()
def search_at(e: Any, place: int) -> Any:
    return longs(longs(e[s.SEARCHES_AT], (e[s.SEARCHES],))[place], (s.SEARCH,))


@compiled()
def is_before(q: Any, h: Any, a: int, b: int) -> bool:
    """Whether cursor `a` of a queue comes before `b`: by value, length, tokens."""
    costs, cursors = doubles(q[s.COSTS_AT], (q[s.QUEUED],)), ints(q[s.CURSORS_AT], (q[s.QUEUED], 3))
    if costs[a] != costs[b]:
        return costs[a] < costs[b]
    if cursors[a, 0] != cursors[b, 0]:
        return cursors[a, 0] < cursors[b, 0]
    nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
    tokens = ints(h[s.TOKENS_AT], (h[s.SCORED], h[s.WIDTH]))
    one, other = cursors[a, 1], cursors[b, 1]
    first, second = tokens[nodes[one, s.ROW], cursors[a, 2]], tokens[nodes[other, s.ROW], cursors[b, 2]]
    while one != other:  # up to where they part
        first, second = nodes[one, s.TOKEN], nodes[other, s.TOKEN]
        one, other = nodes[one, s.PARENT], nodes[other, s.PARENT]
    return first < second


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
def drop_first(q: Any, h: Any) -> None:
    last = q[s.QUEUED] - 1
    swap(q, 0, last)
    q[s.QUEUED] = last
    at = 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and is_before(q, h, child + 1, child):
            child += 1
        if not is_before(q, h, child, at):
            return
        swap(q, at, child)
        at = child


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
def enter(h: Any, counts: Any, marks: Any, length: int, value: float) -> None:
    """One more on the beam of this length."""
    counts[s.MEMBERS, length] += 1
    if counts[s.MEMBERS, length] == h[s.K]:
        marks[s.KTH, length] = value


@compiled()
def finish(q: Any, h: Any, counts: Any, marks: Any, parent: int, j: int, length: int, value: float) -> None:
    """A finished hypothesis: an answer if there is a slot for it; under `keep`, at every later length as well."""
    last = q[s.LENGTHS] if h[s.KEEP] else length + 1
    for at in range(length, last):
        if counts[s.MEMBERS, at] >= h[s.K]:
            return
        enter(h, counts, marks, at, value)
    if q[s.IN_EARNEST]:
        answer = ints(h[s.ANSWERS_AT], (h[s.N], 2))[q[s.FOUND]]
        answer[0], answer[1] = parent, j
        doubles(h[s.ANSWER_VALUES_AT], (h[s.N],))[q[s.FOUND]] = value
    q[s.FOUND] += 1


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
def pop(q: Any, h: Any) -> int:
    """The next unfinished hypothesis that must be scored, or -1 when the search is over (Alg. 2, lines 5 to 10)."""
    k, n_max = h[s.K], h[s.N_MAX]
    counts, marks = longs(q[s.COUNTS_AT], (2, n_max + 2)), doubles(q[s.MARKS_AT], (2, n_max + 2))
    taken = counts[s.MEMBERS] if h[s.KEEP] else counts[s.UNFINISHED]
    while q[s.QUEUED] > 0 and q[s.FOUND] < h[s.N]:
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
            finish(q, h, counts, marks, parent, j, length, value)
            continue
        counts[s.UNFINISHED, length] += 1
        marks[s.LAST, length] = value
        enter(h, counts, marks, length, value)
        y = child_of(h, parent, row, j, token, length, value)
        if q[s.IN_EARNEST] and length > ints(h[s.NODES_AT], (h[s.NODES], 5))[h[s.DEEPEST], s.LENGTH]:
            h[s.DEEPEST] = y
        if length < n_max and not is_hopeless(q, h, counts, marks, length, value):
            return y
    return -1


@compiled()
def open_(q: Any, h: Any, y: int) -> None:
    """Let the children of `y`, which is scored, wait for their turn (Alg. 2, lines 11 to 15)."""
    node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
    length = node[s.LENGTH] + 1
    if length == q[s.LENGTHS]:
        counts, marks = longs(q[s.COUNTS_AT], (2, h[s.N_MAX] + 2)), doubles(q[s.MARKS_AT], (2, h[s.N_MAX] + 2))
        carried = counts[s.MEMBERS, length - 1] - counts[s.UNFINISHED, length - 1] if h[s.KEEP] else 0
        counts[s.MEMBERS, length], counts[s.UNFINISHED, length] = carried, 0
        marks[s.KTH, length], marks[s.LAST, length] = -inf, inf
        q[s.LENGTHS] = length + 1
    row = node[s.ROW]
    if ints(h[s.ROWS_AT], (row + 1, 4))[row, s.COUNT] > 0:
        best = np.float64(floats(h[s.BEST_AT], (h[s.SCORED], h[s.WIDTH]))[row, 0])
        push(q, h, -(doubles(h[s.VALUES_AT], (h[s.NODES],))[y] + best), length, y, 0)


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
        y = pop(q, h)
    h[s.NEEDED] = y


@compiled()
def copy(numbers: Any, to: Any) -> None:
    for i in range(numbers.shape[0]):  # an array at once would need Python's errors
        to[i] = numbers[i]


@compiled()
def look_ahead(e: Any, h: Any, place: int, m: int, guesses: int) -> int:
    """Add up to `m` hypotheses that would be needed next, if what is not scored had no children, to the guesses of a step."""
    q, played, n = h[s.PROGRESS :], e[s.PLAYED_AT :], h[s.N_MAX] + 2
    played[s.QUEUED], played[s.LENGTHS], played[s.FOUND], played[s.IN_EARNEST] = q[s.QUEUED], q[s.LENGTHS], q[s.FOUND], 0
    copy(longs(q[s.COSTS_AT], (q[s.QUEUED],)), longs(played[s.COSTS_AT], (q[s.QUEUED],)))
    copy(ints(q[s.CURSORS_AT], (3 * q[s.QUEUED],)), ints(played[s.CURSORS_AT], (3 * q[s.QUEUED],)))
    copy(longs(q[s.COUNTS_AT], (2 * n,)), longs(played[s.COUNTS_AT], (2 * n,)))
    copy(longs(q[s.MARKS_AT], (2 * n,)), longs(played[s.MARKS_AT], (2 * n,)))
    best = doubles(h[s.VALUES_AT], (h[s.NODES],))[h[s.NEEDED]]
    while m > 0:
        y = pop(played, h)
        if y < 0:
            break
        if ints(h[s.NODES_AT], (h[s.NODES], 5))[y, s.ROW] >= 0:
            open_(played, h, y)
            continue
        doubles(e[s.GUESS_COSTS_AT], (guesses + 1,))[guesses] = best - doubles(h[s.VALUES_AT], (h[s.NODES],))[y]
        guess = ints(e[s.GUESSES_AT], (guesses + 1, 3))[guesses]
        guess[0], guess[1], guess[2] = place, y, 0
        guesses += 1
        m -= 1
    return guesses


@compiled()
def choose(e: Any, guesses: int, most: int) -> None:
    """Number the likeliest guesses from 1 on, in their order; those that came first if they are equal."""
    costs, found = doubles(e[s.GUESS_COSTS_AT], (guesses,)), ints(e[s.GUESSES_AT], (guesses, 3))
    for rank in range(1, min(most, guesses) + 1):
        least = -1
        for i in range(guesses):
            if found[i, 2] == 0 and (least < 0 or costs[i] < costs[least]):
                least = i
        found[least, 2] = rank


@compiled()
def plan(e: Any) -> int:
    """Who is scored in this step: what is needed, then what is worth scoring ahead. Returns how many; marks who is over."""
    left = e[s.BUDGET]
    taking_part = 0
    for place in range(e[s.SEARCHES]):
        taking_part += 1 - search_at(e, place)[s.PAUSED]
    ahead = max(0, min(left - taking_part, e[s.FREE] - taking_part))
    each = min(ahead, 1 + 2 * ahead // max(1, taking_part))
    guesses = 0
    for place in range(e[s.SEARCHES]):
        h = search_at(e, place)
        h[s.OVER] = 0
        if h[s.PAUSED] or (place > 0 and left < 1):
            h[s.OVER] = -1  # waits for its turn
            continue
        if h[s.NEEDED] < 0:
            h[s.OVER] = 1
            continue
        guesses = look_ahead(e, h, place, min(each, h[s.LEVEL_ROWS] - 1), guesses)
        left -= 1
    choose(e, guesses, min(ahead, left))
    found = ints(e[s.GUESSES_AT], (guesses, 3))
    rows = first = 0
    for place in range(e[s.SEARCHES]):
        h = search_at(e, place)
        if h[s.OVER] == 0:
            rows = take(e, rows, place, h[s.NEEDED], 0)
            h[s.STEPS] += 1
        begun, last = rows, first
        while last < guesses and found[last, 0] == place:
            last += 1
        for i in range(first, last):
            if found[i, 2] > 0:
                rows = take(e, rows, place, found[i, 1], found[i, 2])
        h[s.GUESSED] += rows - begun
        first = last
    return rows


@compiled()
def take(e: Any, rows: int, place: int, node: int, rank: int) -> int:
    ints(e[s.ROW_SEARCHES_AT], (rows + 1,))[rows] = place
    ints(e[s.ROW_NODES_AT], (rows + 1,))[rows] = node
    ints(e[s.ROW_RANKS_AT], (rows + 1,))[rows] = rank
    return rows + 1


@compiled()
def lay(e: Any, p: Any, rows: int) -> None:
    """A step's rows as the decoder reads them, each with a slot and the path to it."""
    free = ints(e[s.SLOTS_AT], (e[s.SLOTS],))
    whose, which = ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,))
    tokens, positions, slots, places = ints(p[7], (rows,)), ints(p[8], (rows,)), ints(p[9], (rows,)), ints(p[10], (rows,))
    paths = ints(p[17], (p[18], p[19]))
    for r in range(rows):
        h = search_at(e, whose[r])
        nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
        node = nodes[which[r]]
        slot, parent = free[e[s.SLOTS] - 1 - r], h[s.PROMPT_SLOT]
        if node[s.PARENT] >= 0:
            row = nodes[node[s.PARENT], s.ROW]
            parent = ints(h[s.ROWS_AT], (row + 1, 4))[row, s.SLOT]
        position = h[s.OFFSET] + node[s.LENGTH]
        tokens[r] = node[s.TOKEN] if node[s.PARENT] >= 0 else h[s.START]
        positions[r], slots[r], places[r] = position, slot, h[s.PLACE]
        for i in range(position):
            paths[slot, i] = paths[parent, i]
        paths[slot, position] = slot
    e[s.SLOTS] -= rows


@compiled()
def width_of(e: Any, rows: int) -> int:
    width = 0
    for place in ints(e[s.ROW_SEARCHES_AT], (rows,)):
        width = max(width, search_at(e, place)[s.WIDTH])
    return min(width, e[s.VOCABULARY])


@compiled()
def commit(e: Any, p: Any, rows: int, width: int) -> bool:
    """Every search takes what was scored for it, and goes on to what it needs next. Whether all numbers are finite."""
    slots = ints(p[9], (rows,))
    whose, which, ranks = (
        ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,)), ints(e[s.ROW_RANKS_AT], (rows,))
    )  # fmt: skip
    best, tokens = floats(e[s.BEST_OF_AT], (rows, width)), longs(e[s.TOKENS_OF_AT], (rows, width))
    for r in range(rows):
        h = search_at(e, whose[r])
        at = h[s.SCORED]
        h[s.SCORED] += 1
        w = h[s.WIDTH]
        values, ids, children = (
            floats(h[s.BEST_AT], (at + 1, w)), ints(h[s.TOKENS_AT], (at + 1, w)), ints(h[s.CHILDREN_AT], (at + 1, w))
        )  # fmt: skip
        count = 0
        for j in range(min(w, width)):
            if not best[r, j] < inf:
                e[s.BROKEN] = r
                return False
            if best[r, j] == -inf:
                break
            values[at, j], ids[at, j], children[at, j] = best[r, j], tokens[r, j], -1
            i = j
            while i > 0 and values[at, i - 1] == values[at, i] and ids[at, i - 1] > ids[at, i]:  # ties in order of tokens
                ids[at, i - 1], ids[at, i] = ids[at, i], ids[at, i - 1]
                i -= 1
            count += 1
        row = ints(h[s.ROWS_AT], (at + 1, 4))[at]
        row[s.NODE], row[s.SLOT], row[s.COUNT], row[s.RANK] = which[r], slots[r], count, ranks[r]
        node = ints(h[s.NODES_AT], (h[s.NODES], 5))[which[r]]
        node[s.ROW] = at
        h[s.REACHED] = max(h[s.REACHED], node[s.LENGTH] + 1)
    for r in range(rows):
        if ranks[r] == 0:
            advance(search_at(e, whose[r]))
    return True


@compiled()
def is_room(e: Any, p: Any) -> bool:
    """Whether the memory of all is enough for a step, whatever comes of it."""
    if e[s.SLOTS] < e[s.MOST_ROWS]:
        return False
    for place in range(e[s.SEARCHES]):
        h = search_at(e, place)
        if (
            h[s.SCORED] + h[s.LEVEL_ROWS] > min(h[s.ROW_ROOM], e[s.PLAYED])
            or h[s.NODES] + 2 * h[s.K] * (h[s.REACHED] + 2) > h[s.NODE_ROOM]  # once ahead and once in earnest, each beam full
            or h[s.OFFSET] + min(h[s.REACHED] + 1, h[s.N_MAX]) > min(p[19], p[14])
        ):
            return False
    return True
