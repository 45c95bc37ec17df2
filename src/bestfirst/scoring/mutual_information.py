"""Mutual information: what the input tells of the output, beyond what a language model knew anyway."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any

from ..search import Context, Finished, Strategy
from .score import Score, nonnegative

if TYPE_CHECKING:
    from ..models import Model


class MutualInformation(Score):
    """log p(y|x) - weight * log max(p(y), epsilon), clipped at every step (Li et al. 2016; the paper's Eq. 15).

    A token can add at most u = weight * log(1/epsilon). Increments are kept less u, so that none is positive, and `final` gives u
    back for every token: a length reward with beta = u, and exact like one.

    With `whole_sequence` the probability of all of y is clipped once, as the paper's equation reads. What a hypothesis can still
    gain then depends on more than its value and length, so best-first search gives no guarantee. With epsilon = 0 nothing is
    clipped and nothing bounded: beam search only (the paper's baseline).
    """

    name = "mutual-information"
    one_way = True

    def __init__(self, language_model: Model, weight: float, epsilon: float, whole_sequence: bool = False) -> None:
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon must be above 0 and at most 1 (or 0, for beam search), got {epsilon}")
        self.language_model = language_model
        self.weight = nonnegative("weight", weight)
        self.epsilon = epsilon
        self.whole_sequence = whole_sequence
        self.needs = frozenset({"language_model", "language_model_past"} if whole_sequence else {"language_model"})
        self._floor = log(epsilon) if epsilon > 0 else 0.0
        self._unit = -weight * self._floor  # u
        self.monotonic = epsilon > 0 and self._unit == 0

    def _clip(self, logprobs: Any) -> Any:
        return logprobs.clip(min=self._floor) if self.epsilon > 0 else logprobs

    def increment(self, logprobs: Any, aux: Any = None, past: Any = None) -> Any:
        before = self._clip(past) if self.whole_sequence else self._floor
        after = self._clip(past + aux) if self.whole_sequence else self._clip(aux)
        return logprobs - self.weight * (after - before)

    def final(self, value: float, length: int, context: Context) -> float:
        return value if self.whole_sequence else value + self._unit * length

    def bound(self, value: float, length: int, context: Context) -> float:
        if self.epsilon == 0:
            return inf
        return value + self._unit * (1 if self.whole_sequence else context.n_max)

    def exact(self, finished: Finished) -> bool:
        return not self.whole_sequence

    def check(self, strategy: Strategy) -> None:
        if self.epsilon == 0 and not strategy.level_by_level:
            raise ValueError("epsilon = 0 leaves mutual information without a bound; use strategy='beam', or an epsilon above 0")
