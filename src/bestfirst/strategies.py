"""Strategies, stopping rules and the paper's methods by name, as `decode` and the command know them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from .search import METHODS, Answered, BestFirst, Finished, Heuristic, Stop, Strategy, by_method, stops, table_1
from .toolkits import BestIsWorse, FirstFinished, HuggingFaceStep, ShortestFirstPruned

__all__ = ["METHODS", "STOPS", "STRATEGIES", "UNPRUNED", "by_method", "named_strategy", "stopping"]

STRATEGIES = ("greedy", "beam", "best-first", "a-star-beam", "breadth-first", "best-first-unpruned", "a-star")
UNPRUNED = ("breadth-first", "best-first-unpruned", "a-star")
STOPS: dict[str, Callable[..., Stop]] = {
    "exhausted": stops.Exhausted,  # beam search without early stopping
    "opennmt": stops.TopFinished,
    "shrinking": lambda: stops.Patience(1.0, "shrinking"),
    "huang": stops.OptimalStop,
    "hf-true": lambda: stops.Patience(1.0, "hf-true"),
    "hf-false": BestIsWorse,
    "hf-never": stops.NeverStop,
    "patience": stops.Patience,  # takes `factor`
    FirstFinished.name: FirstFinished,  # takes `factor`, too
}

WITH_FACTOR = ("patience", FirstFinished.name)


def named_strategy(
    strategy: str | Strategy, *, beam: int = 5, finished: Finished = "leave", heuristic: Heuristic | None = None
) -> Strategy:
    """The strategy of this name; one that is an object already is returned as it is."""
    if isinstance(strategy, Strategy):
        return strategy
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}; choose from {', '.join(STRATEGIES)}")
    if heuristic is not None and strategy not in ("a-star-beam", "a-star"):
        raise ValueError(f"strategy {strategy!r} takes no heuristic; use 'a-star-beam' or 'a-star'")
    makers: dict[str, Callable[[], Strategy]] = {
        "greedy": lambda: table_1.greedy(finished),
        "beam": lambda: table_1.beam(beam, finished),
        "best-first": lambda: table_1.best_first_beam(beam, finished),
        "a-star-beam": lambda: table_1.a_star_beam(beam, heuristic, finished),
        "breadth-first": table_1.breadth_first,
        "best-first-unpruned": table_1.best_first,
        "a-star": lambda: table_1.a_star(heuristic),
    }
    return makers[strategy]()


def stopping(plan: Strategy, stop: str | Stop, **options: Any) -> Strategy:
    """This strategy with another stopping rule, by name or as an object.

    "shrinking" brings its rule for finished hypotheses along. "hf-false", "hf-never", "hf-true" and "patience" work with
    best-first search too, and return what beam search returns with them; at the last two, which count answers, levels are scored
    one after the other, less what cannot matter. All others go level by level.
    """
    if not isinstance(stop, str):
        return plan.using(stop=stop)
    if stop not in STOPS:
        raise ValueError(f"unknown stop {stop!r}; choose from {', '.join(STOPS)}")
    if unknown := sorted(set(options) - ({"factor"} if stop in WITH_FACTOR else set())):
        raise ValueError(f"stop {stop!r} has no option {unknown[0]!r}; only {' and '.join(WITH_FACTOR)} have one, factor")
    if stop.startswith("hf-") and plan.finished != "leave":
        raise ValueError(f"stop={stop!r} is for finished='leave', Hugging Face's rule, not {plan.finished!r}")
    if isinstance(plan.order, BestFirst) and plan.k < inf:
        if stop in ("hf-false", "hf-never"):
            return plan.using(stop=HuggingFaceStep() if stop == "hf-false" else Answered())
        if stop in ("hf-true", "patience") and plan.finished == "leave":
            return plan.using(stop=STOPS[stop](**options), order=ShortestFirstPruned())
    return plan.using(stop=STOPS[stop](**options), finished="shrink" if stop == "shrinking" else plan.finished)
