"""Scores by name, as `decode(score=...)` and the command know them."""

from __future__ import annotations

from .score import LogProbability, Score

SCORES = ("logprob",)


def named_score(score: str | Score) -> Score:
    """The score of this name; one that is an object already is returned as it is."""
    if isinstance(score, Score):
        return score
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}; choose from {', '.join(SCORES)}")
    return LogProbability()
