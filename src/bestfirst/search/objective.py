"""Objective: what a search needs of a score, and what is raised where it does not get that."""

from __future__ import annotations

from typing import Protocol

from .hypothesis import Context, Hypothesis, Successors
from .table_1 import Finished, Strategy

TOLERANCE = 1e-9  # rounding that does not count as a broken law
ROUNDING = 1e-4  # and that of a model's own scores, relative to 1 + their size: while decoding and in `check_model` alike


class Objective(Protocol):
    """What `search` needs of a score; `bestfirst.scoring` has them."""

    monotonic: bool
    value_only: bool  # whether `final` and `bound` are the value itself
    needs: frozenset[str]

    def final(self, value: float, length: int, context: Context) -> float:
        """The score of a hypothesis whose increments sum to `value`."""

    def bound(self, value: float, length: int, context: Context) -> float:
        """The best `final` that any longer continuation can reach."""

    def exact(self, finished: Finished) -> bool:
        """Whether best-first search returns beam search's result under this rule."""

    def check(self, strategy: Strategy) -> None:
        """Raise ValueError for a strategy that does not go with this score."""


def lowered(successors: Successors) -> Successors:
    """With increments that only rounding lifted above 0 (a softmax in single precision) at 0, so that bounds hold."""
    values = successors.values
    if not values or not 0 < values[0] <= ROUNDING:
        return successors
    return successors._replace(values=[min(value, 0.0) for value in values])


class BrokenLaw(ValueError):
    """A score or a model broke a law that search relies on, whatever the input."""

    @classmethod
    def above_bound(cls, y: Hypothesis, token: int, reach: float, logprob: float) -> BrokenLaw:
        """A child of `y`, whose token the model gave this log-probability, can reach more than the bound of `y`."""
        if logprob > ROUNDING:
            return cls(
                f"the model gives token {token} after {list(y.tokens)} a score of {logprob:.6g}; log-probabilities are at most "
                "0: of logits return the log_softmax, of probabilities the log. If scores are meant to rise, use strategy='beam'"
            )
        return cls(
            f"the score of {[*y.tokens, token]} can reach {reach:.6g}, above the bound {y.bound:.6g} of its prefix "
            f"{list(y.tokens)}: the score is not monotonic or its bound is wrong; use strategy='beam', or mend the score"
        )
