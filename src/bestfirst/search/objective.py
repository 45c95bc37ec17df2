"""Objective: what a search needs of a score, and what it says when a score breaks the law."""

from __future__ import annotations

from typing import Protocol

from .hypothesis import Context
from .strategy import Finished, Strategy


class Objective(Protocol):
    """What `search` needs of a score; `bestfirst.scoring` has them."""

    monotonic: bool
    value_only: bool  # whether `final` and `bound` are the value itself
    needs: frozenset[str]

    def final(self, value: float, length: int, context: Context) -> float:
        """The score of a hypothesis whose increments sum to `value`."""
        ...

    def bound(self, value: float, length: int, context: Context) -> float:
        """The best `final` that any longer continuation can reach."""
        ...

    def exact(self, finished: Finished) -> bool:
        """Whether best-first search returns beam search's result under this rule."""
        ...

    def check(self, strategy: Strategy) -> None:
        """Raise ValueError for a strategy that does not go with this score."""
        ...


class BrokenLaw(ValueError):
    """A score or a model broke the law that best-first search relies on."""


def check(strategy: Strategy, score: Objective, context: Context, n: int) -> None:
    """Raise ValueError, naming the way out, for what no search can be asked for."""
    if n < 1:
        raise ValueError(f"nbest must be at least 1, got {n}")
    if strategy.finished == "keep" and n > strategy.k:
        raise ValueError(f"nbest ({n}) must not exceed beam ({strategy.k}): beam search returns no more than its beam")
    if context.n_max < 1:
        raise ValueError(f"max_length must be at least 1, got {context.n_max}")
    score.check(strategy)
