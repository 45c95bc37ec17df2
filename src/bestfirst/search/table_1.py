"""Table 1 of the paper as constructors. A `Strategy` is the four choice points of Algorithm 2 and a rule for finished hypotheses.

At the end, ways to search best-first with a score that is not monotonic: exactly (ours), or by the paper's two methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Literal, get_args

from .hypothesis import Context, Hypothesis, Key
from .stops import Answered, Exhausted, NeverStop, Stop, Unreachable

if TYPE_CHECKING:
    from .score import Score

Finished = Literal["keep", "leave", "shrink"]
"""The rule for finished hypotheses. keep: a finished hypothesis holds a slot at every later length while it is good enough (Alg.
1). leave: it moves to a pool of answers and the beam refills (today's toolkits). shrink: it moves to a list and every later beam
is one narrower (Bahdanau et al. 2014; our reading); only level by level."""
Heuristic = Callable[[Hypothesis, Context], float]
"""h(x, y): an estimate of what the rest of y will add to its score. Two optional attributes are claims: `admissible = True`, that
it never underestimates; `by_value = True`, that children still rank in order of value with it, so that the best k are enough."""


# -- choice point 1: the comparator ----------------------------------------------------------------------------------------


class Order(ABC):
    """The comparator: which hypothesis comes first on the agenda, and which may be scored ahead of its turn."""

    name = "order"
    depends_on_past = False  # whether scoring ahead of turn would change the result
    relies_on_bound = False  # whether it needs bounds that no continuation exceeds; then hopeless hypotheses are not scored

    @abstractmethod
    def key(self, y: Hypothesis, h: float) -> Key:
        """The sort key of `y` on the agenda, smallest first. `h` is the value of the heuristic for `y`."""

    def cursor(self, length: int, value: float, reach: float) -> tuple[float, float]:
        """The first two parts of the key of a child that is not created yet, no later than its own. `value` is its sum of
        increments, `reach` the best score that it or a continuation can have."""
        return (-reach, length)

    def together(self, first: Hypothesis, y: Hypothesis) -> bool:
        """Whether `y` may be scored in the same step as `first`, the hypothesis whose turn it is."""
        return True


class BestFirst(Order):
    """The best bound first; ties: the shorter, then the smaller tokens (Table 1, columns 2 and 3).

    If no continuation exceeds its prefix's bound, the beams do not depend on the order of scoring, so anything may be scored
    ahead; scoring in this order wastes nothing (`docs/algorithm.md`).
    """

    name = "best-first"
    relies_on_bound = True

    def key(self, y: Hypothesis, h: float) -> Key:
        return (-y.bound, y.length, y.tokens)


class BestScore(Order):
    """The best score plus heuristic first: the paper's order by s_h, even where s_h is no bound."""

    name = "best-score"
    depends_on_past = True

    def key(self, y: Hypothesis, h: float) -> Key:
        return (-(y.worth + h), y.length, y.tokens)


class ShortestFirst(Order):
    """The shorter first; ties: the better (Table 1, column 1). Beam search level by level, a whole level at a time."""

    name = "shortest-first"

    def key(self, y: Hypothesis, h: float) -> Key:
        cost, *_ = y.rank
        return (y.length, cost, y.tokens)

    def cursor(self, length: int, value: float, reach: float) -> tuple[float, float]:
        return (length, -value)

    def together(self, first: Hypothesis, y: Hypothesis) -> bool:
        return first.length == y.length


# -- a strategy ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strategy:
    """The four choice points of Algorithm 2, the rule for finished hypotheses, and the capacity of the queue."""

    name: str
    order: Order  # choice point (1), the comparator
    stop: Stop  # (2)
    k: float  # (3), infinite for unpruned search
    heuristic: Heuristic | None = None  # (4)
    finished: Finished = "leave"
    queue_capacity: int | None = None  # memory-reduced search: at most this many hypotheses wait

    def __post_init__(self) -> None:
        if self.k != inf:
            check_count("beam", self.k, "; use strategy='best-first-unpruned' for no limit")
        if self.finished not in get_args(Finished):
            raise ValueError(f"finished must be 'keep' or 'leave', got {self.finished!r}")
        if self.queue_capacity is not None:
            check_count("queue_capacity", self.queue_capacity, "; leave it out for no limit")
        if not self.level_by_level and (getattr(self.stop, "level_by_level", False) or self.finished == "shrink"):
            rule = "finished='shrink'" if self.finished == "shrink" else f"stop={self.stop.name!r}"
            raise ValueError(f"{rule} goes level by level, strategy {self.name!r} does not; use strategy='beam'")
        if self.level_by_level and getattr(self.stop, "best_first", False):
            rule = f"stop={type(self.stop).__name__}() is a rule of best-first search"
            raise ValueError(f"{rule}, strategy {self.name!r} goes level by level; use strategy='best-first', or stop='huang'")

    @property
    def level_by_level(self) -> bool:
        """Whether all hypotheses of a length are scored before any longer one."""
        return isinstance(self.order, ShortestFirst)

    @property
    def exact(self) -> bool:
        """Whether the result is that of beam search with this k (unpruned: the best of all), if the score's laws hold. A
        search withdraws this if a full queue had to evict, `max_calls` cut it off, or too few successors were requested."""
        if self.heuristic is None:
            return self.stop.exact and not self.order.depends_on_past
        return self.k == inf and bool(getattr(self.heuristic, "admissible", False))

    @property
    def any_order(self) -> bool:
        """Whether the result is independent of what is scored ahead of its turn."""
        past = self.order.depends_on_past or bool(getattr(self.stop, "depends_on_past", True))
        return not past and self.heuristic is None and self.queue_capacity is None

    def using(self, **changes: object) -> Strategy:
        return replace(self, **changes)  # type: ignore[arg-type]


def check_count(name: str, count: float, way_out: str = "") -> None:
    """Raise ValueError unless `count` is a whole number of at least 1."""
    if not isinstance(count, Real) or (count >= 1 and count % 1 != 0):
        raise ValueError(f"{name} must be a whole number, got {count!r}{way_out}")
    if not count >= 1:
        raise ValueError(f"{name} must be at least 1, got {count}{way_out}")


# -- the columns of the table ----------------------------------------------------------------------------------------------


def greedy(finished: Finished = "leave") -> Strategy:
    """Keep only the best extension at each step: beam search with k = 1."""
    return beam(1, finished).using(name="greedy")


def beam(k: float, finished: Finished = "leave") -> Strategy:
    """Standard beam search (Alg. 1; Table 1, column 1).

    Under `keep` it runs until every hypothesis on the beam is finished (the paper's stop). Under `leave` that would run to n_max,
    so it stops when no unfinished hypothesis can beat the k-th finished one (Hugging Face's `early_stopping="never"`).
    """
    return Strategy("beam", ShortestFirst(), Exhausted() if finished == "keep" else NeverStop(), k, finished=finished)


def best_first_beam(k: float, finished: Finished = "leave", queue_capacity: int | None = None) -> Strategy:
    """Expand the highest-scoring hypothesis first (Alg. 2; Table 1, column 2).

    Returns beam search's result (Theorem 4.5) for a monotonic score, and for any score whose bound obeys the laws of
    `bestfirst.testing`. Once a `queue_capacity` has forced an eviction, this is the paper's memory-reduced search: no guarantee.
    """
    return Strategy("best-first", BestFirst(), Answered(), k, finished=finished, queue_capacity=queue_capacity)


def a_star_beam(k: float, heuristic: Heuristic | None, finished: Finished = "leave") -> Strategy:
    """Best-first with a heuristic added to the score (Table 1, column 3).

    No guarantee: a heuristic may push beam search's result off the beam (the paper's "Note on Heuristics").
    """
    order = BestFirst() if heuristic is None else BestScore()
    return Strategy("a-star-beam", order, Answered(), k, heuristic, finished)


def breadth_first() -> Strategy:
    """All hypotheses of a length before any longer one, nothing pruned: exhaustive (Table 1, second row)."""
    return Strategy("breadth-first", ShortestFirst(), Exhausted(), inf)


def best_first() -> Strategy:
    """The best hypothesis first, nothing pruned (Dijkstra): finds the best of all (Table 1, second row)."""
    return Strategy("best-first-unpruned", BestFirst(), Answered(), inf)


def a_star(heuristic: Heuristic | None) -> Strategy:
    """A* search, nothing pruned: finds the best of all if the heuristic is admissible (Table 1, second row)."""
    return a_star_beam(inf, heuristic).using(name="a-star")


# -- scores that are not monotonic -----------------------------------------------------------------------------------------

METHODS = ("exact", "stopping", "heuristic")


def by_method(plan: Strategy, method: str, score: Score) -> Strategy:
    """This best-first strategy, with one of `METHODS` for a score that is not monotonic.

    "stopping" is the paper's section 4.1 (Eq. 6): best score first, until the bound U of no open hypothesis reaches the n-th
    answer. "heuristic" is section 5: U is added to the score of every unfinished hypothesis. Neither is exact, and results say
    so. For a monotonic score U is 0, and all three methods are Algorithm 2.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    if method == "exact":
        return plan
    if not isinstance(plan.order, BestFirst):
        raise ValueError(f"method={method!r} is a way to search best-first, strategy {plan.name!r} is another; use 'best-first'")
    if not isinstance(plan.stop, Answered):
        raise ValueError(f"method={method!r} has a stopping rule of its own; leave stop={plan.stop.name!r} out")
    if score.monotonic:
        return plan
    if method == "stopping":
        return plan.using(order=BestScore(), stop=Unreachable())
    return plan.using(order=BestScore(), heuristic=paper_heuristic)


def paper_heuristic(y: Hypothesis, context: Context) -> float:
    """h = U, how much the score of `y` can still rise (the paper's Eq. 9 and 13); 0 at n_max, where nothing can follow."""
    return y.bound - y.worth if y.length < context.n_max else 0.0


paper_heuristic.by_value = True  # type: ignore[attr-defined]


def check_settings(strategy: Strategy, score: Score, context: Context, n: int, max_calls: int | None = None) -> None:
    """Raise ValueError, naming the way out, for settings that no search can run with."""
    check_count("nbest", n)
    check_count("max_length", context.n_max)
    if max_calls is not None:
        check_count("max_calls", max_calls, "; leave it out for no limit")
    if strategy.finished == "keep" and n > strategy.k:
        raise ValueError(f"nbest ({n}) must not exceed beam ({strategy.k}): beam search returns no more than its beam")
    score.check(strategy)
