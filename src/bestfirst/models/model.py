"""Model: who gives next-token scores. Bring your own by writing two methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple


@dataclass(slots=True)
class Source:
    """One input, read: what the model makes of it, |x|, and how long its output may get by default and at most."""

    payload: Any
    length: int
    max_length: int
    limit: float = inf  # positions the model has


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
    hugging_face = False  # whether it is a `TransformersModel`, which engines run in ways of their own
    on_gpu = False

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

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        """What tokenises and measures one input. Raises ValueError, naming the input, for one that cannot be decoded."""
        if prefix:
            raise ValueError("a forced prefix needs a Hugging Face model; a model of your own can start from any state")
        return lambda raw: Source(raw, self.source_length(raw), self.max_length(raw))

    def target(self, text: str) -> tuple[int, ...]:
        """The tokens of an output that somebody wrote, without EOS."""
        raise ValueError(f"{type(self).__name__} reads no outputs; give token ids instead of text")

    def targets(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """As `target`, for many at once."""
        return [self.target(text) for text in texts]


class FunctionModel(Model):
    """A model that is one function: `next_logprobs(prefix)` gets the generated tokens (no BOS), and scores every next token.

    toy = FunctionModel(lambda prefix: [-1.0, -0.5, -2.0], eos=0)
    bestfirst.decode(toy, [None], beam=2)
    """

    def __init__(self, next_logprobs: Callable[[tuple[int, ...]], Sequence[float]], eos: int | Collection[int]) -> None:
        self.next_logprobs = next_logprobs
        self.eos = frozenset([eos] if isinstance(eos, int) else eos)

    def start(self, source: Any) -> None:
        return None

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        return [Scored(self.next_logprobs(query.prefix)) for query in batch]
