"""Models that combine other models: `Ensemble`, and `ShallowFusion` of a translation model with a language model.
Both are ordinary `Model`s. While an engine decodes one, each Hugging Face model inside it runs on its own KV cache tree
(`engine/cached_model.py`), and `Ensemble.best` then avoids computing the mean over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, log
from typing import Any

from ..search import BrokenLaw
from .model import Model, Query, Scored, Source, as_model, ask
from .score_arrays import row_blocks, stack_rows, top_k_of_mean


class Combined(Model):
    """Scores each hypothesis with every model. Vocabularies must be equal; lengths and tokenization are the first model's."""

    def __init__(self, models: Sequence[Model]) -> None:
        models = [as_model(model) for model in models]
        for model in models[1:]:
            if set(model.eos) != set(models[0].eos):
                ends = f"{sorted(models[0].eos)} and {sorted(model.eos)}"
                raise ValueError(f"models to be combined must have the same vocabulary, these end sequences with {ends}")
        self.models = models
        self.eos = models[0].eos

    def score_all(self, batch: Sequence[Query]) -> tuple[list[Any], list[list[Any]]]:
        """Each model's log-probabilities (hypotheses, vocabulary), read-only; per hypothesis, the next states of all models."""
        each = [ask(model, [Query(q.state[i], q.prefix) for q in batch]) for i, model in enumerate(self.models)]
        _check_vocabulary_sizes([{len(answer.logprobs) for answer in answers} for answers in each])
        arrays = [stack_rows([answer.logprobs for answer in answers]) for answers in each]
        return arrays, [[answer.state for answer in row] for row in zip(*each, strict=True)]

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        if prefix:
            raise ValueError("a forced prefix needs a Hugging Face model by itself, not models that are combined")
        read = self.models[0].reader()
        return lambda raw: replace(read(raw), payload=raw)

    def source_length(self, source: Any) -> int:
        return self.models[0].source_length(source)

    def max_length(self, source: Any) -> int:
        return self.models[0].max_length(source)

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        return self.models[0].text(source, tokens)

    def piece(self, token: int) -> str | None:
        return self.models[0].piece(token)

    def special_token(self, text: str) -> int | None:
        return self.models[0].special_token(text)

    def target(self, text: str) -> tuple[int, ...]:
        return self.models[0].target(text)

    def targets(self, texts: Sequence[str]) -> list[tuple[int, ...] | None]:
        return self.models[0].targets(texts)


class Ensemble(Combined):
    """The weighted mean of several models' probabilities: log sum_i w_i p_i(y_t | y_<t, x), weights normalised to sum 1. All
    models read the same input."""

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

        parts, states = self.score_all(batch)
        rows = numpy.empty(parts[0].shape, numpy.result_type(*parts))
        for block in row_blocks(len(rows)):
            _log_of_mean([part[block] for part in parts], self.weights, rows[block])
        return [Scored(row, state) for row, state in zip(rows, states, strict=True)]

    def best(self, batch: Sequence[Query], width: float) -> list[tuple[list[float], list[int], Any]] | None:
        """For each hypothesis the `width` best log-probabilities, their tokens, and the next state, without computing the mean
        over the whole vocabulary (`top_k_of_mean`). None if `score` has to be used: this needs every model to run on a cached
        decoder of its own (logits are only valid until the decoder's next step), and a vocabulary much larger than `width`."""
        running: list[Any] = [getattr(model, "cached", None) for model in self.models]
        if None in running or len({id(each.runner.decoder) for each in running}) < len(running):
            return None
        if 4 * width > min(cached.model.vocabulary for cached in running):
            return None
        count = 2 * int(width) + 4  # enough to contain the mean's top `width` in nearly every row
        parts = [cached.best([Query(q.state[i], q.prefix) for q in batch], count) for i, cached in enumerate(running)]
        _check_vocabulary_sizes([{part.logits.shape[1]} for part in parts])
        best = top_k_of_mean(parts, self.weights, int(width))
        return [(*row, list(states)) for row, *states in zip(best, *(part.states for part in parts), strict=True)]


class ShallowFusion(Combined):
    """log p(y|x) + weight * log p(y): a language model's log-probabilities added at every step (Gulcehre et al. 2015).

    The sum is not a distribution, but each step's term is at most 0, so search stays exact. To subtract a language model, use
    `bestfirst.scoring.MutualInformation`."""

    def __init__(self, model: Model, language_model: Model, weight: float) -> None:
        if not (isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be a number of at least 0, got {weight}; MutualInformation takes a language model off")
        super().__init__([model, language_model])
        self.weight = weight

    def start(self, source: Any) -> Any:
        return [self.models[0].start(source), self.models[1].start(())]

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        (rows, language), states = self.score_all(batch)
        if self.weight > 0:
            rows = rows + self.weight * language
        return [Scored(row, state) for row, state in zip(rows, states, strict=True)]


def _log_of_mean(parts: Sequence[Any], weights: Sequence[float], mean: Any) -> None:
    """Write the logarithm of the weighted mean of probabilities to `mean`, given log-probabilities. Where the mean underflows its
    dtype, it is computed by log-sum-exp instead, which is slower."""
    import numpy

    mean[...] = 0
    for part, weight in zip(parts, weights, strict=True):
        mean += weight * numpy.exp(part)
    small = numpy.flatnonzero(mean < numpy.finfo(mean.dtype).tiny)
    with numpy.errstate(divide="ignore"):
        numpy.log(mean, out=mean)
    if len(small):
        each = [part.reshape(-1)[small] + log(weight) for part, weight in zip(parts, weights, strict=True)]
        mean.reshape(-1)[small] = numpy.logaddexp.reduce(each)
    numpy.minimum(mean, 0, out=mean)  # rounding must not make p exceed 1


def _check_vocabulary_sizes(sizes: Sequence[set[int]]) -> None:
    if len(set().union(*sizes)) > 1:
        shown = ", ".join(str(max(size)) for size in sizes)
        raise BrokenLaw(f"models to be combined must have the same vocabulary, these have {shown} tokens")
