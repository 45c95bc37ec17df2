"""Scores by name, as `decode(score=...)` and the command know them."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

from .length import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability
from .mutual_information import MutualInformation
from .score import Score

SCORES: dict[str, type[Score]] = {
    score.name: score for score in (LogProbability, LengthReward, BoundedLengthReward, LengthNormalized, GNMT, MutualInformation)
}


def score_parameters(name: str) -> dict[str, bool]:
    """The parameters of the score of this name, and whether each is required."""
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}; choose from {', '.join(SCORES)}")
    return {p.name: p.default is Parameter.empty for p in signature(SCORES[name]).parameters.values()}


def named_score(score: str | Score, **parameters: Any) -> Score:
    """The score of this name, with its parameters; one that is an object already is returned as it is."""
    if isinstance(score, Score):
        if parameters:
            raise ValueError(f"score {score.name!r} is an object already: give it {', '.join(parameters)} where it is made")
        return score
    if isinstance(score, type) and issubclass(score, Score):
        raise TypeError(f"the score is the class {score.__name__}; make one of it: {score.__name__}(...)")
    if not isinstance(score, str):
        raise TypeError(f"a score is a name or an object of a subclass of bestfirst.scoring.Score, got {type(score).__name__}")
    known = score_parameters(score)
    if unknown := [name for name in parameters if name not in known]:
        raise ValueError(f"score {score!r} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    if missing := [name for name, required in known.items() if required and name not in parameters]:
        raise ValueError(f"score {score!r} needs {' and '.join(missing)}")
    return SCORES[score](**parameters)
