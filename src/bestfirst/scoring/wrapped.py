"""WrappedScore: a score that adds something to another one."""

from __future__ import annotations

from typing import Any

from ..search import Context, Finished, Strategy
from .log_probability import LogProbability
from .score import Score


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
