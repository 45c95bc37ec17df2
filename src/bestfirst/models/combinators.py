"""Models made of models: ensembles, and a translator fused with a language model. Both are `Model`s like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from ..search import BrokenLaw
from .model import Model, Query, Scored


class Combined(Model):
    """Models that are asked together, and have the same vocabulary. Lengths and text are the first one's."""

    def __init__(self, models: Sequence[Model]) -> None:
        for model in models[1:]:
            if set(model.eos) != set(models[0].eos):
                ends = f"{sorted(models[0].eos)} and {sorted(model.eos)}"
                raise ValueError(f"models to be combined must have the same vocabulary, these end sequences with {ends}")
        self.models = models
        self.eos = models[0].eos

    def answers(self, batch: Sequence[Query]) -> Iterator[tuple[list[Any], list[Any]]]:
        """Of each query, every model's log-probabilities as an array, and the state to go on from: the list of theirs."""
        import numpy

        each = [model.score([Query(q.state[i], q.prefix) for q in batch]) for i, model in enumerate(self.models)]
        for row in zip(*each, strict=True):
            arrays = [numpy.asarray(answer.logprobs, dtype=numpy.float64) for answer in row]
            if len({array.size for array in arrays}) > 1:
                sizes = ", ".join(str(array.size) for array in arrays)
                raise BrokenLaw(f"models to be combined must have the same vocabulary, these have {sizes} tokens")
            yield arrays, [answer.state for answer in row]

    def source_length(self, source: Any) -> int:
        return self.models[0].source_length(source)

    def max_length(self, source: Any) -> int:
        return self.models[0].max_length(source)

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        return self.models[0].text(source, tokens)


class Ensemble(Combined):
    """The weighted mean of several models' probabilities: log sum_i w_i p_i(y_t | y_<t, x), weights normalised to sum 1.

    All models read the same input.
    """

    def __init__(self, models: Sequence[Model], weights: Sequence[float] | None = None) -> None:
        weights = [1.0] * len(models) if weights is None else list(weights)
        if not models:
            raise ValueError("an ensemble needs at least one model")
        if len(weights) != len(models):
            raise ValueError(f"{len(models)} models need as many weights, got {len(weights)}")
        if not all(isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"the weights of an ensemble must be numbers above 0, got {weights}")
        super().__init__(models)
        self.weights = [weight / sum(weights) for weight in weights]

    def start(self, source: Any) -> Any:
        return [model.start(source) for model in self.models]

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        import numpy

        shares = numpy.log(self.weights)
        out = []
        for logprobs, states in self.answers(batch):
            mean = numpy.logaddexp.reduce([share + each for share, each in zip(shares, logprobs, strict=True)])
            mean[abs(mean) < 1e-12] = 0.0  # rounding must not make p = 1 more than it is
            out.append(Scored(mean.tolist(), states))
        return out


class ShallowFusion(Combined):
    """log p(y|x) + weight * log p(y): a model with a language model added at every step (Gulcehre et al. 2015).

    Not a distribution, but never rising, so search is exact as it is. A language model that is to be taken off instead is
    `bestfirst.scoring.MutualInformation`.
    """

    def __init__(self, model: Model, language_model: Model, weight: float) -> None:
        if not (isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be a number of at least 0, got {weight}; MutualInformation takes a language model off")
        super().__init__([model, language_model])
        self.weight = weight

    def start(self, source: Any) -> Any:
        return [self.models[0].start(source), self.models[1].start(())]

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        out = []
        for (logprobs, beside), states in self.answers(batch):
            fused = logprobs + self.weight * beside if self.weight > 0 else logprobs
            out.append(Scored(fused.tolist(), states))
        return out
