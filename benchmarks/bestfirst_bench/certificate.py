"""The certificate: the fewest calls with which any exact search can know beam search's answer, from beam search's own beams.

A search that never saw a bound runs to its end, level by level; what it kept says which hypotheses had to be scored: those that
precede the answer in the order and that no longer beam is sure to refuse (docs/algorithm.md, "What a call is"). Nothing of
best-first search is used, so `calls` over this number is a check of it. `tests/bench/test_certificate.py` compares it with the
reference of the search's own tests.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Any

from bestfirst.search import Trace
from bestfirst.search.hypothesis import Hypothesis
from bestfirst.search.trace import Event
from bestfirst.search.tree import SearchTree

Place = tuple[float, int, tuple[int, ...]]  # minus the score, length, tokens: the order of all algorithms


NOWHERE: Place = (inf, 0, ())


class FullBeams(Trace):
    """Follows a beam search that runs to the end with finished hypotheses keeping their slots, and collects its beams."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: dict[int, set[Place]] = defaultdict(set)
        self._finished: dict[int, set[Place]] = defaultdict(set)

    def begin(self, search: SearchTree) -> None:
        self._k, self._n_max = int(search.strategy.k), search.context.n_max

    def note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        if event not in ("push", "prune"):
            return
        place = (-y.worth, y.length, y.tokens)
        if y.finished:
            if event == "push":  # on which longer beams it stays, `least` works out
                self._finished[y.length].add(place)
        elif event == "push":
            self._unfinished[y.length].add(place)
        else:
            self._unfinished[y.length].discard(place)

    def refuse(self, *_: Any, **__: Any) -> None:
        """What never was on a beam is of no concern."""

    def result(self, *_: Any) -> None:
        """Nor what came of it."""

    def text(self, *_: Any) -> None:
        """Nor how it reads."""

    def least(self) -> int:
        """How many hypotheses must be scored for the best answer."""
        kth = []  # of each length, the last of the beam's k members
        kept: list[Place] = []
        for length in range(self._n_max + 1):
            unfinished = self._unfinished[length]
            kept = sorted({*kept, *self._finished[length]})[: self._k - len(unfinished)]
            members = [*unfinished, *kept]
            kth.append(max(members) if len(members) == self._k else NOWHERE)
        answer = kept[0] if kept else NOWHERE
        refused = NOWHERE  # the first of those k-th members: what comes after it has no future
        needed = 0
        for length in range(self._n_max - 1, -1, -1):
            refused = min(refused, kth[length + 1])
            needed += sum(place < answer and place < refused for place in self._unfinished[length])
        return needed
