"""Diverse: a beam in groups, each of which avoids what the groups before it chose."""

from __future__ import annotations

from typing import Any

from ..search import Finished, Groups, Search, Strategy
from .score import Score, nonnegative
from .wrapped import WrappedScore


class Diverse(WrappedScore):
    """Diverse beam search with the Hamming penalty (Vijayakumar et al. 2018).

    A token costs `penalty` for every hypothesis of an earlier group that chose it at the same length. Groups go one after
    another, level by level: no best-first search, and no claim to be exact.
    """

    name = "diverse"

    def __init__(self, groups: int, penalty: float, score: Score | None = None) -> None:
        super().__init__(score)
        if groups < 1:
            raise ValueError(f"groups must be at least 1, got {groups}")
        self.groups = groups
        self.penalty = nonnegative("penalty", penalty)

    def exact(self, finished: Finished) -> bool:
        return False

    def check(self, strategy: Strategy) -> None:
        super().check(strategy)
        if not strategy.level_by_level or not strategy.any_order:
            raise ValueError(f"diverse groups go level by level, strategy {strategy.name!r} does not; use strategy='beam'")
        if strategy.k % self.groups:
            raise ValueError(f"{self.groups} groups do not divide a beam of {strategy.k}; use a multiple of {self.groups}")

    def search(self, strategy: Strategy, *, n: int = 1, max_calls: int | None = None, **settings: Any) -> Groups:
        self.check(strategy)
        each = strategy.using(k=strategy.k // self.groups)
        searches = [Search(each, score=self.score, n=min(n, int(each.k)), **settings) for _ in range(self.groups)]
        return Groups(searches, self.penalty, n, max_calls)
