"""Scorer: what the host engine asks of a model: the best successors of a batch of hypotheses. Here for any `Model`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from ..constraints import allowed_after
from ..models import Model, Query, Scored, Source
from ..scoring import Score
from ..search import Hypothesis, Successors
from ..settings import Budget


class Scorer(Protocol):
    """Scores hypotheses of many searches in one go.

    `hypothesis.state` is the scorer's own: `start` fills it for roots, `expand` for what it scored.
    """

    eos: Collection[int]
    score: Score

    @property
    def shares_context(self) -> bool:
        """Whether a hypothesis goes on from what was computed of its beginning."""
        ...

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

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        """Prepare inputs for decoding: whatever is done once for each of them, in one batch."""
        ...

    def expand(self, batch: Sequence[Hypothesis], width: float) -> Sequence[Successors]:
        """One forward pass: the `width` best successors of each hypothesis."""
        ...

    def release(self, root: Hypothesis) -> None:
        """The search that began at `root` is over: give back what it held."""
        ...

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        """The tokens as text, where that is known."""
        ...


class States(NamedTuple):
    """What belongs to a hypothesis: the model's state, and what a score needs beside it."""

    model: Any
    language_model: Any = None
    reached: Any = None  # (vocabulary,): the language model's log-probability of the prefix and each next token
    coverage: Any = 0.0  # (source,): attention so far


class ModelScorer:
    """Asks a `Model`, one batch at a time, and beside it the language model that a score needs.

    Whatever a model returns (a list, an array, a tensor in half precision) becomes float64 once, before anything is added up.
    """

    shares_context = True

    def __init__(self, model: Model, score: Score) -> None:
        self.model = model
        self.score = score
        self.eos = model.eos
        self.model_seconds = 0.0
        self.language_model = score.language_model
        if self.language_model is None and "language_model" in score.needs:
            raise ValueError(f"score {score.name!r} needs a language model, got None")
        if self.language_model is not None and not set(self.language_model.eos) & set(model.eos):
            raise ValueError(
                f"the language model ends sequences with {sorted(self.language_model.eos)}, the model with {sorted(model.eos)}: "
                "their vocabularies must be the same"
            )

    def budget(self) -> Budget:
        return Budget(rows=16, free=1)

    def cache_tokens(self) -> int:
        return 0

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        for root, source in roots:
            beside = None if self.language_model is None else self.language_model.start(())
            root.state = States(self.model.start(source.payload), beside)

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors]:
        before: list[States] = [y.state if y.parent is None else y.parent.state for y in batch]
        ask = self.model.attend if "attention" in self.score.needs else self.model.score
        begun = perf_counter()
        answers = ask([Query(states.model, y.tokens) for states, y in zip(before, batch, strict=True)])
        self.model_seconds += perf_counter() - begun
        if len(answers) != len(batch):
            raise ValueError(f"the model was asked about {len(batch)} hypotheses and answered about {len(answers)}")
        beside: Sequence[Scored | None] = [None] * len(batch)
        if self.language_model is not None:
            beside = self.language_model.score([Query(s.language_model, y.tokens) for s, y in zip(before, batch, strict=True)])
        if (allowed := allowed_after(batch, self.eos)) is not None:
            answers = [_restricted(*each) for each in zip(answers, allowed, batch, strict=True)]
        return [self._successors(*each, width) for each in zip(batch, before, answers, beside, strict=True)]

    def _successors(self, y: Hypothesis, before: States, answer: Scored, beside: Scored | None, width: float) -> Successors:
        """The successors of `y`, and its state."""
        if self.score.plain and not self.score.needs & ON_THE_WAY:
            y.state = States(answer.state)
            return plain_successors(answer.logprobs, y, width)
        logprobs = numbers(answer.logprobs, _scores_after(y))
        values, reached = self._increments(y, before, logprobs, beside)
        coverage = before.coverage
        if answer.attention is not None:
            coverage = coverage + numbers(answer.attention, f"the attention after {list(y.tokens)}")
        y.state = States(answer.state, None if beside is None else beside.state, reached, coverage)
        ending = float(self.score.ending(coverage)) if "attention" in self.score.needs else 0.0
        tokens = best_tokens(values, width)
        own = None if self.score.plain else logprobs[tokens].tolist()
        return Successors(values[tokens].tolist(), tokens.tolist(), own, ending)

    def _increments(self, y: Hypothesis, before: States, logprobs: Any, beside: Scored | None) -> tuple[Any, Any]:
        """What each token adds to the value; and what the language model has reached, where the score asks for that."""
        import numpy

        aux = reached = None
        past = {}
        if beside is not None:
            aux = numbers(beside.logprobs, f"the language model's scores after {list(y.tokens)}")
            if aux.shape != logprobs.shape:
                raise ValueError(
                    f"the language model's vocabulary has {aux.size} tokens, the model's {logprobs.size}: they must be the same"
                )
        if "language_model_past" in self.score.needs:
            past["past"] = numpy.asarray([0.0 if y.parent is None else before.reached[y.token]])
            reached = past["past"] + aux
        with numpy.errstate(invalid="ignore"):  # -inf less -inf, where a token is impossible anyway
            values = numpy.where(logprobs == -inf, -inf, self.score.increment(logprobs, aux, **past))
        if not (values < inf).all():
            token = int(numpy.argmin(values < inf))
            raise ValueError(
                f"the score of {[*y.tokens, token]} is {values[token]}: check the models' scores there"
                + (", or choose an epsilon above 0" if beside is not None else "")
            )
        return values, reached

    def release(self, root: Hypothesis) -> None:
        return None

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)


