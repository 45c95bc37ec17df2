"""Parity: the search that returns the same as Hugging Face's `generate`, by its settings.

| num_beams | early_stopping | length_penalty | search |
| --- | --- | --- | --- |
| 1 | | | greedy |
| more | "never" | any | best-first, exact |
| more | False | 0 or less | best-first, exact |
| more | False | above 0 | best-first, with the step at which Hugging Face stops (`HuggingFaceStep`) |
| more | True | any | level by level; the rest of a level is skipped once it cannot matter (`ShortestFirstPruned`) |

Where bounds may not hold, the search goes level by level and skips nothing: with a processor that is unknown or can raise
log-probabilities above 0, and with the user's own stopping criteria.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from ..scoring import Score, by_length_penalty, named_score
from ..search import Patience, Strategy, beam, best_first_beam, greedy
from ..strategies import BestIsWorse, HuggingFaceStep, NeverAsWritten, ShortestFirstPruned, named_strategy, stopping


def hugging_face_strategy(config: Any, n_max: int, bounded: bool) -> Strategy:
    """The search with Hugging Face's answer. `bounded`: no log-probability is above 0, so bounds hold."""
    k, early = config.num_beams, config.early_stopping
    if k == 1:
        return greedy().using(stop=Patience(1.0, "first"))
    if early is True:
        plan = beam(k).using(stop=Patience(1.0, "hf-true"))
        return plan.using(order=ShortestFirstPruned()) if bounded else plan
    if not bounded:
        furthest = n_max if config.length_penalty > 0 else None
        return beam(k).using(stop=NeverAsWritten(furthest) if early == "never" else BestIsWorse())  # exactly Hugging Face's code
    exact = early == "never" or config.length_penalty <= 0
    return best_first_beam(k) if exact else best_first_beam(k).using(stop=HuggingFaceStep())


def own_strategy(config: Any, score: str | Score | None, strategy: str | Strategy | None, bounded: bool) -> Strategy:
    """The search for the user's own `strategy` or `score`.

    Best-first search and beam search stop as `early_stopping` says; with the user's own score, False and "never" are both exact.
    Any other strategy has its own stop. ValueError for one that prunes nothing, or needs bounds where they do not hold.
    """
    if strategy is None:
        strategy = "best-first" if bounded and config.early_stopping is not True else "beam"
    # a Strategy object keeps its own beam size; `num_beams` may be just the config's default
    plan = strategy if isinstance(strategy, Strategy) else named_strategy(strategy, beam=config.num_beams)
    if plan.k == inf:
        raise ValueError(f"strategy {plan.name!r} prunes nothing and may not end; use bestfirst.decode(..., max_calls=...)")
    if not bounded and not plan.level_by_level:
        raise ValueError(
            f"strategy {plan.name!r} relies on bounds, which a processor or stopping criterion breaks here; use strategy='beam'"
        )
    if strategy not in ("best-first", "beam"):
        return plan
    if config.early_stopping is True:
        return stopping(plan, "hf-true")
    return plan if score is not None or config.early_stopping == "never" else stopping(plan, "hf-false")


def own_score(length_penalty: float, score: str | Score | None, options: Mapping[str, Any]) -> Score:
    """The user's score, by default Hugging Face's `length_penalty`. ValueError for options without a score."""
    if score is None and options:
        raise ValueError(f"{', '.join(options)} goes with a score; name one with score")
    return by_length_penalty(float(length_penalty)) if score is None else named_score(score, **options)
