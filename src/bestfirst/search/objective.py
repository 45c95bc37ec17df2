"""Objective: what a search needs of a score, and what is raised where it does not get that. Policy: what a strategy and a score
mean for a search."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from .hypothesis import Context, Hypothesis, Successors
from .stops import Answered, Exhausted
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


@dataclass(frozen=True)
class Policy:
    """How a search goes about it."""

    keep: bool  # does a finished hypothesis hold a slot of every later beam?
    rank_by_value: bool  # do beams rank by value, as against score and heuristic?
    value_only: bool  # is a hypothesis' value its score, its bound, its rank and its place on the agenda, all in one?
    guaranteed: bool  # do the score's laws promise beam search's result, as far as the order needs them?
    relies_on_bound: bool  # would a child above its parent's bound make the result wrong? Then it is an error
    strict_values: bool  # would two values with one score make the result wrong? Then they are an error
    prunes: bool  # is what is hopeless left out (Theorem 4.4)?
    by_attainable: bool  # is the order that of what can be attained, as against the bounds?
    one_by_one: bool  # must all be scored in order, nothing ahead of its turn?
    whole_levels: bool  # is all that a frontier names certain to be needed?
    lazy: bool  # are children made one by one, as they come to the front, as against all at once?

    @classmethod
    def of(cls, strategy: Strategy, score: Objective, max_calls: int | None, traced: bool) -> Policy:
        """The policy for this search, with or without a limit to its calls and a trace."""
        order = strategy.order
        keep = strategy.finished == "keep"
        rank_by_value = not keep and strategy.heuristic is None
        guaranteed = not order.relies_on_bound or score.exact(strategy.finished)
        relies_on_bound = order.relies_on_bound and guaranteed and strategy.any_order
        best_first = order.relies_on_bound and not strategy.level_by_level
        # A search that is cut off, or that has no guarantee, shall find what the paper's order finds.
        one_by_one = not strategy.any_order or not guaranteed or max_calls is not None
        # A trace tells of all that wait, unless there may be no end to them.
        told = traced and strategy.k < inf and max_calls is None
        # Hugging Face's own stop is that of the bounds, too, where scores never rise.
        stops_by_bounds = isinstance(strategy.stop, Answered) or (score.monotonic and strategy.any_order)
        # Level by level the stop looks at whole levels, except the one that never does.
        exhaustive = strategy.level_by_level and strategy.k == inf and isinstance(strategy.stop, Exhausted)
        return cls(
            keep=keep,
            rank_by_value=rank_by_value,
            value_only=best_first and score.value_only and strategy.heuristic is None,
            guaranteed=guaranteed,
            relies_on_bound=relies_on_bound,
            strict_values=relies_on_bound and keep and not score.monotonic,
            # In an order that bounds do not justify, Algorithm 2's own counts of pops do the same for `keep`.
            prunes=(order.relies_on_bound and guaranteed) or (order.depends_on_past and keep),
            by_attainable=best_first and guaranteed and not score.value_only and stops_by_bounds,
            one_by_one=one_by_one,
            whole_levels=not one_by_one and not order.relies_on_bound,
            lazy=(relies_on_bound and best_first and not told) or (exhaustive and rank_by_value),
        )