SHORT = 512  # a list of so many numbers is sorted sooner than it is made an array
ON_THE_WAY = frozenset({"language_model", "language_model_past", "attention"})
"""What a score may need to know at every token."""


def plain_successors(row: Any, y: Hypothesis, width: float) -> Successors:
    """The best tokens after `y` by their scores; short lists are sorted as they are, without numpy."""
    if not isinstance(row, (list, tuple)) or len(row) > SHORT:
        logprobs = numbers(row, _scores_after(y))
        tokens = best_tokens(logprobs, width)
        return Successors(logprobs[tokens].tolist(), tokens.tolist())
    values = [float(value) for value in row]
    if any(value != value for value in values):
        raise ValueError(f"{_scores_after(y)} contain NaN")
    best = sorted((-value, token) for token, value in enumerate(values) if value != -inf)[: int(min(width, len(values)))]
    return Successors([-value for value, _ in best], [token for _, token in best])


def _scores_after(y: Hypothesis) -> str:
    return f"the model's scores after {list(y.tokens)}"


def _restricted(answer: Scored, allowed: Any, y: Hypothesis) -> Scored:
    """Only what is allowed, by its tokens; None: everything is."""
    import numpy

    if allowed is None:
        return answer
    logprobs = numbers(answer.logprobs, _scores_after(y))
    check_vocabulary(allowed, len(logprobs))
    kept = numpy.full_like(logprobs, -inf)
    kept[allowed] = logprobs[allowed]
    return answer._replace(logprobs=kept)


def check_vocabulary(allowed: Any, size: int) -> None:
    """ValueError for a token that the model does not have."""
    if len(allowed) and allowed[-1] >= size:
        raise ValueError(f"token {allowed[-1]} is allowed, and the model has the tokens 0 to {size - 1}")


def numbers(row: Any, what: str) -> Any:
    """A row of whatever kind as float64, if it has one dimension and no NaN."""
    import numpy

    if hasattr(row, "detach"):  # a tensor, of any dtype and on any device
        row = row.detach().double().cpu().numpy()
    try:
        found = numpy.asarray(row, dtype=numpy.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a row of numbers, got {type(row).__name__}") from None
    if found.ndim != 1:
        raise ValueError(f"{what} must be one row, a number a token, got an array of shape {found.shape}")
    if numpy.isnan(found).any():
        raise ValueError(f"{what} contain NaN")
    return found


def best_tokens(values: Any, width: float) -> Any:
    """The `width` best tokens, best first, of equals the smaller first; those at -inf are left out."""
    import numpy

    n = len(values)
    if width < n:
        least = numpy.partition(values, n - int(width))[n - int(width)]
        chosen = numpy.flatnonzero(values >= least)  # more than asked for, where some are equal
    else:
        chosen = numpy.arange(n)
    order = chosen[numpy.argsort(-values[chosen], kind="stable")]
    order = order[: int(min(width, n))]
    return order[values[order] > -inf]
