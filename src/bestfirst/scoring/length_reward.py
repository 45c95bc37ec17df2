"""Additive length reward: every token is worth beta."""

from __future__ import annotations

from ..search import Context
from .score import Score, nonnegative


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
        return value + self.beta * context.n_max
