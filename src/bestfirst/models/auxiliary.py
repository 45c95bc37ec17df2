"""AuxiliaryScorer: asks a model, and beside it what the score needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..search import Hypothesis, Successors
from .model import Model, Query, Scored
from .scorer import ModelScorer, Source

if TYPE_CHECKING:
    from ..scoring import Score


class States(NamedTuple):
    """A hypothesis' state where a score needs more than the model."""

    model: Any
    language_model: Any
    reached: Any = None  # (vocabulary,): the language model's log-probability of the prefix and each next token
    coverage: Any = 0.0  # (source,): attention so far


class AuxiliaryScorer(ModelScorer):
    """For a score whose increments are not log-probabilities, or that needs a language model or attention. Uses numpy."""

    def __init__(self, model: Model, score: Score, width: float) -> None:
        super().__init__(model, score, width)
        self.language_model = score.language_model
        if self.language_model is None and "language_model" in score.needs:
            raise ValueError(f"score {score.name!r} needs a language model, got None")
        if self.language_model is not None and not set(self.language_model.eos) & set(model.eos):
            raise ValueError(
                f"the language model ends sequences with {sorted(self.language_model.eos)}, the model with {sorted(model.eos)}: "
                "their vocabularies must be the same"
            )

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        for root, source in roots:
            lm = None if self.language_model is None else self.language_model.start(())
            root.state = States(self.model.start(source.payload), lm)

    def expand(self, batch: Sequence[Hypothesis]) -> list[Successors]:
        before: list[States] = [y.state if y.parent is None else y.parent.state for y in batch]
        ask = self.model.attend if "attention" in self.score.needs else self.model.score
        answers = ask([Query(states.model, y.tokens) for states, y in zip(before, batch, strict=True)])
        beside: Sequence[Scored | None] = [None] * len(batch)
        if self.language_model is not None:
            beside = self.language_model.score([Query(s.language_model, y.tokens) for s, y in zip(before, batch, strict=True)])
        return [self._one(*each) for each in zip(batch, before, answers, beside, strict=True)]

    def _one(self, y: Hypothesis, before: States, answer: Scored, beside: Scored | None) -> Successors:
        """The successors of `y`, and its state."""
        import numpy

        logprobs = numpy.asarray(answer.logprobs, dtype=numpy.float64)
        aux = reached = None
        past = {}
        if beside is not None:
            aux = numpy.asarray(beside.logprobs, dtype=numpy.float64)
            if aux.shape != logprobs.shape:
                raise ValueError(
                    f"the language model's vocabulary has {aux.size} tokens, the model's {logprobs.size}: they must be the same"
                )
        if "language_model_past" in self.score.needs:
            past["past"] = numpy.asarray([0.0 if y.parent is None else before.reached[y.token]])
            reached = past["past"] + aux
        with numpy.errstate(invalid="ignore"):  # -inf less -inf, where a token is impossible anyway
            values = numpy.where(logprobs == -numpy.inf, -numpy.inf, self.score.increment(logprobs, aux, **past))
        if not (values < numpy.inf).all():
            token = int(numpy.argmin(values < numpy.inf))
            raise ValueError(
                f"the score of {[*y.tokens, token]} is {values[token]}: check the models' scores there"
                + (", or choose an epsilon above 0" if beside is not None else "")
            )
        coverage = 0.0 if answer.attention is None else before.coverage + numpy.asarray(answer.attention, dtype=numpy.float64)
        y.state = States(answer.state, None if beside is None else beside.state, reached, coverage)
        successors = self._successors(y, values.tolist(), None if self.score.plain else logprobs.tolist())
        return successors._replace(ending=float(self.score.ending(coverage))) if "attention" in self.score.needs else successors
