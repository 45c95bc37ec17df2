"""What all searches share. `Policy`: what strategy and score mean for the search. `BaseSearch`: the base class of the searches,
with their settings and costs. `BrokenLaw`: the error for a score or model that breaks a law of exact search."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from numbers import Real
from typing import TYPE_CHECKING

from .hypothesis import Context, Hypothesis, Successors
from .result import Answer, Result
from .search import Search
from .stops import Answered, Exhausted
from .table_1 import Strategy, check_settings

if TYPE_CHECKING:
    from .score import Score

TOLERANCE = 1e-9  # rounding error of sums that does not count as a broken law
ROUNDING = 1e-4  # rounding error of a model's own scores, relative to 1 + their size; for decoding and `check_model` alike


def clamp_rounding(successors: Successors) -> Successors:
    """The successors, with increments that only rounding lifted above 0 (a softmax in single precision) set to 0."""
    values = successors.values
    if not values or not 0 < values[0] <= ROUNDING:
        return successors
    return successors._replace(values=[min(value, 0.0) for value in values])


def exceeds(reach: float, bound: float, tolerance: float = TOLERANCE) -> bool:
    """Whether `reach` is above `bound` by more than rounding; either may be infinite."""
    return reach > bound + tolerance * (1 + min(abs(reach), abs(bound)))


class BrokenLaw(ValueError):
    """A score or a model broke a law that the search relies on, for any input."""

    @classmethod
    def above_bound(cls, y: Hypothesis, token: int, reach: float, logprob: float) -> BrokenLaw:
        """The error for a child of `y` that can reach more than the bound of `y`; `logprob` is that of its token."""
        if logprob > ROUNDING:
            return cls(
                f"the model gives token {token} after {list(y.tokens)} a score of {logprob:.6g}; log-probabilities are at most "
                "0: of logits return the log_softmax, of probabilities the log. If scores are meant to rise, use strategy='beam'"
            )
        return cls(
            f"the score of {[*y.tokens, token]} can reach {reach:.6g}, above the bound {y.bound:.6g} of its prefix "
            f"{list(y.tokens)}: the score is not monotonic or its bound is wrong; use strategy='beam', or mend the score"
        )


class Policy:
    """Decisions of a search that follow from its strategy, score and settings; `traced`: the search records a trace."""

    def __init__(self, strategy: Strategy, score: Score, max_calls: int | None = None, traced: bool = False) -> None:
        order, level_by_level = strategy.order, strategy.level_by_level
        # Does a finished hypothesis hold a slot on every later beam?
        self.keep = strategy.finished == "keep"
        # Do beams rank by value (else by score plus heuristic)?
        self.rank_by_value = not self.keep and strategy.heuristic is None
        # Do the score's laws, where the order needs them, guarantee beam search's result?
        self.guaranteed = not order.relies_on_bound or score.exact(strategy.finished)
        # Would a child above its parent's bound make the result wrong? Then it raises BrokenLaw.
        self.relies_on_bound = order.relies_on_bound and self.guaranteed
        # Would two values with one score make the result wrong? Then they raise BrokenLaw.
        self.strict_values = self.relies_on_bound and self.keep and not score.monotonic
        # Are hopeless hypotheses not scored (Theorem 4.4)? In an order that bounds do not justify, Algorithm 2's own counts of
        # pops allow that under `keep`.
        self.prunes = (order.relies_on_bound and self.guaranteed) or (order.depends_on_past and self.keep)
        # Is the agenda ordered by attainable scores (else by bounds)? Where scores never rise, Hugging Face's own stop is a stop
        # by bounds, too.
        best_first = order.relies_on_bound and not level_by_level
        stops_by_bounds = isinstance(strategy.stop, Answered) or (score.monotonic and strategy.any_order)
        self.by_attainable = best_first and self.guaranteed and not score.value_only and stops_by_bounds
        # Must hypotheses be scored strictly in order, none ahead of its turn? A search that may be cut off, or that has no
        # guarantee, returns what the paper's strict order returns.
        self.one_by_one = not strategy.any_order or not self.guaranteed or max_calls is not None
        # Are all hypotheses of a frontier certain to be needed?
        self.whole_levels = not self.one_by_one and not order.relies_on_bound
        # Must children be put in order of score and token? Two values may have one score, and beams rank by it.
        self.by_score = self.keep and strategy.heuristic is None and not score.strict
        # Are children created one by one, as their cursors reach the front (else all at once)? A trace shows all waiting
        # children, unless their number has no limit. Level by level every stop but `Exhausted` looks at whole levels.
        eager = self.by_score or (traced and strategy.k < inf and max_calls is None)
        exhaustive = level_by_level and strategy.k == inf and isinstance(strategy.stop, Exhausted)
        by_bounds = best_first and self.guaranteed and strategy.any_order
        self.lazy = (by_bounds and not eager) or (exhaustive and self.rank_by_value)


class BaseSearch(Search):
    """Base class of the searches of one input: what was asked for, and what the search has cost so far."""

    calls = 0  # hypotheses that had to be scored: the paper's metric
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
        check_settings(strategy, score, context, n, max_calls)
        self.strategy, self.score, self.context, self.n = strategy, score, context, n
        self.eos = frozenset(eos)
        self.complete = context.n_max if accept_truncated else None  # the length at which a hypothesis is finished without EOS
        self.policy = Policy(strategy, score, max_calls, traced)
        self.whole_levels = self.policy.whole_levels
        self.level_rows = int(min(strategy.k, 1024))
        self.width = strategy.k + len(self.eos)
        self.rows = 0  # hypotheses scored, speculation included
        self.root = self.set_scores(Hypothesis(None, -1, 0.0, 0.0, False))

    def set_scores(self, y: Hypothesis) -> Hypothesis:
        """Set `worth` and `bound` of `y` by the score, and return `y`."""
        y.worth = y.bound = y.value
        if not self.score.value_only:
            y.worth, y.bound = self.scores_of(y.value, y.length)
        return y

    def scores_of(self, value: float, length: int) -> tuple[float, float]:
        """The score and the bound of a hypothesis. Raises BrokenLaw if one is no number, or the score is infinitely good."""
        worth = self.score.final(value, length, self.context) if length else value
        bound = self.score.bound(value, length, self.context) if length < self.context.n_max else -inf
        try:
            if worth < inf and bound <= inf:  # false of NaN
                return worth, bound
        except TypeError:  # of None, a text
            pass
        name, found = ("bound", bound) if isinstance(worth, Real) and worth < inf else ("final", worth)
        of = f"{type(self.score).__name__}.{name} of a hypothesis of value {value:.6g} and length {length}"
        raise BrokenLaw(f"{of} is {found!r:.60}; it must be a number")

    def checked_successors(self, y: Hypothesis, successors: Successors) -> Successors:
        """The successors of `y`, with rounding corrected. Raises BrokenLaw if values rise: bounds rely on it."""
        if not successors.values or successors.values[0] <= 0:
            return successors
        successors = clamp_rounding(successors)
        if successors.values[0] > TOLERANCE * (1 + abs(y.value)):
            logprobs = successors.values if successors.logprobs is None else successors.logprobs
            raise BrokenLaw.above_bound(y, successors.tokens[0], y.value + successors.values[0], logprobs[0])
        return successors

    def make_result(self, answers: list[Answer], partial: Hypothesis, broken: bool = False) -> Result:
        """The result with these answers, or else with the best unfinished hypothesis. `broken`: not claimed to be exact."""
        calls = self.calls
        return Result(
            hypotheses=answers,
            calls=calls,
            rows=self.rows,
            lm_calls=calls if "language_model" in self.score.needs else 0,
            exact=self.strategy.exact and self.policy.guaranteed and not broken,
            status="budget" if self.out_of_budget else "complete" if answers else "incomplete",
            partial=None if answers else Answer.of(self.set_scores(partial)),
        )
