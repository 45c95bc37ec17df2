"""Search memory: the numbers of compiled searches, in numpy's arrays (`search_plan` says where each lies)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from . import search_plan as s
from .calls import at

if TYPE_CHECKING:
    from ....constraints.trie import Trie

ROWS, NODES, LENGTHS = 128, 512, 32  # that a search has room for at first
COSTS, CURSORS, COUNTS, MARKS, ANSWERS, ANSWER_VALUES, AWAY_COSTS, AWAY_CURSORS = range(s.PROGRESS, s.PROGRESS + 8)
BY_NODE, BY_ANSWER = (s.NODES_AT, s.VALUES_AT), (ANSWERS, ANSWER_VALUES)  # what is as long as there is room for each
BY_ROW = (s.ROWS_AT, s.BEST_AT, s.TOKENS_AT, s.CHILDREN_AT, s.STATES_AT, COSTS, CURSORS, AWAY_COSTS, AWAY_CURSORS)


class SearchMemory:
    """One search: `head` is what compiled code knows it by, and has the addresses of the rest."""

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
        self._arrays: dict[int, Any] = {}  # by where in `head` its address is
        self._name({
            s.ENDS_AT: np.array([*ends], np.int64), COUNTS: counts, MARKS: marks, ANSWERS: np.zeros((n, 2), np.int32),
            ANSWER_VALUES: np.zeros(n), s.NODES_AT: np.empty((0, 5), np.int32), s.VALUES_AT: np.empty(0),
            s.ROWS_AT: np.empty((0, 4), np.int32), s.BEST_AT: best, s.TOKENS_AT: tokens, s.CHILDREN_AT: children,
            COSTS: np.empty(0), CURSORS: np.empty((0, 3), np.int32),
        })  # fmt: skip
        self._grow(NODES + 32 * k, ROWS + head[s.LEVEL_ROWS])
        self._arrays[s.NODES_AT][0], self._arrays[s.VALUES_AT][0] = (-1, -1, 0, -1, 0), 0.0

    def _name(self, arrays: dict[int, Any]) -> None:
        """Keep these, and say where they are."""
        self._arrays |= arrays
        self.head[[*arrays]] = [at(each) for each in arrays.values()]

    def by_levels(self, norms: Any, stop: int, enough: int) -> None:
        """Go level by level, until so many have finished."""
        k = int(self.head[s.K])
        self._rank(norms, enough)
        self._name({
            s.LEVEL_AT: np.zeros(k, np.int32), s.GOING_AT: np.empty(k), s.GOING_FROM_AT: np.empty((k, 2), np.int32),
            s.ENDED_AT: np.empty(k * self.width), s.ENDED_FROM_AT: np.empty((k * self.width, 2), np.int32),
            s.BAR_AT: np.array([inf]),
        })  # fmt: skip
        self.head[[s.LEVELS, s.STOP, s.LEVEL]] = 1, stop, 1

    def until_step(self, norms: Any, enough: int) -> None:
        """Go on until the step at which Hugging Face stops, which looks at so many answers."""
        self._rank(norms, enough)
        rows = int(self.head[s.ROW_ROOM])
        self._name({AWAY_COSTS: np.empty(rows), AWAY_CURSORS: np.empty((rows, 3), np.int32)})
        self.head[[s.BY_STEP, s.LEAVES_OUT]] = 1

    def _rank(self, norms: Any, enough: int) -> None:
        """Answers by score. `norms` (2, n_max + 2): by length, what a value is divided by for it, and for its bound."""
        self._name({s.NORMS_AT: norms})
        self.head[s.ENOUGH] = enough
        self._make_room_for_answers(max(int(self.head[s.N]), int(self.head[s.K]) * min(norms.shape[1], LENGTHS)))

    def under(self, trie: Trie, ends: Collection[int]) -> None:
        """Go on with what a trie has below a hypothesis, and these ends where an item is whole."""
        self._name({
            s.TRIE_AT: trie.tokens, s.FIRST_AT: trie.first, s.ITEMS_AT: trie.items,
            s.TRIE_ENDS_AT: np.array(sorted({*ends}), np.int64), s.STATES_AT: np.empty(int(self.head[s.ROW_ROOM]), np.int32),
        })  # fmt: skip
        self.head[s.TRIE_ENDS] = len({*ends})

    @property
    def longest(self) -> int:
        """Positions that the next steps may reach."""
        offset, reached, n_max = self.head[[s.OFFSET, s.REACHED, s.N_MAX]].tolist()
        return offset + min(reached + 32, n_max)

    def make_room(self) -> None:
        """For the nodes and rows of another step, at least."""
        head = self.head
        nodes = head[s.NODES] + 3 * head[s.K] * (head[s.REACHED] + 2)
        rows = head[s.SCORED] + head[s.LEVEL_ROWS]
        answers = head[s.K] * (head[s.REACHED] + 2) * (head[s.LEVELS] | head[s.BY_STEP])
        if answers > head[s.ANSWER_ROOM]:
            self._make_room_for_answers(2 * answers)
        if nodes > head[s.NODE_ROOM] or rows > head[s.ROW_ROOM]:
            self._grow(max(2 * nodes, head[s.NODE_ROOM]), max(2 * rows, head[s.ROW_ROOM]))

    def _make_room_for_answers(self, n: int) -> None:
        self._lengthen(BY_ANSWER, n)
        self.head[s.ANSWER_ROOM] = n

    def _grow(self, nodes: int, rows: int) -> None:
        self._lengthen(BY_NODE, nodes)
        self._lengthen(BY_ROW, rows)
        self.head[[s.NODE_ROOM, s.ROW_ROOM]] = nodes, rows

    def _lengthen(self, places: tuple[int, ...], n: int) -> None:
        self._name({place: _longer(self._arrays[place], n) for place in places if place in self._arrays})

    # -- what came of it -------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> list[int]:
        """Those that its scored hypotheses lie in."""
        return self._arrays[s.ROWS_AT][: self.head[s.SCORED], s.SLOT].tolist()

    @property
    def guesses(self) -> list[tuple[int, bool]]:
        """Of what was scored ahead, its place among the guesses of its step, and whether it came to be needed."""
        rows = self._arrays[s.ROWS_AT][: self.head[s.SCORED]]
        rows = rows[rows[:, s.RANK] > 0]
        return [*zip(rows[:, s.RANK].tolist(), (self._arrays[s.NODES_AT][rows[:, s.NODE], s.ON_BEAM] > 0).tolist(), strict=True)]

    def needed(self, most: int) -> Iterator[tuple[int, ...]]:
        """The tokens of the first so many whose scores were. They are put together when they are asked for."""
        rows = self._arrays[s.ROWS_AT][: self.head[s.SCORED], s.NODE]
        rows = rows[(self._arrays[s.NODES_AT][rows, s.ON_BEAM] > 0) | (self.head[s.LEVELS] > 0)][:most]
        return _tokens(rows, self._arrays[s.NODES_AT][rows, : s.TOKEN + 1])

    @property
    def answers(self) -> list[tuple[tuple[int, ...], float]]:
        """The tokens and the value of each, best first."""
        found = min(self.head[s.N], self.head[s.PROGRESS + s.FOUND])
        places, values = self._arrays[ANSWERS][:found].tolist(), self._arrays[ANSWER_VALUES][:found].tolist()
        rows, tokens = self._arrays[s.NODES_AT][:, s.ROW], self._arrays[s.TOKENS_AT]
        return [
            ((*self.tokens(parent), int(tokens[rows[parent], j])), value)
            for (parent, j), value in zip(places, values, strict=True)
        ]

    def tokens(self, node: int) -> tuple[int, ...]:
        """Of a hypothesis, from the first on."""
        out = []
        while node > 0:
            node, token = self._arrays[s.NODES_AT][node, :2].tolist()
            out.append(token)
        return tuple(reversed(out))

    @property
    def deepest(self) -> tuple[tuple[int, ...], float]:
        """The first to come onto the longest beam, and its value; level by level, the best that did."""
        node = int(self.head[s.DEEPEST])
        return self.tokens(node), float(self._arrays[s.VALUES_AT][node])


class StepMemory:
    """What searches share, for steps of at most `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.numbers = np.zeros(s.STEP, np.int64)
        self.table = np.zeros((4, rows), np.int32)  # tokens, positions, slots and places of a step's rows
        self._about, self._slots = np.zeros((4, rows), np.int32), np.zeros(4 * rows, np.int32)
        self.numbers[[s.MOST_ROWS, s.SLOTS_AT]] = rows, at(self._slots)
        self.numbers[[s.ROW_NODES_AT, s.ROW_SEARCHES_AT, s.ROW_RANKS_AT, s.ROW_STATES_AT]] = [at(each) for each in self._about]
        self._memory: dict[int, Any] = {}

    def room(self, place: int, size: int, kind: Any = np.float64) -> None:
        """Have room for so many numbers, and its address at this place."""
        if place not in self._memory or len(self._memory[place]) < size:
            self._memory[place] = np.empty(2 * size, kind)
            self.numbers[place] = at(self._memory[place])

    @property
    def spare(self) -> int:
        """Slots that are given to it, and not to rows."""
        return int(self.numbers[s.SLOTS])

    def give(self, slots: list[int]) -> None:
        """More slots for rows."""
        have = self.spare
        if have + len(slots) > len(self._slots):
            self._slots = _longer(self._slots[:have], 2 * (have + len(slots)))
            self.numbers[s.SLOTS_AT] = at(self._slots)
        self._slots[have : have + len(slots)] = slots
        self.numbers[s.SLOTS] = have + len(slots)

    def take_back(self) -> list[int]:
        """What is spare."""
        return self._slots[: self.spare].tolist()

    def broken(self) -> tuple[int, int]:
        """Whose scores were not finite: which search, and which node of it."""
        row = self.numbers[s.BROKEN]
        return int(self._about[1, row]), int(self._about[0, row])


def _tokens(rows: Any, nodes: Any) -> Iterator[tuple[int, ...]]:
    tokens: dict[int, tuple[int, ...]] = {}
    for row, (parent, token) in zip(rows.tolist(), nodes.tolist(), strict=True):
        tokens[row] = (*tokens[parent], token) if row else ()  # parents come first
        yield tokens[row]


def _longer(array: Any, n: int) -> Any:
    out = np.empty((n, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
