"""Log-probability, the score that the paper starts from, and the scores that correct it for the length of an output."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from ..search import Context
from .score import Score, log_softmax, nonnegative


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


class LengthNormalized(Score):
    """log p(y|x) / N^alpha (Hugging Face's `length_penalty`, fairseq's `lenpen`): monotonic for alpha <= 0.

    A value below 0 gets better with every token of the same value if alpha > 0, worse if alpha < 0: the best continuation is the
    longest or the shortest.
    """

    name = "length-normalized"
    one_way = True

    def __init__(self, alpha: float) -> None:
        if not isfinite(alpha):
            raise ValueError(f"alpha must be a number, got {alpha}")
        self.alpha = alpha
        self.monotonic = alpha <= 0

    def norm(self, length: int) -> float:
        """What the value is divided by; the empty hypothesis, worth 0 whatever it is, counts as one token."""
        return float(max(length, 1) ** self.alpha)

    def final(self, value: float, length: int, context: Context) -> float:
        return value / self.norm(length)

    def bound(self, value: float, length: int, context: Context) -> float:
        return value / self.norm(length + 1 if self.monotonic else context.n_max)


class GNMT(LengthNormalized):
    """log p(y|x) / ((5 + N) / 6)^alpha (Wu et al. 2016, Eq. 14): grows more gently with the length than N^alpha."""

    name = "gnmt"

    def norm(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


class LengthReward(Score):
    """log p(y|x) + beta * N (He et al. 2016; the paper's Eq. 12). The best that can happen is n_max tokens at no cost."""

    name = "length-reward"
    one_way = True

    def __init__(self, beta: float) -> None:
        self.beta = nonnegative("beta", beta)
        self.monotonic = beta == 0

    def final(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * length

    def bound(self, value: float, length: int, context: Context) -> float:
        return self.final(value, context.n_max, context)


class BoundedLengthReward(LengthReward):
    """log p(y|x) + beta * min(r|x|, N) (Huang et al. 2017; the paper's Eq. 11): only up to the length that one may expect.

    The paper asks for r|x| < n_max; where that fails, no output reaches r|x| and n_max takes its place.
    """

    name = "bounded-length-reward"
    needs = frozenset({"source_length"})

    def __init__(self, beta: float, ratio: float) -> None:
        super().__init__(beta)
        self.ratio = nonnegative("ratio", ratio)

    def final(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * min(self.ratio * context.source_length, length)


def by_length_penalty(alpha: float) -> Score:
    """log p / N^alpha, as `length_penalty` means it everywhere; 0 is the plain log-probability, whose search is the cheapest."""
    return LogProbability() if alpha == 0 else LengthNormalized(alpha)
