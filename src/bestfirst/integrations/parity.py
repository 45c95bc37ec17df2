"""Parity: which search returns what Hugging Face's `generate` returns, for its settings.

| num_beams | early_stopping | length_penalty | search |
| --- | --- | --- | --- |
| 1 | | | greedy |
| more | "never" | any | best-first, exact |
| more | False | 0 or less | best-first, exact |
| more | False | above 0 | best-first, with the step at which Hugging Face stops (`HuggingFaceStep`) |
| more | True | any | level by level; a level's rest is left out once it cannot matter (`ShortestFirstPruned`) |

Level by level without leaving anything out, where log-probabilities may rise above 0 or users' criteria end outputs.
"""

from __future__ import annotations

from typing import Any

from ..scoring import LengthNormalized, LogProbability, Score, named_score
from ..search import (
    BestIsWorse,
    HuggingFaceStep,
    LevelStop,
    Patience,
    Search,
    ShortestFirstPruned,
    Stop,
    Strategy,
    beam,
    best_first_beam,
    greedy,
)
from ..strategies import named_strategy, stopping


class NeverAsWritten(LevelStop):
    """Hugging Face's `early_stopping="never"`, for scores that may rise above 0, where it is no bound."""

    name = "hf-never"

    def __init__(self, length: int | None) -> None:
        self.length = length  # the length at which it takes a running hypothesis to be worth most; None: its own

    def at_level(self, search: Search, length: int) -> bool:
        k = int(search.strategy.k)
        if len(search.answers) < k:
            return False
        best = search.score.final(search.best_unfinished(length).value, self.length or length, search.context)
        return best <= search.answers[k - 1][3].worth


def hugging_face_score(config: Any) -> Score:
    """log p / N^length_penalty."""
    penalty = float(config.length_penalty)
    return LogProbability() if penalty == 0 else LengthNormalized(penalty)


def hugging_face_strategy(config: Any, n_max: int, levels: bool) -> Strategy:
    """What returns Hugging Face's answer. `levels`: bounds do not hold, so nothing may be left out."""
    k, early, penalty = config.num_beams, config.early_stopping, config.length_penalty
    if k == 1:
        return greedy().using(stop=Patience(1.0, "first"))
    if early is True:
        plan = beam(k).using(stop=Patience(1.0, "hf-true"))
        return plan if levels else plan.using(order=ShortestFirstPruned())
    if levels:
        stop: Stop = NeverAsWritten(n_max if penalty > 0 else None) if early == "never" else BestIsWorse()
        return beam(k).using(stop=stop)
    return best_first_beam(k) if early == "never" or penalty <= 0 else best_first_beam(k).using(stop=HuggingFaceStep())


def own_strategy(config: Any, strategy: str | Strategy | None, levels: bool) -> Strategy:
    """For a strategy or a score of the user's own: its own stop, but for `early_stopping=True`."""
    if strategy is None:
        strategy = "beam" if levels or config.early_stopping is True else "best-first"
    plan = named_strategy(strategy, beam=config.num_beams)
    if levels and not plan.level_by_level:
        raise ValueError(
            f"strategy {plan.name!r} relies on bounds, which a processor or stopping criterion breaks here; use strategy='beam'"
        )
    if isinstance(strategy, str) and config.early_stopping is True:
        plan = stopping(plan, "hf-true")
    return plan


def own_score(config: Any, score: str | Score | None) -> Score:
    """The score that was asked for, by default Hugging Face's."""
    return hugging_face_score(config) if score is None else named_score(score)
