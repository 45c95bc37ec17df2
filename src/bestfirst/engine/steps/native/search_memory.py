"""Search memory: allocates the arrays of compiled searches, laid out by `search_plan`, and reads their results."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from . import search_plan as s
from .calls import at

if TYPE_CHECKING:
    from ....constraints.trie import Trie

ROWS, NODES, LENGTHS = 128, 512, 32  # initial capacity of a search
COSTS, CURSORS, COUNTS, MARKS, ANSWERS, ANSWER_VALUES, AWAY_COSTS, AWAY_CURSORS = range(s.PROGRESS, s.PROGRESS + 8)
BY_NODE, BY_ANSWER = (s.NODES_AT, s.VALUES_AT), (ANSWERS, ANSWER_VALUES)  # arrays with one entry per node, per answer
BY_ROW = (s.ROWS_AT, s.BEST_AT, s.TOKENS_AT, s.CHILDREN_AT, s.STATES_AT, COSTS, CURSORS, AWAY_COSTS, AWAY_CURSORS)


class SearchMemory:
    """The state of one search. Compiled code knows it by the address of `head`, which holds the addresses of the other arrays."""

    def __init__(self, *, k: int, n: int, n_max: int, keep: bool, complete: int | None, ends: Collection[int]) -> None:
        self.head = head = np.zeros(s.SEARCH, np.int64)
        self.address = at(head)
        self.width = k + len(ends)
        head[[s.K, s.N, s.N_MAX, s.KEEP, s.WIDTH, s.LEVEL_ROWS, s.ENDS]] = k, n, n_max, keep, self.width, min(k, 1024), len(ends)
        head[s.COMPLETE] = -1 if complete is None else complete
        head[s.NODES], head[s.PROGRESS + s.LENGTHS], head[s.PROGRESS + s.IN_EARNEST] = 1, 1, 1
        head[[s.PROGRESS + s.KNOWN, s.PROGRESS + s.LAST_STEP, s.ANSWER_ROOM]] = 1, -1, n
        counts, marks = np.zeros((3, n_max + 2), np.int64), np.zeros((5, n_max + 2))
        counts[:, 0], marks[:, 0] = 1, (inf, 0.0, 0.0, inf, -inf)
        best, tokens, children = (np.empty((0, self.width), kind) for kind in (np.float32, np.int32, np.int32))
        self._arrays: dict[int, Any] = {}  # by the index in `head` of its address
        self._set_arrays({
            s.ENDS_AT: np.array([*ends], np.int64), COUNTS: counts, MARKS: marks, ANSWERS: np.zeros((n, 2), np.int32),
            ANSWER_VALUES: np.zeros(n), s.NODES_AT: np.empty((0, 5), np.int32), s.VALUES_AT: np.empty(0),
            s.ROWS_AT: np.empty((0, 4), np.int32), s.BEST_AT: best, s.TOKENS_AT: tokens, s.CHILDREN_AT: children,
            COSTS: np.empty(0), CURSORS: np.empty((0, 3), np.int32),
        })  # fmt: skip
        self._grow(NODES + 32 * k, ROWS + head[s.LEVEL_ROWS])
        self._arrays[s.NODES_AT][0], self._arrays[s.VALUES_AT][0] = (-1, -1, 0, -1, 0), 0.0

    def _set_arrays(self, arrays: dict[int, Any]) -> None:
        """Keep these arrays, and write their addresses into `head`."""
        self._arrays |= arrays
        self.head[[*arrays]] = [at(each) for each in arrays.values()]

    def by_levels(self, norms: Any, stop: int, enough: int) -> None:
        """Make it a level search (`search/level.py`) with this stop, which wants `enough` finished hypotheses."""
        k = int(self.head[s.K])
        self._rank_by_score(norms, enough)
        self._set_arrays({
            s.LEVEL_AT: np.zeros(k, np.int32), s.GOING_AT: np.empty(k), s.GOING_FROM_AT: np.empty((k, 2), np.int32),
            s.ENDED_AT: np.empty(k * self.width), s.ENDED_FROM_AT: np.empty((k * self.width, 2), np.int32),
            s.BAR_AT: np.array([inf]),
        })  # fmt: skip
        self.head[[s.LEVELS, s.STOP, s.LEVEL]] = 1, stop, 1

    def until_step(self, norms: Any, enough: int) -> None:
        """Make it a step search (`search/step.py`): it ends at the step at which Hugging Face stops with `enough` answers."""
        self._rank_by_score(norms, enough)
        rows = int(self.head[s.ROW_ROOM])
        self._set_arrays({AWAY_COSTS: np.empty(rows), AWAY_CURSORS: np.empty((rows, 3), np.int32)})
        self.head[[s.BY_STEP, s.LEAVES_OUT]] = 1

    def _rank_by_score(self, norms: Any, enough: int) -> None:
        """Rank answers by score. `norms` (2, n_max + 2): for each length the divisor of a value's score, and of its bound."""
        self._set_arrays({s.NORMS_AT: norms})
        self.head[s.ENOUGH] = enough
        self._make_room_for_answers(max(int(self.head[s.N]), int(self.head[s.K]) * min(norms.shape[1], LENGTHS)))

    def under(self, trie: Trie, ends: Collection[int]) -> None:
        """Restrict continuations to a trie, with these end tokens where an item is complete."""
        self._set_arrays({
            s.TRIE_AT: trie.tokens, s.FIRST_AT: trie.first, s.ITEMS_AT: trie.items,
            s.TRIE_ENDS_AT: np.array(sorted({*ends}), np.int64), s.STATES_AT: np.empty(int(self.head[s.ROW_ROOM]), np.int32),
        })  # fmt: skip
        self.head[s.TRIE_ENDS] = len({*ends})

    @property
    def longest(self) -> int:
        """The number of positions that the next steps may reach."""
        offset, reached, n_max = self.head[[s.OFFSET, s.REACHED, s.N_MAX]].tolist()
        return offset + min(reached + 32, n_max)

    def make_room(self) -> None:
        """Enlarge the arrays, if necessary, for the nodes, rows and answers of at least one more step."""
        head = self.head
        nodes = head[s.NODES] + 3 * head[s.K] * (head[s.REACHED] + 2)
        rows = head[s.SCORED] + head[s.LEVEL_ROWS]
        answers = head[s.K] * (head[s.REACHED] + 2) * (head[s.LEVELS] | head[s.BY_STEP])
        if answers > head[s.ANSWER_ROOM]:
            self._make_room_for_answers(2 * answers)
        if nodes > head[s.NODE_ROOM] or rows > head[s.ROW_ROOM]:
            self._grow(max(2 * nodes, head[s.NODE_ROOM]), max(2 * rows, head[s.ROW_ROOM]))

    def _make_room_for_answers(self, n: int) -> None:
        self._enlarge(BY_ANSWER, n)
        self.head[s.ANSWER_ROOM] = n

    def _grow(self, nodes: int, rows: int) -> None:
        self._enlarge(BY_NODE, nodes)
        self._enlarge(BY_ROW, rows)
        self.head[[s.NODE_ROOM, s.ROW_ROOM]] = nodes, rows

    def _enlarge(self, places: tuple[int, ...], n: int) -> None:
        self._set_arrays({place: _longer(self._arrays[place], n) for place in places if place in self._arrays})

    # -- results ---------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> list[int]:
        """The slots of its scored hypotheses."""
        return self._arrays[s.ROWS_AT][: self.head[s.SCORED], s.SLOT].tolist()

    @property
    def guesses(self) -> list[tuple[int, bool]]:
        """For each row scored ahead: its rank among those of its step, and whether it was needed later."""
        rows = self._arrays[s.ROWS_AT][: self.head[s.SCORED]]
        rows = rows[rows[:, s.RANK] > 0]
        return [*zip(rows[:, s.RANK].tolist(), (self._arrays[s.NODES_AT][rows[:, s.NODE], s.ON_BEAM] > 0).tolist(), strict=True)]

    def needed(self, most: int) -> Iterator[tuple[int, ...]]:
        """The tokens of the first `most` hypotheses whose scores were needed, built lazily."""
        rows = self._arrays[s.ROWS_AT][: self.head[s.SCORED], s.NODE]
        rows = rows[(self._arrays[s.NODES_AT][rows, s.ON_BEAM] > 0) | (self.head[s.LEVELS] > 0)][:most]
        return _token_tuples(rows, self._arrays[s.NODES_AT][rows, : s.TOKEN + 1])

    @property
    def answers(self) -> list[tuple[tuple[int, ...], float]]:
        """The tokens and the value of each answer, best first."""
        found = min(self.head[s.N], self.head[s.PROGRESS + s.FOUND])
        places, values = self._arrays[ANSWERS][:found].tolist(), self._arrays[ANSWER_VALUES][:found].tolist()
        rows, tokens = self._arrays[s.NODES_AT][:, s.ROW], self._arrays[s.TOKENS_AT]
        return [
            ((*self.tokens(parent), int(tokens[rows[parent], j])), value)
            for (parent, j), value in zip(places, values, strict=True)
        ]

    def tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of a node's hypothesis, from the first on."""
        out = []
        while node > 0:
            node, token = self._arrays[s.NODES_AT][node, :2].tolist()
            out.append(token)
        return tuple(reversed(out))

    @property
    def deepest(self) -> tuple[tuple[int, ...], float]:
        """The first hypothesis on the longest beam, and its value; in level searches the best one there."""
        node = int(self.head[s.DEEPEST])
        return self.tokens(node), float(self._arrays[s.VALUES_AT][node])


