"""Searches: which rows compiled searches score in a step, as `HostEngine` shares them, and what each makes of the scores.

The same numbers in the same order give the same answers, calls, rows and steps (`tests/engine/test_compiled_engine.py`).
`search_plan` has the layout of `e` (shared by all), `h` (one search) and `p` (the forward pass).
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
def rank_guesses(e: Any, guesses: int, most: int) -> None:
    """Rank the likeliest `most` guesses from 1 on; of equal ones the earlier precedes."""
    costs, found = doubles(e[s.GUESS_COSTS_AT], (guesses,)), ints(e[s.GUESSES_AT], (guesses, 3))
    for rank in range(1, min(most, guesses) + 1):
        least = -1
        for i in range(guesses):
            if found[i, 2] == 0 and (least < 0 or costs[i] < costs[least]):
                least = i
        found[least, 2] = rank


@compiled()
def plan(e: Any) -> int:
    """Choose this step's rows, those needed, then guesses; returns their number. Sets OVER: 1 ended, 0 takes part, -1 waits."""
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
            h[s.OVER] = -1
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
    rank_guesses(e, guesses, min(ahead, left))
    found = ints(e[s.GUESSES_AT], (guesses, 3))
    rows = first = 0
    for place in range(e[s.SEARCHES]):
        h = search_at(e, place)
        if h[s.OVER] == 0:
            rows = append_row(e, rows, place, h[s.NEEDED], 0)
            h[s.STEPS] += 1
        begun, last = rows, first
        while last < guesses and found[last, 0] == place:
            last += 1
        for i in range(first, last):
            if found[i, 2] > 0:
                rows = append_row(e, rows, place, found[i, 1], found[i, 2])
        h[s.GUESSED] += rows - begun
        first = last
    return rows


@compiled()
def append_row(e: Any, rows: int, place: int, node: int, rank: int) -> int:
    """Append a row: its search's place, its node, and its rank (0: needed). Returns the number of rows."""
    ints(e[s.ROW_SEARCHES_AT], (rows + 1,))[rows] = place
    ints(e[s.ROW_NODES_AT], (rows + 1,))[rows] = node
    ints(e[s.ROW_RANKS_AT], (rows + 1,))[rows] = rank
    return rows + 1


@compiled()
def write_rows(e: Any, p: Any, rows: int) -> None:
    """Write the step's rows as the decoder reads them, each with a slot and the path to it."""
    free = ints(e[s.SLOTS_AT], (e[s.SLOTS],))
    search_of, node_of = ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,))
    tokens, positions = ints(p[s.P_TOKENS_AT], (rows,)), ints(p[s.P_POSITIONS_AT], (rows,))
    slots, places = ints(p[s.P_SLOTS_AT], (rows,)), ints(p[s.P_PLACES_AT], (rows,))
    paths = ints(p[s.P_PATHS_AT], (p[s.P_SLOTS], p[s.P_CONTEXT]))
    for r in range(rows):
        h = search_at(e, search_of[r])
        nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
        node = nodes[node_of[r]]
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
def step_width(e: Any, rows: int) -> int:
    """How many best tokens of each row this step needs."""
    width = 0
    for place in ints(e[s.ROW_SEARCHES_AT], (rows,)):
        width = max(width, search_at(e, place)[s.WIDTH])
    return min(width, e[s.VOCABULARY])


@compiled()
def commit(e: Any, p: Any, rows: int, width: int) -> bool:
    """Give every search its new scores, and advance it to what it needs next. Returns whether all scores are finite."""
    slots = ints(p[s.P_SLOTS_AT], (rows,))
    search_of, node_of, ranks = (
        ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,)), ints(e[s.ROW_RANKS_AT], (rows,))
    )  # fmt: skip
    best, tokens = floats(e[s.BEST_OF_AT], (rows, width)), longs(e[s.TOKENS_OF_AT], (rows, width))
    for r in range(rows):
        h = search_at(e, search_of[r])
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
        row[s.NODE], row[s.SLOT], row[s.COUNT], row[s.RANK] = node_of[r], slots[r], count, ranks[r]
        node = ints(h[s.NODES_AT], (h[s.NODES], 5))[node_of[r]]
        node[s.ROW] = at
        if h[s.TRIE_AT] != 0:
            ints(h[s.STATES_AT], (at + 1,))[at] = ints(e[s.ROW_STATES_AT], (r + 1,))[r]
        h[s.REACHED] = max(h[s.REACHED], node[s.LENGTH] + 1)
        if h[s.LEVELS]:
            level_searches.commit(h, node_of[r])
    for r in range(rows):
        if ranks[r] == 0 and not search_at(e, search_of[r])[s.LEVELS]:
            strict_searches.advance(search_at(e, search_of[r]))
    return True


@compiled()
def has_room(e: Any, p: Any) -> bool:
    """Whether all memory suffices for one more step, whatever it brings."""
    if e[s.SLOTS] < e[s.MOST_ROWS]:
        return False
    for place in range(e[s.SEARCHES]):
        h = search_at(e, place)
        if (
            h[s.SCORED] + h[s.LEVEL_ROWS] > min(h[s.ROW_ROOM], e[s.PLAYED])
            or h[s.NODES] + 3 * h[s.K] * (h[s.REACHED] + 2) > h[s.NODE_ROOM]  # full beams: ahead, in earnest, begun again
            or h[s.K] * (h[s.REACHED] + 2) * (h[s.LEVELS] | h[s.BY_STEP]) > h[s.ANSWER_ROOM]  # one for each place on a beam
            or h[s.OFFSET] + min(h[s.REACHED] + 1, h[s.N_MAX]) > min(p[s.P_CONTEXT], p[s.P_TABLE_ROWS])
        ):
            return False
    return True
