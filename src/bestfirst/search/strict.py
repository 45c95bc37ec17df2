"""Algorithm 2 in strict order, for scores that are their own bound: the common case, cheaper than `AnyOrderSearch`.

If the order of the agenda is also the order of every beam (a monotonic score, best first), children enter their beam in the order
in which they reach the front (Lemma 4.1). So beams fill from the top, nothing ever falls off, and two counts represent a beam.
The queue holds one cursor per scored hypothesis: its best child that has not had its turn.

Scoring ahead changes none of this: successors that are known early are kept with their hypothesis until its turn. To choose what
to score ahead, the search continues on a copy of the queue and the counts, as if unscored hypotheses had no children.

`tests/search/test_equal_searches.py` compares it with `AnyOrderSearch`: the same answers and calls.
`engine/steps/native/strict_searches.py` is a compiled copy with the same names.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from .hypothesis import Hypothesis, Successors, logprob_of
from .policy import BaseSearch
from .result import Answer, Result
from .stops import Answered
from .table_1 import BestFirst, Strategy

if TYPE_CHECKING:
    from .score import Score

NextChild = tuple[float, int, int, Hypothesis, int]
"""A cursor, the j-th child of a scored hypothesis: its value, negated; its length; a serial number; the hypothesis; j."""


class Progress:
    """The state of a search: the queue, and how full the beam of each length is. Copied to look ahead."""

    __slots__ = ("answers", "heap", "kth", "last", "members", "unfinished")

    def __init__(self) -> None:
        self.heap: list[NextChild] = []
        self.members: list[int] = [1]  # by length, how many are on the beam (Alg. 2, pops), finished ones included
        self.unfinished: list[int] = [1]  # by length, how many of these are unfinished
        self.kth: list[float] = [inf]  # by length, the value of the k-th member; -inf until there is one
        self.last: list[float] = [0.0]  # by length, the value of the last, so the worst, unfinished member
        self.answers = 0  # how many

    def copy(self) -> Progress:
        other = type(self).__new__(type(self))
        other.heap, other.members, other.unfinished = self.heap[:], self.members[:], self.unfinished[:]
        other.kth, other.last, other.answers = self.kth[:], self.last[:], self.answers
        return other

    def lengthen(self, carried: int) -> None:
        """Add the beam of the next length; `carried` finished hypotheses hold a slot on it from the start (`keep`)."""
        self.members.append(carried)
        self.unfinished.append(0)
        self.kth.append(-inf)
        self.last.append(inf)


class StrictSearch(BaseSearch):
    """The search of one input; implements `Search`."""

    keeps_children = False  # whether to keep every child, so that the search can begin again from what is scored

    @staticmethod
    def takes(strategy: Strategy, score: Score) -> bool:
        """Whether this is the common case: best first, by a value that is its own bound, until n have finished."""
        usual = type(strategy.order) is BestFirst and type(strategy.stop) is Answered and strategy.finished != "shrink"
        return usual and score.value_only and strategy.any_order

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.k, self.n_max, self.keep = strategy.k, self.context.n_max, self.policy.keep
        self._needed: Hypothesis | None = self.root
        self.answers: list[Answer] = []  # best first; each is final as soon as it is found
        self._deepest = self.root  # the first hypothesis to enter the longest beam: the partial result
        self._progress = Progress()
        self._serial = 0
        self.children: dict[tuple[Hypothesis, int], Hypothesis] = {}  # by parent and j, those looked at ahead of their turn

    # -- what to score -------------------------------------------------------------------------------------------------------

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now: the needed one first, then those worth scoring ahead, likeliest first."""
        if self._needed is None:
            return []
        return [self._needed, *self._ahead(m - 1)] if m > 1 else [self._needed]

    def _ahead(self, m: int) -> list[Hypothesis]:
        """The next `m` hypotheses that would be needed if unscored ones had no children."""
        progress = self._progress.copy()
        chosen: list[Hypothesis] = []
        while len(chosen) < m and (y := self._pop(progress)) is not None:
            if y.successors is None:
                chosen.append(y)
            else:
                self._open(progress, y)
        return chosen

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        y.successors = self.checked_successors(y, successors)
        self.rows += 1
        self._advance()

    # -- the next in order ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on to the next hypothesis that is needed and not scored."""
        next_ = self._needed
        while next_ is not None and next_.successors is not None:
            if not next_.on_beam:
                next_.on_beam = True
                self.calls += 1
            self._open(self._progress, next_)
            next_ = self._pop(self._progress)
        self._needed = next_

    def _pop(self, progress: Progress) -> Hypothesis | None:
        """Pop the next unfinished hypothesis that must be scored, or None when the search is over (Alg. 2, lines 5 to 10)."""
        heap, taken = progress.heap, progress.members if self.keep else progress.unfinished
        while heap and progress.answers < self.n:
            negated, length, _, parent, j = cursor = heappop(heap)
            if heap and heap[0][0] == negated and heap[0][1] == length:
                negated, length, _, parent, j = _first_of_equals(cursor, heap)
            if taken[length] >= self.k:
                continue  # the beam is full; siblings are no better, so they would not enter either
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
        """Queue the children of `y`, which is scored: a cursor for the best of them (Alg. 2, lines 11 to 15)."""
        if y.length + 1 == len(progress.members):
            progress.lengthen(progress.members[-1] - progress.unfinished[-1] if self.keep else 0)
        if len(values := y.successors.values):  # type: ignore[union-attr]
            self._serial += 1
            heappush(progress.heap, (-(y.value + values[0]), y.length + 1, self._serial, y, 0))

    def _enter(self, progress: Progress, length: int, value: float) -> None:
        """Count one more member on the beam of this length."""
        progress.members[length] += 1
        if progress.members[length] == self.k:
            progress.kth[length] = value

    def _finish(self, progress: Progress, parent: Hypothesis, j: int, value: float) -> None:
        """A finished child was popped: it is an answer if it has a slot; under `keep`, at every later length as well."""
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
        """The j-th child of `parent`: always the same object, whether it is looked at ahead of its turn or on its turn."""
        y = self.children.get((parent, j))
        if y is None:
            y = Hypothesis(parent, parent.successors.tokens[j], value, logprob_of(parent, j), False)  # type: ignore[union-attr]
            y.worth = y.bound = value
            if self.keeps_children or progress is not self._progress:
                self.children[parent, j] = y
        if progress is self._progress and y.length > self._deepest.length:
            self._deepest = y
        return y

    def _hopeless(self, progress: Progress, y: Hypothesis) -> bool:
        """Whether all continuations of `y` are certain to fall off a beam (the paper's Theorem 4.4)."""
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

    # -- the result ----------------------------------------------------------------------------------------------------------

    def certified(self) -> list[Answer]:
        return [replace(answer) for answer in self.answers]

    def result(self) -> Result:
        return self.make_result(self.answers, self._deepest)

    def dismantle(self) -> None:
        self.children.clear()
        self._progress.heap.clear()


def tokens_of(child: NextChild) -> tuple[int, ...]:
    """The tokens of the child that this cursor stands for."""
    _, _, _, parent, j = child
    return (*parent.tokens, parent.successors.tokens[j])  # type: ignore[union-attr]


def _first_of_equals(cursor: NextChild, heap: list[NextChild]) -> NextChild:
    """Among the cursors with this value and length, the one whose tokens come first. The others stay in the queue."""
    equals = [cursor]
    while heap and heap[0][:2] == cursor[:2]:
        equals.append(heappop(heap))
    equals.sort(key=tokens_of)
    for other in equals[1:]:
        heappush(heap, other)
    return equals[0]
