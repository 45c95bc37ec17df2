"""Log-probability: the score that the paper starts from."""

from __future__ import annotations

from math import inf
from typing import Any

from ..search import Context
from .arrays import log_softmax
from .score import Score


class LogProbability(Score):
    """The sum of log-probabilities (the paper's Eq. 4): monotonic, for no log-probability is positive.

    A temperature other than 1 divides them before they are normalised again; `Answer.logprob` stays the model's own.
    """

    name = "logprob"
    monotonic = True
    value_only = True

    def __init_subclass__(cls) -> None:
        cls.value_only = cls.final is Score.final and cls.bound is LogProbability.bound

    def __init__(self, temperature: float = 1.0) -> None:
        if not 0 < temperature < inf:
            raise ValueError(f"temperature must be a number above 0, got {temperature}")
        self.temperature = temperature

    @property
    def plain(self) -> bool:
        return self.temperature == 1

    def increment(self, logprobs: Any, aux: Any = None) -> Any:
        return logprobs if self.plain else log_softmax(logprobs / self.temperature)

    def bound(self, value: float, length: int, context: Context) -> float:
        return value
