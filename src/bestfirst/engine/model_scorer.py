"""ModelScorer: scores hypotheses of many searches on any `Model`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any

from ..constraints import allowed_after, check_vocabulary
from ..models import Ensemble, Model, Query, Scored, Source
from ..models.model import as_model, eos_of
from ..models.score_arrays import as_float64, top_k_rows
from ..scoring import Score
from ..search import BrokenLaw, Hypothesis, Successors
from ..settings import Budget
from .engine import garbage_collection
from .scorer import NEEDED_PER_TOKEN, Scorer, ScoreState, check_same_vocabulary, checked_increments
from .user_model import ModelFailure, ScoresAfter, UserModel, invalid_scores, warn_of_probabilities

State = tuple[Any, ScoreState]
"""A hypothesis's state: the model's, and what a score needs besides."""
NO_STATE = ScoreState()


class ModelScorer(Scorer):
    """Calls a `Model` in batches, and the language model that a score needs.

    Whatever the model returns (lists, arrays, half-precision tensors) is summed in float64. With `lenient`, an input on which
    the model raises fails alone, and the others go on.
    """

    vocabulary = 0  # set by the first scores

    def __init__(self, model: Model, score: Score, lenient: bool = False) -> None:
        self.model = model
        self.score = score
        self.eos = eos_of(model.eos, type(model).__name__)
        self.user_model = UserModel(model, lenient)
        self.merge = None if getattr(model.merge_key, "__func__", None) is Model.merge_key else model.merge_key
        self._as_given = score.plain and not score.needs & NEEDED_PER_TOKEN  # whether values are what the model returns
        self.chains = not model.stateful and self._as_given
        self.language_model = None if score.language_model is None else UserModel(as_model(score.language_model), lenient)
        self._caches, self._use_caches = _caches_in(model, score.language_model)
        if "attention" in score.needs and getattr(model.attend, "__func__", None) is Model.attend:
            model.attend([])  # raises: the model has no attention
        if self.language_model is None and "language_model" in score.needs:
            raise ValueError(f"score {score.name!r} needs a language model, got None")
        if self.language_model is not None and not (others := eos_of(self.language_model.model.eos, "language model")) & self.eos:
            raise ValueError(
                f"the language model ends sequences with {sorted(others)}, the model with {sorted(self.eos)}: "
                "their vocabularies must be the same"
            )

    @property
    def model_seconds(self) -> float:  # type: ignore[override]
        return self.user_model.seconds + (0.0 if self.language_model is None else self.language_model.seconds)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.user_model.independent and (self.language_model is None or self.language_model.independent)

    def budget(self) -> Budget:
        if not self._caches:
            return self.user_model.budget()
        budgets = [cache.runner.budget() for cache in self._caches]
        return Budget(min(each.rows for each in budgets), min(each.free for each in budgets))

    def cache_tokens(self) -> int:
        return sum(cache.cache_tokens() for cache in self._caches)

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        with garbage_collection(), self._use_caches(self._caches):
            states = self.user_model.start([source.payload for _, source in roots])
            for (root, _), state in zip(roots, states, strict=True):
                beside = None if self.language_model is None else self.language_model.model.start(())
                root.state = state if isinstance(state, ModelFailure) else (state, ScoreState(beside))

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors | ModelFailure]:
        out: list[Successors | ModelFailure] = [y.state for y in batch]  # set if it failed as a speculative row
        alive = [i for i, y in enumerate(batch) if not isinstance(y.state, ModelFailure)]
        if not alive:
            return out
        rows = [batch[i] for i in alive]
        if any(y.wanted for y in rows):
            width = inf
        before: list[State] = [_state_before(y) for y in rows]
        queries = [Query(state, y.tokens) for (state, _), y in zip(before, rows, strict=True)]
        scored = self._best_of_ensemble(rows, queries, width)
        if scored is None:
            reusable = width > 1 + len(self.eos)  # otherwise states are used once, and the model may overwrite them
            with garbage_collection(), self._use_caches(self._caches):
                scored = self.user_model.ask(queries, "attention" in self.score.needs, reusable)
            places = [i for i, answer in enumerate(scored) if not isinstance(answer, ModelFailure)]
            if answered := [(rows[i], before[i][1], scored[i]) for i in places]:
                for i, successors in zip(places, self._successors(answered, width), strict=True):
                    scored[i] = successors
        for i, y, successors in zip(alive, rows, scored, strict=True):
            out[i] = successors
            if isinstance(successors, ModelFailure):
                y.state = successors
        return out

    def _best_of_ensemble(self, batch: Sequence[Hypothesis], queries: Sequence[Query], width: float) -> list[Any] | None:
        """The best few tokens by an ensemble, without the scores of all tokens. None for other models, and if all are needed."""
        needs_all = self.process is not None or not self._as_given
        if not self._caches or type(self.model) is not Ensemble or needs_all or (batch[0].parent or batch[0]).node is not None:
            return None
        from .runner import all_exclusive

        # All locks at once: logits, in buffers that are used again, are read after all passes.
        with self._use_caches(self._caches), all_exclusive(*(cache.runner for cache in self._caches)):
            scored = self.user_model.best(queries, width)
        if scored is None:
            return None
        out: list[Successors | ModelFailure] = []
        for y, (values, tokens, state) in zip(batch, scored, strict=True):
            y.state = (state, NO_STATE)
            problem = invalid_scores(values, tokens, ScoresAfter(y))
            out.append(Successors(values, tokens) if problem is None else self._failure(problem))
        return out

    def _processed(self, batch: Sequence[Hypothesis], rows: Sequence[Any]) -> Any:
        """The scores as `process` changes them, in float64."""
        import numpy

        arrays = [as_float64(row, ScoresAfter(y), nan=True) for y, row in zip(batch, rows, strict=True)]
        for y, array in zip(batch, arrays, strict=True):
            self._check_size(array, ScoresAfter(y))
        return self.process(batch, numpy.stack(arrays))  # type: ignore[misc]

    def _successors(
        self, answered: Sequence[tuple[Hypothesis, ScoreState, Scored]], width: float
    ) -> list[Successors | ModelFailure]:
        """The successors of hypotheses, by one top-k if their scores are alike; sets their states.

        A constraint or a processor forbids tokens after the score: temperatures normalise over all.
        """
        batch, rows = [y for y, _, _ in answered], [answer.logprobs for _, _, answer in answered]
        if self.process is not None:
            rows = self._processed(batch, rows)
        beside: Sequence[Any] = [None] * len(batch)
        if self.language_model is not None:
            queries = [Query(before.language_model, y.tokens) for y, before, _ in answered]
            with garbage_collection(), self._use_caches(self._caches):
                beside = self.language_model.ask(queries, reusable=width > 1 + len(self.eos))
        allowed = allowed_after(batch) or [None] * len(batch)
        parts = zip(answered, rows, beside, allowed, strict=True)
        found = [self._values(*each, row, lm, permitted) for each, row, lm, permitted in parts]
        out: list[Any] = list(found)
        ranked = [i for i, values in enumerate(found) if not isinstance(values, ModelFailure)]
        labels = [ScoresAfter(batch[i]) for i in ranked]
        best = top_k_rows([out[i][0] for i in ranked], labels, width)
        for i, label, (values, tokens) in zip(ranked, labels, best, strict=True):
            problem = invalid_scores(values, tokens, label)
            ending = float(self.score.ending(batch[i].state[1].coverage)) if "attention" in self.score.needs else 0.0
            own = None if out[i][1] is None else out[i][1][tokens].tolist()
            out[i] = Successors(values, tokens, own, ending) if problem is None else self._failure(problem)
        return out

    def _values(
        self, y: Hypothesis, before: ScoreState, answer: Scored, row: Any, beside: Any, allowed: Any
    ) -> tuple[Any, Any] | ModelFailure:
        """What each allowed token adds to the value, and the log-probabilities if these differ; sets the state of `y`."""
        label = ScoresAfter(y)
        self._check_size(row, label)
        if self._as_given:
            y.state = (answer.state, NO_STATE)
            return _kept(row if allowed is None else as_float64(row, label, nan=True), allowed), None
        if isinstance(beside, ModelFailure):
            return beside
        try:
            logprobs = as_float64(row, label)
            aux = None if beside is None else as_float64(beside.logprobs, f"the language model's scores after {list(y.tokens)}")
        except BrokenLaw:
            raise
        except ValueError as error:
            return self._failure(str(error))
        values = self._increments(y, before, logprobs, aux, answer, beside)
        return _kept(values, allowed), None if self.score.plain else logprobs

    def _check_size(self, row: Any, label: object) -> None:
        """BrokenLaw unless the vocabulary size is constant and includes EOS. Rows that are no vectors are reported elsewhere."""
        size = len(row) if isinstance(row, (list, tuple)) else row.shape[0] if len(getattr(row, "shape", ())) == 1 else 0
        if size == self.vocabulary or not size:
            return
        if self.vocabulary:
            raise BrokenLaw(f"{label} are {size}, those before were {self.vocabulary}; give -inf to tokens that may not come")
        self.vocabulary = size
        warn_of_probabilities(row, label)
        if not self.eos or not 0 <= min(self.eos) <= max(self.eos) < size:
            ends = f"{self.user_model.name}.eos is {sorted(self.eos)}: not one of them"
            raise BrokenLaw(f"{label} are {size}, for the tokens 0 to {size - 1}, and {ends}")

    def _failure(self, why: str) -> ModelFailure:
        if not self.user_model.lenient:
            raise ValueError(why)
        return ModelFailure(why)

    def _increments(
        self, y: Hypothesis, before: ScoreState, logprobs: Any, aux: Any, answer: Scored, beside: Scored | None
    ) -> Any:
        """Each token's increment of the value, from its log-probability and, in `aux`, the language model's; sets the state of
        `y`."""
        import numpy

        reached = None
        past = {}
        if aux is None and self.process is not None:
            past["unprocessed"] = as_float64(answer.logprobs, ScoresAfter(y), nan=True)
        if aux is not None:
            check_same_vocabulary(aux, logprobs)
        if "language_model_past" in self.score.needs:
            past["past"] = numpy.asarray([0.0 if y.parent is None else before.reached[y.token]])
            reached = past["past"] + aux
        with numpy.errstate(invalid="ignore"):  # -inf - -inf, for impossible tokens
            values = numpy.where(logprobs == -inf, -inf, checked_increments(self.score, logprobs, aux, **past))
        if not (values < inf).all():
            token = int(numpy.argmin(values < inf))
            raise ValueError(
                f"the score of {[*y.tokens, token]} is {values[token]}: check the models' scores there"
                + (", or choose an epsilon above 0" if beside is not None else "")
            )
        coverage = before.coverage
        if answer.attention is not None:
            coverage = coverage + as_float64(answer.attention, f"the attention after {list(y.tokens)}")
        y.state = (answer.state, ScoreState(None if beside is None else beside.state, reached, coverage))
        return values

    def advice(self, root: Hypothesis, n_max: int, eos: Collection[int] | None) -> str | None:
        if root.successors is not None and not root.successors.tokens:
            return f"{ScoresAfter(root)} are all -inf: {self.user_model.name} allows no first token"
        ends = f"{self.user_model.name}.eos {sorted(self.eos)[:8]}" if eos is None else f"eos {sorted(eos)[:8]}"
        return f"nothing finished within {n_max} tokens; raise max_length, or see whether {ends} is what ends"

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.user_model.text(source.payload, tokens)


def _state_before(y: Hypothesis) -> State:
    """The state of the parent, or, if that is a row of the same step (models without states), of its latest scored ancestor."""
    before = y if y.parent is None else y.parent
    while before.state is None:
        before = before.parent  # type: ignore[assignment]
    return before.state


def _caches_in(*models: Any) -> tuple[list[Any], Callable[[list[Any]], AbstractContextManager[None]]]:
    """The caches of the Hugging Face models inside these, and the context manager to use them."""
    if "bestfirst.models.text_model" not in sys.modules:
        return [], nullcontext  # type: ignore[return-value]
    from .cached_model import cached_models_in, use_caches

    return cached_models_in(*models), use_caches


def _kept(scores: Any, allowed: Any) -> Any:
    """The scores of the `allowed` tokens (None: of all), -inf for all others."""
    if allowed is None:
        return scores
    import numpy

    check_vocabulary(allowed, len(scores))
    kept = numpy.full_like(scores, -inf)
    kept[allowed] = scores[allowed]
    return kept
