"""Algorithm 2 in strict order, for scores that are their own bound: the common case, cheaper than `AnyOrderSearch`.

Where the order of the agenda is also the order of every beam (a monotonic score, best first), a child comes onto its beam when it
comes to the front, and whatever comes later is worse. So beams fill from the top, nothing ever falls off, and a beam is two
counts. All that waits is, for each scored hypothesis, its best child that has not had its turn: one queue of cursors.

Scoring ahead changes none of this: successors that are known early wait with their hypothesis until its turn. Who is worth
scoring ahead is found by playing on with a copy of the queue and the counts, as if what is not scored had no children.

`tests/search/test_equal_searches.py` holds it against `AnyOrderSearch`: the same answers, and the same calls.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from .hypothesis import Hypothesis, Successors, logprob_of
from .policy import AskedSearch
from .result import Answer, Result
from .stops import Answered
from .table_1 import BestFirst, Strategy

if TYPE_CHECKING:
    from .score import Score

NextChild = tuple[float, int, int, Hypothesis, int]
"""The j-th child of a scored hypothesis: its value, negated; its length; a serial number; the hypothesis; j."""


class Progress:
    """How far a search has come: what waits, and how full the beam of each length is."""

    __slots__ = ("answers", "heap", "kth", "last", "members", "unfinished")

    def __init__(self) -> None:
        self.heap: list[NextChild] = []
        self.members: list[int] = [1]  # by length, how many are on the beam, finished ones included
        self.unfinished: list[int] = [1]
        self.kth: list[float] = [inf]  # by length, the value of the k-th member, once there is one
        self.last: list[float] = [0.0]  # by length, the value of the unfinished member that came last
        self.answers = 0

    def copy(self) -> Progress:
        other = type(self).__new__(type(self))
        other.heap, other.members, other.unfinished = self.heap[:], self.members[:], self.unfinished[:]
        other.kth, other.last, other.answers = self.kth[:], self.last[:], self.answers
        return other

    def lengthen(self, carried: int) -> None:
        """A beam for the next length, on which `carried` finished hypotheses hold a slot from the start."""
        self.members.append(carried)
        self.unfinished.append(0)
        self.kth.append(-inf)
        self.last.append(inf)


class StrictSearch(AskedSearch):
    """One input's search. It is driven as every `Search` is."""

    remembers = False  # whether all are to be found again, so that the search can begin again from what is scored

    @staticmethod
    def takes(strategy: Strategy, score: Score) -> bool:
        """Whether this is the common case: best first, by a value that is its own bound, until n have finished."""
        usual = type(strategy.order) is BestFirst and type(strategy.stop) is Answered and strategy.finished != "shrink"
        return usual and score.value_only and strategy.any_order

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.k, self.n_max, self.keep = strategy.k, self.context.n_max, self.policy.keep
        self._needed: Hypothesis | None = self.root
        self.answers: list[Answer] = []  # best first; each is sure as soon as it is there
        self._deepest = self.root  # the first to come onto the longest beam
        self._progress = Progress()
        self._serial = 0
        self.made: dict[tuple[Hypothesis, int], Hypothesis] = {}  # by parent and place: what was looked at ahead of its turn

    # -- what to score -------------------------------------------------------------------------------------------------------

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now: the needed one first, then what is worth scoring ahead, likeliest first."""
        if self._needed is None:
            return []
        return [self._needed, *self._ahead(m - 1)] if m > 1 else [self._needed]

    def _ahead(self, m: int) -> list[Hypothesis]:
        """The next `m` that would be needed if what is not scored had no children."""
        progress = self._progress.copy()
        chosen: list[Hypothesis] = []
        while len(chosen) < m and (y := self._pop(progress)) is not None:
            if y.successors is None:
                chosen.append(y)
            else:
                self._open(progress, y)
        return chosen

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        y.successors = self.lawful(y, successors)
        self.rows += 1
        self._advance()

    # -- whose turn it is ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """On to the next that must be scored and is not."""
        next_ = self._needed
        while next_ is not None and next_.successors is not None:
            if not next_.on_beam:
                next_.on_beam = True
                self.calls += 1
            self._open(self._progress, next_)
            next_ = self._pop(self._progress)
        self._needed = next_

    def _pop(self, progress: Progress) -> Hypothesis | None:
        """The next unfinished hypothesis that must be scored, or None when the search is over (Alg. 2, lines 5 to 10)."""
        heap, taken = progress.heap, progress.members if self.keep else progress.unfinished
        while heap and progress.answers < self.n:
            negated, length, _, parent, j = cursor = heappop(heap)
            if heap and heap[0][0] == negated and heap[0][1] == length:
                negated, length, _, parent, j = _first_of_equals(cursor, heap)
            if taken[length] >= self.k:
                continue  # the beam is full; its siblings, which are no better, would not enter either
            values, tokens = parent.successors[:2]  # type: ignore[index]
            if j + 1 < len(values):
                self._serial += 1
                heappush(heap, (-(parent.value + values[j + 1]), length, self._serial, parent, j + 1))
            if length == self.complete or tokens[j] in self.eos:
                self._finish(progress, parent, j, -negated)
                continue
            progress.unfinished[length] += 1
            progress.last[length] = -negated
            self._enter(progress, length, -negated)
            y = self._child(progress, parent, j, -negated)
            if length < self.n_max and not self._hopeless(progress, y):
                return y
        return None

    def _open(self, progress: Progress, y: Hypothesis) -> None:
        """Let the children of `y`, which is scored, wait for their turn (Alg. 2, lines 11 to 15)."""
        if y.length + 1 == len(progress.members):
            progress.lengthen(progress.members[-1] - progress.unfinished[-1] if self.keep else 0)
        if len(values := y.successors.values):  # type: ignore[union-attr]
            self._serial += 1
            heappush(progress.heap, (-(y.value + values[0]), y.length + 1, self._serial, y, 0))

    def _enter(self, progress: Progress, length: int, value: float) -> None:
        """One more on the beam of this length."""
        progress.members[length] += 1
        if progress.members[length] == self.k:
            progress.kth[length] = value

    def _finish(self, progress: Progress, parent: Hypothesis, j: int, value: float) -> None:
        """A finished hypothesis: an answer if there is a slot for it; under `keep`, at every later length as well."""
        length = parent.length + 1
        for at in range(length, len(progress.members) if self.keep else length + 1):
            if progress.members[at] >= self.k:
                return
            self._enter(progress, at, value)
        progress.answers += 1
        if progress is self._progress:
            tokens = (*parent.tokens, parent.successors.tokens[j])  # type: ignore[union-attr]
            self.answers.append(Answer(tokens, value, logprob_of(parent, j)))

    def _child(self, progress: Progress, parent: Hypothesis, j: int, value: float) -> Hypothesis:
        """The j-th child of `parent`; the same one each time it is looked at ahead of its turn, and then on its turn."""
        y = self.made.get((parent, j))
        if y is None:
            y = Hypothesis(parent, parent.successors.tokens[j], value, logprob_of(parent, j), False)  # type: ignore[union-attr]
            y.worth = y.bound = value
            if self.remembers or progress is not self._progress:
                self.made[parent, j] = y
        if progress is self._progress and y.length > self._deepest.length:
            self._deepest = y
        return y

    def _hopeless(self, progress: Progress, y: Hypothesis) -> bool:
        """Whether everything that `y` could become is sure to fall off a beam (the paper's Theorem 4.4)."""
        members, unfinished, k, value = progress.members, progress.unfinished, self.k, y.value
        for longer in range(y.length + 1, len(members)):
            if self.keep:
                if members[longer] >= k and progress.last[longer] > value:
                    return True
                continue
            if members[longer] < k or progress.kth[longer] <= value:
                return False  # a continuation may still finish there
            if unfinished[longer] >= k and progress.last[longer] > value:
                return True
        return not self.keep and len(members) > self.n_max

    # -- what came of it -----------------------------------------------------------------------------------------------------

    def result(self) -> Result:
        return self.found(self.answers, self._deepest)

    def dismantle(self) -> None:
        self.made.clear()
        self._progress.heap.clear()


def tokens_of(child: NextChild) -> tuple[int, ...]:
    _, _, _, parent, j = child
    return (*parent.tokens, parent.successors.tokens[j])  # type: ignore[union-attr]


def _first_of_equals(cursor: NextChild, heap: list[NextChild]) -> NextChild:
    """Of the cursors with this value and length, the one whose tokens come first. The others stay in the queue."""
    equals = [cursor]
    while heap and heap[0][:2] == cursor[:2]:
        equals.append(heappop(heap))
    equals.sort(key=tokens_of)
    for other in equals[1:]:
        heappush(heap, other)
    return equals[0]