class StepMemory:
    """The arrays that searches share, for steps of at most `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.numbers = np.zeros(s.STEP, np.int64)
        self._slots = np.zeros(0, np.int32)
        self._memory: dict[int, Any] = {}
        self.make_room(rows)

    def make_room(self, rows: int) -> None:
        """Allocate the arrays anew, for steps of so many rows."""
        self.rows = rows
        self.table = np.zeros((4, rows), np.int32)  # each row's token, position, slot and place
        self._about = np.zeros((4, rows), np.int32)
        self.numbers[s.MOST_ROWS] = rows
        self.numbers[[s.ROW_NODES_AT, s.ROW_SEARCHES_AT, s.ROW_RANKS_AT, s.ROW_STATES_AT]] = [at(each) for each in self._about]

    def room(self, place: int, size: int, kind: Any = np.float64) -> None:
        """Ensure an array of `size` numbers whose address is at this index of `numbers`."""
        if place not in self._memory or len(self._memory[place]) < size:
            self._memory[place] = np.empty(2 * size, kind)
            self.numbers[place] = at(self._memory[place])

    @property
    def spare(self) -> int:
        """The number of slots allocated for it and not used by rows yet."""
        return int(self.numbers[s.SLOTS])

    def give(self, slots: list[int]) -> None:
        """Add slots for rows."""
        have = self.spare
        if have + len(slots) > len(self._slots):
            self._slots = _longer(self._slots[:have], 2 * (have + len(slots)))
            self.numbers[s.SLOTS_AT] = at(self._slots)
        self._slots[have : have + len(slots)] = slots
        self.numbers[s.SLOTS] = have + len(slots)

    def broken(self) -> tuple[int, int]:
        """The search and the node whose scores were not finite."""
        row = self.numbers[s.BROKEN]
        return int(self._about[1, row]), int(self._about[0, row])


def _token_tuples(rows: Any, nodes: Any) -> Iterator[tuple[int, ...]]:
    tokens: dict[int, tuple[int, ...]] = {}
    for row, (parent, token) in zip(rows.tolist(), nodes.tolist(), strict=True):
        tokens[row] = (*tokens[parent], token) if row else ()  # parents come first
        yield tokens[row]


def _longer(array: Any, n: int) -> Any:
    out = np.empty((n, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
