"""Models made of models: ensembles, and a translator fused with a language model. Both are `Model`s like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite, log
from typing import Any

from ..search import BrokenLaw
from .adapted import as_model
from .model import Model, Query, Scored, Source


class Combined(Model):
    """Models that are asked together, and have the same vocabulary. Lengths and text are the first one's."""

    def __init__(self, models: Sequence[Model]) -> None:
        models = [as_model(model) for model in models]
        for model in models[1:]:
            if set(model.eos) != set(models[0].eos):
                ends = f"{sorted(models[0].eos)} and {sorted(model.eos)}"
                raise ValueError(f"models to be combined must have the same vocabulary, these end sequences with {ends}")
        self.models = models
        self.eos = models[0].eos

    def answers(self, batch: Sequence[Query]) -> tuple[list[Any], list[list[Any]]]:
        """Every model's log-probabilities, (hypotheses, vocabulary), and the states to go on from: of each, all theirs."""
        import numpy

        each = [model.score([Query(q.state[i], q.prefix) for q in batch]) for i, model in enumerate(self.models)]
        sizes = [{len(answer.logprobs) for answer in answers} for answers in each]
        if len(set().union(*sizes)) > 1:
            shown = ", ".join(str(max(size)) for size in sizes)
            raise BrokenLaw(f"models to be combined must have the same vocabulary, these have {shown} tokens")
        arrays = [numpy.stack([_array(answer.logprobs) for answer in answers]) for answers in each]
        return arrays, [[answer.state for answer in row] for row in zip(*each, strict=True)]

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        read = self.models[0].reader(prefix)
        return lambda raw: replace(read(raw), payload=raw)

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

        arrays, states = self.answers(batch)
        mean: Any = None
        for share, each in zip(self.weights, arrays, strict=True):
            each += log(share)
            mean = each if mean is None else _log_of_sum(mean, each)
        rows = numpy.minimum(mean, 0)  # rounding must not make p = 1 more than it is
        return [Scored(row, state) for row, state in zip(rows, states, strict=True)]


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
        (rows, beside), states = self.answers(batch)
        if self.weight > 0:
            rows += self.weight * beside
        return [Scored(row, state) for row, state in zip(rows, states, strict=True)]


def _array(row: Any) -> Any:
    """A model's scores: in single precision where they came in no more than that, else in double."""
    import numpy

    row = row.detach().float().cpu().numpy() if hasattr(row, "detach") and row.dtype.itemsize <= 4 else row
    found = numpy.asarray(row.detach().cpu() if hasattr(row, "detach") else row)
    return found if found.dtype in (numpy.float32, numpy.float64) else found.astype(numpy.float64)


def _log_of_sum(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), of arrays; numpy's own goes number by number."""
    import numpy

    most = numpy.maximum(a, b)
    with numpy.errstate(invalid="ignore"):
        least = numpy.minimum(a, b, out=b)
        least -= most
        numpy.exp(least, out=least)
        least += 1
        numpy.log(least, out=least)
        least += most
    impossible = most == -inf
    if impossible.any():
        least[impossible] = -inf
    return least
