"""How to search best-first with a score that is not monotonic: exactly (ours), or by one of the paper's two methods."""

from __future__ import annotations

from .hypothesis import Context, Hypothesis
from .objective import Objective
from .stop import Answered, Unreachable
from .strategy import BestFirst, BestScore, Strategy

METHODS = ("exact", "stopping", "heuristic")


def by_method(plan: Strategy, method: str, score: Objective) -> Strategy:
    """This best-first strategy, with this method for a score that is not monotonic.

    "stopping" is the paper's section 4.1: best score first, until no open hypothesis can reach the n-th answer by its bound U.
    "heuristic" is section 5: U is added to the score of whatever is not finished. Neither is exact, and their results say so. For
    a monotonic score U is 0, and all three are Algorithm 2.
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
    """h = U, how much the score of `y` can still rise (the paper's Eq. 13 and 16): 0 where nothing can follow."""
    return y.bound - y.worth if y.length < context.n_max else 0.0
