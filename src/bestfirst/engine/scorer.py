"""Scorer: the interface between the host engine and a model. It computes the best successors of a batch of hypotheses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from math import inf
from typing import Any, NamedTuple

from ..models import Source
from ..scoring import Score
from ..search import BrokenLaw, Hypothesis, Successors
from ..search.score import NEEDS
from ..settings import Budget
from .model_record import SpeculationRates
from .user_model import ModelFailure

NEEDED_PER_TOKEN = NEEDS - {"source_length"}
"""Inputs of a score (`Score.needs`) that are computed for every token."""

Process = Callable[[Sequence[Hypothesis], Any], Any]
"""Modifies the log-probabilities (rows, vocabulary) of a batch of hypotheses, as a Hugging Face logits processor does."""


class ScoreState(NamedTuple):
    """What a score needs to know about a hypothesis besides the model's own state."""

    language_model: Any = None  # the language model's state
    reached: Any = None  # (vocabulary,): the language model's log-probability of the prefix extended by each token
    coverage: Any = 0.0  # (source,): attention summed over the prefix


def check_same_vocabulary(aux: Any, logprobs: Any) -> None:
    """ValueError if the language model's scores `aux` (..., vocabulary) have another vocabulary size than the model's."""
    if aux.shape[-1] != logprobs.shape[-1]:
        sizes = f"the language model's vocabulary has {aux.shape[-1]} tokens, the model's {logprobs.shape[-1]}"
        raise ValueError(f"{sizes}: they must be the same")


def checked_increments(score: Score, logprobs: Any, *aux: Any, unprocessed: Any = None, **past: Any) -> Any:
    """The score's increments; BrokenLaw unless there is one for each of `logprobs`. The score gets a copy, since it may compute
    in place: `logprobs` may be the model's own array, and an answer's log-probability is read from them. What processors forbid
    is left out after the score, if `unprocessed` are the model's own log-probabilities."""
    copied = logprobs.clone() if hasattr(logprobs, "clone") else logprobs.copy()
    if unprocessed is not None:
        forbidden = copied == -inf
        copied[forbidden] = unprocessed[forbidden]
    found = score.increment(copied, *aux, **past)
    if getattr(found, "shape", None) != logprobs.shape:
        what = f"shape {tuple(found.shape)}" if hasattr(found, "shape") else f"{found!r:.40}"
        name = f"{type(score).__name__}.increment"
        raise BrokenLaw(
            f"{name} returned {what} for log-probabilities of shape {tuple(logprobs.shape)}; return one number for each"
        )
    if unprocessed is not None:
        found[forbidden] = -inf
    return found


class Scorer(ABC):
    """Scores hypotheses of many searches in one batch. `Hypothesis.state` is the scorer's: set by `start` and `expand`."""

    score: Score
    eos: Collection[int]  # the tokens that end a hypothesis
    process: Process | None = None  # modifies log-probabilities before top-k
    ahead: SpeculationRates | None = None  # statistics of speculative rows, if kept
    merge: Callable[[Any, tuple[int, ...]], Hashable] | None = None
    """A key of an input and tokens that determines their continuations, if the model has one (`Model.merge_key`)."""

    chains: bool  # whether a step may contain a row and its ancestors; ancestors come first
    vocabulary: int  # its size; 0 while unknown
    model_seconds: float  # spent so far in the encoder, forward passes and top-k
    shares_context: bool = True  # whether a hypothesis reuses the keys and values of its prefix
    exact: bool = True
    """Whether the model's scores are independent of the batch, as exactness requires, as far as checked."""

    @abstractmethod
    def budget(self) -> Budget:
        """The row budget that suits the model, as far as known; called before every step, unless the settings have a budget."""

    @abstractmethod
    def cache_tokens(self) -> int:
        """The number of tokens cached for the inputs in flight."""

    @abstractmethod
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        """Prepares inputs for decoding, in one batch: runs the encoder, prefills prompts."""

    @abstractmethod
    def expand(self, batch: Sequence[Hypothesis], width: float) -> Sequence[Successors | ModelFailure]:
        """One forward pass: the `width` best successors of each hypothesis, or why the model failed on it."""

    def release(self, root: Hypothesis) -> None:
        """Frees what is held for the finished search that began at `root`."""
        return

    def advice(self, root: Hypothesis, n_max: int, eos: Collection[int] | None) -> str | None:
        """A hint for the user if no hypothesis finished; `eos`: the end tokens of the settings, if they replace the model's."""
        return None

    @abstractmethod
    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        """Detokenizes; None if the model has no text."""
