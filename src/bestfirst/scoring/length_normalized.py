"""Length normalisation: division by a power of the length."""

from __future__ import annotations

from math import isfinite

from ..search import Context
from .score import Score


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
