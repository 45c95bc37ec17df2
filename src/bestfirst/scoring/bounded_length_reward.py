"""Bounded length reward: tokens are worth beta up to the length that the input lets one expect."""

from __future__ import annotations

from ..search import Context
from .score import Score, nonnegative


class BoundedLengthReward(Score):
    """log p(y|x) + beta * min(r|x|, N) (Huang et al. 2017; the paper's Eq. 11).

    The paper asks for r|x| < n_max; where that fails, no output reaches r|x| and n_max takes its place.
    """

    name = "bounded-length-reward"
    one_way = True
    needs = frozenset({"source_length"})

    def __init__(self, beta: float, ratio: float) -> None:
        self.beta = nonnegative("beta", beta)
        self.ratio = nonnegative("ratio", ratio)
        self.monotonic = beta == 0

    def final(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * min(self.ratio * context.source_length, length)

    def bound(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * min(self.ratio * context.source_length, context.n_max)
