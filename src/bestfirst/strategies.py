"""Strategies by name, as `decode(strategy=...)` and the command know them."""

from __future__ import annotations

from .search import (
    Finished,
    Heuristic,
    Strategy,
    a_star,
    a_star_beam,
    beam,
    best_first,
    best_first_beam,
    breadth_first,
    greedy,
)

STRATEGIES = ("greedy", "beam", "best-first", "a-star-beam", "breadth-first", "best-first-unpruned", "a-star")
UNPRUNED = ("breadth-first", "best-first-unpruned", "a-star")


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
    return {
        "greedy": lambda: greedy(finished),
        "beam": lambda: beam_(beam, finished),
        "best-first": lambda: best_first_beam(beam, finished),
        "a-star-beam": lambda: a_star_beam(beam, heuristic, finished),
        "breadth-first": breadth_first,
        "best-first-unpruned": best_first,
        "a-star": lambda: a_star(heuristic),
    }[strategy]()


beam_ = beam
