"""Policy: what a strategy and a score mean for an `AnyOrderSearch`. One answer to each question, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .objective import Objective
from .stops import Answered, Exhausted
from .table_1 import Strategy


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
