"""Scorer: the seam between a search and a model. The scheduler asks a scorer; a faster one can take over from here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf, isnan
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ..search import Hypothesis, Successors
from .model import Model, Query

if TYPE_CHECKING:
    from ..scoring import Score


@dataclass(slots=True)
class Source:
    """One input, read: what the model makes of it, |x|, and how long its output may get by default and at most."""

    payload: Any
    length: int
    max_length: int
    limit: float = inf  # positions the model has


@dataclass(frozen=True)
class Budget:
    """How much a forward pass may hold: at most `rows`. Up to `free` rows cost little more than one: speculation pays."""

    rows: int
    free: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"row_budget must be at least 1, got {self.rows}")


class Scorer(Protocol):
    """Scores hypotheses of many searches in one go.

    `hypothesis.state` is the scorer's own: `start` fills it for roots, `expand` for what it scored.
    """

    eos: Collection[int]

    @property
    def model_seconds(self) -> float:
        """Spent in the model so far."""
        ...

    def budget(self) -> Budget:
        """The budget that suits the model."""
        ...

    def cache_tokens(self) -> int:
        """How many tokens are held for the inputs in flight."""
        ...

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        """What tokenises and measures one input. Raises ValueError, naming the trouble, for one that cannot be decoded."""
        ...

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        """Prepare inputs for decoding: whatever is done once for each of them, in one batch."""
        ...

    def expand(self, batch: Sequence[Hypothesis]) -> Sequence[Successors]:
        """One forward pass: the best successors of each hypothesis."""
        ...

    def release(self, root: Hypothesis) -> None:
        """The search that began at `root` is over: give back what it held."""
        ...

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        """The tokens as text, where that is known."""
        ...


class ModelScorer:
    """Asks a `Model`, one batch at a time."""

    def __init__(self, model: Model, score: Score, width: float) -> None:
        self.model = model
        self.score = score
        self.width = width
        self.eos = model.eos
        self.model_seconds = 0.0

    def budget(self) -> Budget:
        return Budget(rows=16, free=1)

    def cache_tokens(self) -> int:
        return 0

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        if prefix:
            raise ValueError("a forced prefix needs a Hugging Face model; a model of your own can start from any state")
        return lambda raw: Source(raw, self.model.source_length(raw), self.model.max_length(raw))

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        for root, source in roots:
            root.state = self.model.start(source.payload)

    def expand(self, batch: Sequence[Hypothesis]) -> list[Successors]:
        begun = perf_counter()
        answers = self.model.score([Query(y.state if y.parent is None else y.parent.state, y.tokens) for y in batch])
        self.model_seconds += perf_counter() - begun
        out = []
        for y, answer in zip(batch, answers, strict=True):
            y.state = answer.state
            out.append(self._successors(y, answer.logprobs))
        return out

    def _successors(self, y: Hypothesis, values: Sequence[float], logprobs: Sequence[float] | None = None) -> Successors:
        """The best tokens by their increments; `logprobs` are the model's own, where these are others."""
        possible = [token for token, value in enumerate(values) if value != -inf]
        if any(isnan(values[token]) for token in possible):
            raise ValueError(f"the model's scores after {list(y.tokens)} contain NaN")

        def place(token: int) -> tuple[float, int]:
            return (-values[token], token)

        if self.width < len(possible):
            best = heapq.nsmallest(int(self.width), possible, key=place)
        else:
            best = sorted(possible, key=place)
        own = None if logprobs is None else [logprobs[token] for token in best]
        return Successors([values[token] for token in best], best, own)

    def release(self, root: Hypothesis) -> None:
        return None

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)
