"""Scores that change another one: a coverage penalty on top of it, or a beam in diverse groups."""

from __future__ import annotations

from typing import Any

from ..search import AnyOrderSearch, Context, Finished, Groups, Strategy
from ..search import check as check_settings
from .length import LogProbability
from .score import Score, log, nonnegative

LEAST = 1e-10  # stands for no attention at all, so that scores stay finite


class WrappedScore(Score):
    """Everything as the score inside has it (log-probability where none is named); subclasses say what differs."""

    def __init__(self, score: Score | None = None) -> None:
        self.score = score or LogProbability()
        self.monotonic = self.score.monotonic
        self.one_way = self.score.one_way
        self.needs = self.score.needs
        self.language_model = self.score.language_model

    @property
    def plain(self) -> bool:
        return self.score.plain

    def increment(self, logprobs: Any, aux: Any = None, **past: Any) -> Any:
        return self.score.increment(logprobs, aux, **past)

    def final(self, value: float, length: int, context: Context) -> float:
        return self.score.final(value, length, context)

    def bound(self, value: float, length: int, context: Context) -> float:
        return self.score.bound(value, length, context)

    def ending(self, coverage: Any) -> Any:
        return self.score.ending(coverage)

    def exact(self, finished: Finished) -> bool:
        return self.score.exact(finished)

    def check(self, strategy: Strategy) -> None:
        self.score.check(strategy)


class Coverage(WrappedScore):
    """A score plus beta * sum_i log min(sum_j p_ij, 1) (Wu et al. 2016, Eq. 14): an output must attend to all of its input.

    p_ij is the attention to source token i when token j was chosen. GNMT's own score is `Coverage(beta, GNMT(alpha))`. The
    penalty comes in when a hypothesis finishes; beams rank without it. It is never positive, so the bound of the score inside
    still holds, and best-first search is exact under `leave`.
    """

    name = "coverage"

    def __init__(self, beta: float, score: Score | None = None) -> None:
        super().__init__(score)
        self.beta = nonnegative("beta", beta)
        self.needs |= {"attention"}

    def ending(self, coverage: Any) -> Any:
        return super().ending(coverage) + self.beta * log(coverage.clip(LEAST, 1.0)).sum(-1)

    def check(self, strategy: Strategy) -> None:
        super().check(strategy)
        if strategy.finished == "keep":
            raise ValueError("a coverage penalty comes in when a hypothesis finishes, too late for finished='keep'; use 'leave'")


class Diverse(WrappedScore):
    """Diverse beam search with the Hamming penalty (Vijayakumar et al. 2018): a beam in groups.

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
        check_settings(strategy, self, settings["context"], n, max_calls)
        each = strategy.using(k=strategy.k // self.groups)
        settings |= {"score": self.score, "n": min(n, int(each.k))}
        return Groups([AnyOrderSearch(each, **settings) for _ in range(self.groups)], self.penalty, n, max_calls)
