"""Model: who gives next-token scores. Bring your own by writing two methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..scoring import Score
    from .scorer import Scorer


class Query(NamedTuple):
    """A hypothesis to score: `prefix` is all its tokens (no BOS), `state` what scoring the prefix without its last token returned
    (for the empty prefix: what `start` returned)."""

    state: Any
    prefix: tuple[int, ...]


class Scored(NamedTuple):
    """The answer to a query: one score for every token that may come next (-inf: may not), and the state to go on from.

    `attention`, given only by `attend`, is the weight of each source token in choosing the next one.
    """

    logprobs: Sequence[float]
    state: Any = None
    attention: Sequence[float] | None = None


class Model(ABC):
    """A sequential predictor: a start state for an input, and scores of the next token for a batch of hypotheses.

    `bestfirst.testing.check_model` runs the laws that the search relies on. Scores need not be probabilities.
    """

    eos: Collection[int]  # tokens that finish a hypothesis

    @abstractmethod
    def start(self, source: Any) -> Any:
        """The state before the first token."""

    @abstractmethod
    def score(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """Score the next token of each hypothesis. Must not depend on what else is in the batch."""

    def attend(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """As `score`, with the attention to the source. Asked only for a score that needs it (a coverage penalty)."""
        raise ValueError(f"{type(self).__name__} gives no attention, which a coverage penalty needs; write its `attend`")

    def source_length(self, source: Any) -> int:
        """|x|, without EOS; 0 where there is no input."""
        return len(source) if hasattr(source, "__len__") else 0

    def max_length(self, source: Any) -> int:
        """The default limit on generated tokens, EOS included."""
        return 2 * self.source_length(source) + 10

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        """The tokens as text, where the model knows how."""
        return None

    def piece(self, token: int) -> str | None:
        """The text of one token, with a space in front where it begins a word; None where the model has no names for tokens."""
        return None

    def pilot(self, task: Any) -> Any:
        """Who runs a whole decode in the model's own place (a GPU), where that can be done; None: the scheduler does."""
        return None

    def target(self, text: str) -> tuple[int, ...]:
        """The tokens of an output that somebody wrote, without EOS."""
        raise ValueError(f"{type(self).__name__} reads no outputs; give token ids instead of text")

    def scorer(self, score: Score, width: float) -> Scorer:
        """Who asks this model on behalf of a search: `width` is the most successors of a hypothesis that can matter."""
        from .auxiliary import AuxiliaryScorer
        from .scorer import ModelScorer

        beside = score.needs & {"language_model", "attention"}
        return ModelScorer(self, score, width) if score.plain and not beside else AuxiliaryScorer(self, score, width)
