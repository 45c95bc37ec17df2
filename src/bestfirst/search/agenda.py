"""The agenda: a priority queue of beams, one beam per length, each capped (the paper, section 3.3).

A `Beam` holds the best hypotheses of its length that are known so far, closed ones included, in order of rank. The paper's beams
hold only pending hypotheses, at most k - pops[t] of them. With the popped ones left in, the cap is simply k, and the order of
scoring no longer matters: a better hypothesis that is found late still displaces a worse one.

Costs, as in the paper: a full beam refuses a hypothesis in O(1), by comparing it with the worst member; an insertion costs
O(log k) comparisons (and a memory move); a change of a beam's head costs O(log n_max) in the queue of beams. The paper pays this
for all |V| children of a hypothesis, this agenda only for children that reach the front: the others wait behind a `Cursor`, best
first, until the best score they could reach is the best on the agenda.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter

from .hypothesis import Hypothesis, Key

Cursor = tuple[float, float, tuple[()], int, Hypothesis, int]
"""The j-th child of a hypothesis, not created yet: its place (`Order.cursor`), a serial number, the parent, j.

Sorts among the keys of hypotheses, before a hypothesis of the same place."""
by_rank, by_key = attrgetter("rank"), attrgetter("key")


class Beam:
    """The best known hypotheses of one length, under one of the rules for finished hypotheses.

    `keep`: finished hypotheses take a slot like any other, at their own and at every later length; at most k members.
    `leave`: at most k unfinished members; a finished one is a member (is accepted) if fewer than k members precede it.
    """

    __slots__ = ("by_state", "cursors", "k", "keep", "length", "members", "open", "unfinished")

    def __init__(self, length: int, k: float, keep: bool) -> None:
        self.length = length
        self.k = k  # infinite where nothing is pruned
        self.keep = keep
        self.members: list[Hypothesis] = []  # by rank
        self.open: list[Hypothesis] = []  # the queued members, which are not scored yet, by key
        self.cursors: list[Cursor] = []  # a heap; children of closed members of the previous beam, not created yet
        self.unfinished = 0
        self.by_state: dict[Hashable, Hypothesis] = {}  # the only member of each known state

    @property
    def full(self) -> bool:
        """Whether only a hypothesis that outranks the last member can still enter."""
        return (len(self.members) if self.keep else self.unfinished) >= self.k

    def insert(self, y: Hypothesis) -> Sequence[Hypothesis]:
        """Add `y` and return the hypotheses that fall off: none, other members, or `y` itself. Of two with the same state only
        the better stays: every continuation of the other is worse than the same continuation of this one."""
        twin = None if y.state_key is None else self.by_state.get(y.state_key)
        if twin is None or twin is y:
            return self._insert(y)
        if (-twin.value, twin.tokens) <= (-y.value, y.tokens):
            return (y,)
        self._remove(self.members.index(twin))
        return (twin, *self._insert(y))

    def _insert(self, y: Hypothesis) -> Sequence[Hypothesis]:
        members = self.members
        if self.full and y.rank > members[-1].rank:
            return (y,)
        position = bisect_left(members, y.rank, key=by_rank)
        if y.finished and position >= self.k:
            return (y,)
        members.insert(position, y)
        if y.state_key is not None:
            self.by_state[y.state_key] = y
        if not y.finished:
            self.unfinished += 1
        if len(members) <= self.k:
            return ()
        if self.keep:
            return (self._remove(-1),)
        fallen = []
        if members[int(self.k)].finished:
            fallen.append(self._remove(int(self.k)))
        if self.unfinished > self.k:
            fallen.append(self._remove(-1))
        return fallen

    def _remove(self, position: int) -> Hypothesis:
        y = self.members.pop(position)
        if y.state_key is not None:
            self.by_state.pop(y.state_key, None)
        if not y.finished:
            self.unfinished -= 1
        return y

    def discard(self, y: Hypothesis) -> None:
        self._remove(bisect_left(self.members, y.rank, key=by_rank))

    def lock(self, y: Hypothesis) -> None:
        """Give `y` a rank that nothing can displace: it counts as popped, whatever is found later (Alg. 2, pops[t])."""
        del self.members[bisect_left(self.members, y.rank, key=by_rank)]
        y.rank = (float("-inf"), *y.rank[1:])
        insort(self.members, y, key=by_rank)

    def kth(self) -> Hypothesis | None:
        """The k-th member, finished or not: a finished hypothesis that ranks after it is not accepted."""
        return self.members[int(self.k) - 1] if len(self.members) >= self.k else None


class Agenda:
    """A queue of beams, ordered by the first open hypothesis or cursor of each beam."""

    def __init__(self) -> None:
        self.beams: list[Beam] = []  # by length
        self._heads: list[tuple[Key | Cursor, int]] = []  # a lazy heap: an entry counts only while it is its beam's head
        self._serial = 0

    def enqueue(self, y: Hypothesis) -> None:
        """Queue `y` to be scored; no effect if it is queued already."""
        pending = self.beams[y.length].open
        i = bisect_left(pending, y.key, key=by_key)
        if i < len(pending) and pending[i] is y:
            return
        pending.insert(i, y)
        if i == 0:
            heapq.heappush(self._heads, (y.key, y.length))

    def dequeue(self, y: Hypothesis) -> bool:
        """Remove `y` from the queue and return whether it was queued. It stays a member of its beam."""
        if y.length >= len(self.beams):
            return False
        pending = self.beams[y.length].open
        if not pending:
            return False
        i = 0 if pending[0] is y else bisect_left(pending, y.key, key=by_key)
        if i < len(pending) and pending[i] is y:
            del pending[i]
            if i == 0 and pending:
                heapq.heappush(self._heads, (pending[0].key, y.length))
            return True
        return False

    def defer(self, y: Hypothesis, j: int, place: tuple[float, float]) -> None:
        """Queue a cursor for the j-th child of `y`: the child is created when the cursor reaches the front."""
        length = y.length + 1
        self._serial += 1
        cursor: Cursor = (*place, (), self._serial, y, j)
        cursors = self.beams[length].cursors
        heapq.heappush(cursors, cursor)
        if cursors[0] is cursor:
            heapq.heappush(self._heads, (cursor, length))

    def pop_cursor(self, beam: Beam) -> tuple[Hypothesis, int]:
        """Remove the first cursor of a beam; return its parent and the index of the child."""
        _, _, _, _, y, j = heapq.heappop(beam.cursors)
        if beam.cursors:
            heapq.heappush(self._heads, (beam.cursors[0], beam.length))
        return y, j

    def head(self) -> Hypothesis | Beam | None:
        """The first open hypothesis in the order; or a beam, if its first cursor precedes every open hypothesis."""
        heads, beams = self._heads, self.beams
        while heads:
            key, length = heads[0]
            if length < len(beams):
                beam = beams[length]
                if beam.open and beam.open[0].key is key:
                    return beam.open[0]
                if beam.cursors and beam.cursors[0] is key:
                    return beam
            heapq.heappop(heads)
        return None

    def in_order(self) -> Iterator[Hypothesis]:
        """All queued hypotheses, first to last. The agenda must not change during the iteration."""
        return heapq.merge(*(beam.open for beam in self.beams), key=by_key)

    def queued(self) -> int:
        return sum(len(beam.open) for beam in self.beams)
