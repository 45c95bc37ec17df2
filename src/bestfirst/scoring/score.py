"""Score: what a hypothesis is worth. Written here, log-probability; `length`, `mutual_information` and others beside it."""

from __future__ import annotations

from typing import Any, ClassVar

from ..search import Context


class Score:
    """What a hypothesis is worth, and what it can still become.

    A hypothesis' `value` is the sum of its tokens' increments; its score is `final(value, length)`. Write a subclass with what
    differs. The laws (`bestfirst.testing.check_score`): increments are never positive; `final` never falls when the value rises; no
    `final` at a greater length exceeds `bound`. Under them best-first search is exact.
    """

    name: ClassVar[str] = "score"
    monotonic: ClassVar[bool] = False  # whether `final` never rises as tokens are added

    def increment(self, logprobs: Any, aux: Any = None) -> Any:
        """What each next token adds to the value; `logprobs` (..., vocabulary) is a numpy array or a tensor."""
        return logprobs

    def final(self, value: float, length: int, context: Context) -> float:
        """The score of a hypothesis of this length."""
        return value

    def bound(self, value: float, length: int, context: Context) -> float:
        """The best `final` of any continuation. This one holds for every score, by asking for each length."""
        return max(self.final(value, longer, context) for longer in range(length + 1, context.n_max + 1))


class LogProbability(Score):
    """The sum of log-probabilities (the paper's Eq. 4): monotonic, for no log-probability is positive."""

    name = "logprob"
    monotonic = True

    def bound(self, value: float, length: int, context: Context) -> float:
        return value
