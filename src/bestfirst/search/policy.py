"""What every search of an input shares: Policy, what its strategy and its score mean for it; AskedSearch, what was asked for and
what it has cost; BrokenLaw, what is raised where a score or a model does not keep what the search relies on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from .hypothesis import Context, Hypothesis, Successors
from .result import Answer, Result
from .stops import Answered, Exhausted
from .table_1 import Strategy, check

if TYPE_CHECKING:
    from .score import Score

TOLERANCE = 1e-9  # rounding that does not count as a broken law
ROUNDING = 1e-4  # and that of a model's own scores, relative to 1 + their size: while decoding and in `check_model` alike


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
    guaranteed: bool  # do the score's laws promise beam search's result, as far as the order needs them?
    relies_on_bound: bool  # would a child above its parent's bound make the result wrong? Then it is an error
    strict_values: bool  # would two values with one score make the result wrong? Then they are an error
    prunes: bool  # is what is hopeless left out (Theorem 4.4)?
    by_attainable: bool  # is the order that of what can be attained, as against the bounds?
    one_by_one: bool  # must all be scored in order, nothing ahead of its turn?
    whole_levels: bool  # is all that a frontier names certain to be needed?
    lazy: bool  # are children made one by one, as they come to the front, as against all at once?

    @classmethod
    def of(cls, strategy: Strategy, score: Score, max_calls: int | None = None, traced: bool = False) -> Policy:
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


class AskedSearch:
    """One input's search: what was asked for, and what it has cost."""

    calls = 0  # hypotheses that had to be scored
    out_of_budget = False

    def __init__(
        self,
        strategy: Strategy,
        *,
        score: Score,
        eos: Collection[int],
        context: Context,
        n: int = 1,
        accept_truncated: bool = False,
        max_calls: int | None = None,
        traced: bool = False,
    ) -> None:
        check(strategy, score, context, n, max_calls)
        self.strategy, self.score, self.context, self.n = strategy, score, context, n
        self.eos = frozenset(eos)
        self.complete = context.n_max if accept_truncated else None  # the length at which a hypothesis is finished as it is
        self.policy = Policy.of(strategy, score, max_calls, traced)
        self.whole_levels = self.policy.whole_levels
        self.level_rows = int(min(strategy.k, 1024))
        self.width = strategy.k + len(self.eos)
        self.rows = 0  # hypotheses scored, those ahead of their turn included
        self.root = self.valued(Hypothesis(None, -1, 0.0, 0.0, False))

    def valued(self, y: Hypothesis) -> Hypothesis:
        """With what it is worth, and the best that any continuation can be."""
        y.worth = y.bound = y.value
        if not self.score.value_only:
            y.worth = self.score.final(y.value, y.length, self.context) if y.length else y.value
            y.bound = self.score.bound(y.value, y.length, self.context) if y.length < self.context.n_max else -inf
        return y

    def lawful(self, y: Hypothesis, successors: Successors) -> Successors:
        """What the model said of `y`, without what rounding lifted above 0. BrokenLaw if values rise: bounds rely on it."""
        if not successors.values or successors.values[0] <= 0:
            return successors
        successors = lowered(successors)
        if successors.values[0] > TOLERANCE * (1 + abs(y.value)):
            logprobs = successors.values if successors.logprobs is None else successors.logprobs
            raise BrokenLaw.above_bound(y, successors.tokens[0], y.value + successors.values[0], logprobs[0])
        return successors

    def found(self, answers: list[Answer], partial: Hypothesis, broken: bool = False) -> Result:
        """These answers, or where there are none the best unfinished hypothesis, and what they cost. `broken`: with no claim."""
        calls, some = self.calls, bool(answers)
        return Result(
            hypotheses=answers,
            calls=calls,
            rows=self.rows,
            lm_calls=calls if "language_model" in self.score.needs else 0,
            exact=self.strategy.exact and self.policy.guaranteed and not broken,
            status="budget" if self.out_of_budget else "complete" if some else "incomplete",
            partial=None if some else Answer.of(self.valued(partial)),
        )
