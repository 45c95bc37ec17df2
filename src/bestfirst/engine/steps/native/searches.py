"""Searches: the rows that compiled searches share, as `HostEngine` shares them, and what each makes of them.

The same numbers in the same order give the same answers, calls, rows and steps (`tests/engine/test_compiled_engine.py`). Where
numbers lie is in `search_plan`.
"""

from __future__ import annotations

from math import inf
from typing import Any

from . import level_searches, strict_searches
from . import search_plan as s
from .code import doubles, floats, ints, longs
from .kernels import compiled
from .search_state import search_at


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
        m = min(each, h[s.LEVEL_ROWS] - 1)
        if h[s.LEVELS]:
            guesses = level_searches.look_ahead(e, h, place, m, guesses)
        else:
            guesses = strict_searches.look_ahead(e, h, place, m, guesses)
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
        if h[s.TRIE_AT] != 0:
            ints(h[s.STATES_AT], (at + 1,))[at] = ints(e[s.ROW_STATES_AT], (r + 1,))[r]
        h[s.REACHED] = max(h[s.REACHED], node[s.LENGTH] + 1)
        if h[s.LEVELS]:
            level_searches.commit(h, which[r])
    for r in range(rows):
        if ranks[r] == 0 and not search_at(e, whose[r])[s.LEVELS]:
            strict_searches.advance(search_at(e, whose[r]))
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
            or h[s.NODES] + 3 * h[s.K] * (h[s.REACHED] + 2) > h[s.NODE_ROOM]  # ahead, in earnest and again, each beam full
            or h[s.K] * (h[s.REACHED] + 2) * (h[s.LEVELS] | h[s.BY_STEP]) > h[s.ANSWER_ROOM]  # one for each place on a beam
            or h[s.OFFSET] + min(h[s.REACHED] + 1, h[s.N_MAX]) > min(p[19], p[14])
        ):
            return False
    return True
