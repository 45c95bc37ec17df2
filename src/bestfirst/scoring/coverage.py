"""Coverage penalty: an output must have attended to all of its input."""

from __future__ import annotations

from typing import Any

from ..search import Strategy
from .arrays import log
from .score import Score, nonnegative
from .wrapped import WrappedScore

LEAST = 1e-10  # stands for no attention at all, so that scores stay finite


class Coverage(WrappedScore):
    """A score plus beta * sum_i log min(sum_j p_ij, 1) (Wu et al. 2016, Eq. 14).

    p_ij is the attention to source token i when token j was chosen. GNMT's own score is `Coverage(beta, GNMT(alpha))`. The
    penalty comes in when a hypothesis finishes; beams rank without it. It is never positive, so the bound of the score inside
    still holds, and best-first search is exact under `leave`.
    """

    name = "coverage"

    def __init__(self, beta: float, score: Score | None = None) -> None:
        super().__init__(score)
        self.beta = nonnegative("beta", beta)
        self.needs |= {"attention"}

    def ending(self, coverage: Any) -> Any:
        return super().ending(coverage) + self.beta * log(coverage.clip(LEAST, 1.0)).sum(-1)

    def check(self, strategy: Strategy) -> None:
        super().check(strategy)
        if strategy.finished == "keep":
            raise ValueError("a coverage penalty comes in when a hypothesis finishes, too late for finished='keep'; use 'leave'")
