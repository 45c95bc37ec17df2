"""Scorer: what the host engine asks of a model: the best successors of a batch of hypotheses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

from ..models import Source
from ..scoring import Score
from ..search import Hypothesis, Successors
from ..settings import Budget
from .model_record import Ahead
from .user_model import ModelFailure

ON_THE_WAY = frozenset({"language_model", "language_model_past", "attention"})
"""What a score may need to know at every token."""

Process = Callable[[Sequence[Hypothesis], Any], Any]
"""Changes the log-probabilities (rows, vocabulary) that follow a batch of hypotheses, as Hugging Face's processors do."""


class ScoreState(NamedTuple):
    """What a score needs to know of a hypothesis beside the model's own state."""

    language_model: Any = None  # the state of the model that is asked beside it
    reached: Any = None  # (vocabulary,): that one's log-probability of the prefix and each next token
    coverage: Any = 0.0  # (source,): attention so far


def check_same_vocabulary(aux: Any, logprobs: Any) -> None:
    """ValueError where a language model (..., vocabulary) has other tokens than the model that it is beside."""
    if aux.shape[-1] != logprobs.shape[-1]:
        sizes = f"the language model's vocabulary has {aux.shape[-1]} tokens, the model's {logprobs.shape[-1]}"
        raise ValueError(f"{sizes}: they must be the same")


class Scorer(ABC):
    """Scores hypotheses of many searches in one go.

    `hypothesis.state` is the scorer's own: `start` fills it for roots, `expand` for what it scored.
    """

    score: Score
    eos: Collection[int]  # the tokens that end a hypothesis
    process: Process | None = None  # may be set to what changes log-probabilities before the best are chosen
    ahead: Ahead | None = None  # what is known of rows that are scored ahead, where it is kept
    merge: Callable[[Any, tuple[int, ...]], Hashable] | None = None
    """What of an input and tokens decides on how they may go on, where the model says so (`Model.merge_key`)."""

    chains: bool  # whether rows of a step may be each other's ancestors; those come first
    vocabulary: int  # how many tokens there are; 0 while nobody knows
    model_seconds: float  # spent in the model so far: in the encoder, in forward passes, and in finding the best tokens
    shares_context: bool = True  # whether a hypothesis goes on from what was computed of its beginning
    exact: bool = True
    """Whether the model gives what exactness needs, as far as was seen: scores that do not depend on the batch."""

    @abstractmethod
    def budget(self) -> Budget:
        """The budget that suits the model, as far as is known; asked before every step."""

    @abstractmethod
    def cache_tokens(self) -> int:
        """How many tokens are held for the inputs in flight."""

    @abstractmethod
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        """Prepare inputs for decoding: whatever is done once for each of them, in one batch."""

    @abstractmethod
    def expand(self, batch: Sequence[Hypothesis], width: float) -> Sequence[Successors | ModelFailure]:
        """One forward pass: the `width` best successors of each hypothesis, or why the model has none."""

    def release(self, root: Hypothesis) -> None:
        """The search that began at `root` is over: give back what it held."""
        return

    def advice(self, root: Hypothesis, n_max: int, eos: Collection[int] | None) -> str | None:
        """What may be the matter where nothing finished; `eos`: what was asked for to end an output, in place of the model's."""
        return None

    @abstractmethod
    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        """The tokens as text, where that is known."""
