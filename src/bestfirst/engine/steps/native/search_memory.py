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


class SearchMemory:
    """One search: `head` is what compiled code knows it by, and has the addresses of the rest."""

    def __init__(self, *, k: int, n: int, n_max: int, keep: bool, complete: int | None, ends: Collection[int]) -> None:
        self.head = head = np.zeros(s.SEARCH, np.int64)
        self.address = at(head)
        self.width = k + len(ends)
        self._ends = np.array([*ends], np.int64)
        head[[s.K, s.N, s.N_MAX, s.KEEP, s.WIDTH, s.LEVEL_ROWS, s.ENDS]] = k, n, n_max, keep, self.width, min(k, 1024), len(ends)
        head[s.COMPLETE] = -1 if complete is None else complete
        head[s.NODES], head[s.PROGRESS + s.LENGTHS], head[s.PROGRESS + s.IN_EARNEST] = 1, 1, 1
        self._answers, self._answer_values = np.zeros((n, 2), np.int32), np.zeros(n)
        self._counts, self._marks = np.zeros((3, n_max + 2), np.int64), np.zeros((5, n_max + 2))
        self._counts[:, 0], self._marks[:, 0] = 1, (inf, 0.0, 0.0, inf, -inf)
        head[[s.PROGRESS + s.KNOWN, s.PROGRESS + s.LAST_STEP]] = 1, -1
        self._nodes, self._values = np.empty((0, 5), np.int32), np.empty(0)
        self._rows, self._costs, self._cursors = np.empty((0, 4), np.int32), np.empty(0), np.empty((0, 3), np.int32)
        self._best, self._tokens, self._children = (np.empty((0, self.width), kind) for kind in (np.float32, np.int32, np.int32))
        self._states = np.empty(0, np.int32)
        head[s.ANSWER_ROOM] = n
        self._grow(NODES + 32 * k, ROWS + head[s.LEVEL_ROWS])
        self._nodes[0], self._values[0] = (-1, -1, 0, -1, 0), 0.0

    def by_levels(self, norms: Any, stop: int, enough: int) -> None:
        """Go level by level, until so many have finished."""
        head, k = self.head, int(self.head[s.K])
        self._rank(norms, enough)
        self._bar = np.array([inf])
        self._level, self._going, self._ended = np.zeros(k, np.int32), np.empty(k), np.empty(k * self.width)
        self._going_from, self._ended_from = np.empty((k, 2), np.int32), np.empty((k * self.width, 2), np.int32)
        head[[s.LEVELS, s.STOP, s.LEVEL]] = 1, stop, 1
        head[[s.LEVEL_AT, s.GOING_AT, s.ENDED_AT, s.GOING_FROM_AT, s.ENDED_FROM_AT, s.BAR_AT]] = [
            at(each) for each in (self._level, self._going, self._ended, self._going_from, self._ended_from, self._bar)
        ]

    def until_step(self, norms: Any, enough: int) -> None:
        """Go on until the step at which Hugging Face stops, which looks at so many answers."""
        self._rank(norms, enough)
        self.head[[s.BY_STEP, s.LEAVES_OUT]] = 1
        self._away_costs, self._away_cursors = np.empty(len(self._costs)), np.empty((len(self._costs), 3), np.int32)
        self._name_progress()

    def _rank(self, norms: Any, enough: int) -> None:
        """Answers by score. `norms` (2, n_max + 2): by length, what a value is divided by for it, and for its bound."""
        self._norms = norms
        self.head[[s.NORMS_AT, s.ENOUGH]] = at(norms), enough
        self._make_room_for_answers(max(len(self._answers), int(self.head[s.K]) * min(norms.shape[1], LENGTHS)))

    def under(self, trie: Trie, ends: Collection[int]) -> None:
        """Go on with what a trie has below a hypothesis, and these ends where an item is whole."""
        self._trie, self._trie_ends = (trie.tokens, trie.first, trie.items), np.array(sorted(ends), np.int64)
        self._states, head = np.empty(int(self.head[s.ROW_ROOM]), np.int32), self.head
        places = *self._trie, self._trie_ends, self._states
        head[[s.TRIE_AT, s.FIRST_AT, s.ITEMS_AT, s.TRIE_ENDS_AT, s.STATES_AT]] = [at(each) for each in places]
        head[s.TRIE_ENDS] = len(self._trie_ends)

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
        self._answers, self._answer_values = _longer(self._answers, n), _longer(self._answer_values, n)
        self.head[s.ANSWER_ROOM] = n
        self._name_progress()

    def _grow(self, nodes: int, rows: int) -> None:
        self._nodes, self._values = _longer(self._nodes, nodes), _longer(self._values, nodes)
        self._rows, self._best, self._tokens, self._children, self._costs, self._cursors = (
            _longer(each, rows) for each in (self._rows, self._best, self._tokens, self._children, self._costs, self._cursors)
        )
        head = self.head
        if head[s.TRIE_AT]:
            self._states = _longer(self._states, rows)
            head[s.STATES_AT] = at(self._states)
        if head[s.BY_STEP]:
            self._away_costs, self._away_cursors = _longer(self._away_costs, rows), _longer(self._away_cursors, rows)
        head[[s.NODE_ROOM, s.ROW_ROOM]] = nodes, rows
        head[[s.ENDS_AT, s.NODES_AT, s.VALUES_AT, s.ROWS_AT, s.BEST_AT, s.TOKENS_AT, s.CHILDREN_AT]] = [
            at(each) for each in (self._ends, self._nodes, self._values, self._rows, self._best, self._tokens, self._children)
        ]
        self._name_progress()

    def _name_progress(self) -> None:
        progress: tuple[Any, ...] = self._costs, self._cursors, self._counts, self._marks, self._answers, self._answer_values
        if self.head[s.BY_STEP]:
            progress = *progress, self._away_costs, self._away_cursors
        self.head[s.PROGRESS : s.PROGRESS + len(progress)] = [at(each) for each in progress]

    # -- what came of it -------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> list[int]:
        """Those that its scored hypotheses lie in."""
        return self._rows[: self.head[s.SCORED], s.SLOT].tolist()

    @property
    def guesses(self) -> list[tuple[int, bool]]:
        """Of what was scored ahead, its place among the guesses of its step, and whether it came to be needed."""
        rows = self._rows[: self.head[s.SCORED]]
        rows = rows[rows[:, s.RANK] > 0]
        return [*zip(rows[:, s.RANK].tolist(), (self._nodes[rows[:, s.NODE], s.ON_BEAM] > 0).tolist(), strict=True)]

    def needed(self, most: int) -> Iterator[tuple[int, ...]]:
        """The tokens of the first so many whose scores were. They are put together when they are asked for."""
        rows = self._rows[: self.head[s.SCORED], s.NODE]
        rows = rows[(self._nodes[rows, s.ON_BEAM] > 0) | (self.head[s.LEVELS] > 0)][:most]
        return _tokens(rows, self._nodes[rows, : s.TOKEN + 1])

    @property
    def answers(self) -> list[tuple[tuple[int, ...], float]]:
        """The tokens and the value of each, best first."""
        found = min(self.head[s.N], self.head[s.PROGRESS + s.FOUND])
        out = []
        for (parent, j), value in zip(self._answers[:found].tolist(), self._answer_values[:found].tolist(), strict=True):
            last = int(self._tokens[self._nodes[parent, s.ROW], j])
            out.append(((*self.tokens(parent), last), value))
        return out

    def tokens(self, node: int) -> tuple[int, ...]:
        """Of a hypothesis, from the first on."""
        out = []
        while node > 0:
            node, token = self._nodes[node, :2].tolist()
            out.append(token)
        return tuple(reversed(out))

    @property
    def deepest(self) -> tuple[tuple[int, ...], float]:
        """The first to come onto the longest beam, and its value; level by level, the best that did."""
        node = int(self.head[s.DEEPEST])
        return self.tokens(node), float(self._values[node])


class StepMemory:
    """What searches share, for steps of at most `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.numbers = np.zeros(s.STEP, np.int64)
        self.table = np.zeros((4, rows), np.int32)  # tokens, positions, slots and places of a step's rows
        self._about, self._slots = np.zeros((4, rows), np.int32), np.zeros(4 * rows, np.int32)
        self.numbers[[s.MOST_ROWS, s.SLOTS_AT]] = rows, at(self._slots)
        self.numbers[[s.ROW_NODES_AT, s.ROW_SEARCHES_AT, s.ROW_RANKS_AT, s.ROW_STATES_AT]] = [at(each) for each in self._about]
        self._memory: dict[str, Any] = {}

    def room(self, name: str, size: int, kind: Any = np.float64) -> int:
        """The address of room for so many numbers."""
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory[name] = np.empty(2 * size, kind)
        return at(self._memory[name])

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
