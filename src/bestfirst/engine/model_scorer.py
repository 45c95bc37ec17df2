"""ModelScorer: scores hypotheses of many searches on any `Model`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any

from ..constraints import allowed_after, check_vocabulary
from ..models import Ensemble, Model, Query, Scored, Source
from ..models.model import eos_of
from ..models.score_arrays import as_float64, top_k_matrix, top_k_rows
from ..scoring import Score
from ..search import BrokenLaw, Hypothesis, Successors
from ..settings import Budget
from .engine import collecting
from .scorer import ON_THE_WAY, Scorer, ScoreState, check_same_vocabulary
from .user_model import ModelFailure, ScoresAfter, UserModel, warn_of_probabilities, wrong_in

State = tuple[Any, ScoreState]
"""What belongs to a hypothesis: the model's state, and what a score needs beside it."""
PLAIN = ScoreState()


class ModelScorer(Scorer):
    """Asks a `Model`, one batch at a time, and beside it the language model that a score needs.

    Whatever a model returns (a list, an array, a tensor in half precision) is added up in float64. With `lenient`, an input on
    which the model raises is given up, and the others go on.
    """

    vocabulary = 0  # known with the first scores

    def __init__(self, model: Model, score: Score, lenient: bool = False) -> None:
        self.model = model
        self.score = score
        self.eos = eos_of(model.eos, type(model).__name__)
        self.own = UserModel(model, lenient)
        self.merge = None if getattr(model.merge_key, "__func__", None) is Model.merge_key else model.merge_key
        self._measured: Budget | None = None
        self.language_model = score.language_model
        self._trees, self._running = _trees(model, score.language_model)
        if "attention" in score.needs and getattr(model.attend, "__func__", None) is Model.attend:
            model.attend([])  # says that it has none
        if self.language_model is None and "language_model" in score.needs:
            raise ValueError(f"score {score.name!r} needs a language model, got None")
        others = self.eos if self.language_model is None else eos_of(self.language_model.eos, "language model")
        if not others & self.eos:
            raise ValueError(
                f"the language model ends sequences with {sorted(others)}, the model with {sorted(self.eos)}: "
                "their vocabularies must be the same"
            )

    @property
    def chains(self) -> bool:  # type: ignore[override]
        return not self.model.stateful and self.score.plain and not self.score.needs & ON_THE_WAY

    @property
    def model_seconds(self) -> float:  # type: ignore[override]
        return self.own.seconds

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.own.independent

    def budget(self) -> Budget:
        if not self._trees:
            return self.own.budget()
        if self._measured is None:
            budgets = [tree.runner.budget() for tree in self._trees]
            self._measured = Budget(min(each.rows for each in budgets), min(each.free for each in budgets))
        return self._measured

    def cache_tokens(self) -> int:
        return sum(tree.cache_tokens() for tree in self._trees)

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        with collecting(), self._running(self._trees):
            states = self.own.start([source.payload for _, source in roots])
            for (root, _), state in zip(roots, states, strict=True):
                beside = None if self.language_model is None else self.language_model.start(())
                root.state = state if isinstance(state, ModelFailure) else (state, ScoreState(beside))

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors | ModelFailure]:
        out: list[Successors | ModelFailure] = [y.state for y in batch]  # of one that failed before, when it was not needed yet
        asked = [i for i, y in enumerate(batch) if not isinstance(y.state, ModelFailure)]
        if not asked:
            return out
        rows = [batch[i] for i in asked]
        if any(y.wanted for y in rows):
            width = inf
        before: list[State] = [_state_before(y) for y in rows]
        queries = [Query(state, y.tokens) for (state, _), y in zip(before, rows, strict=True)]
        found = self._best_of_ensemble(rows, queries, width)
        if found is None:
            several = width > 1 + len(self.eos)  # else a state is used once, and may be overwritten
            with collecting(), self._running(self._trees):
                answers = self.own.ask(queries, "attention" in self.score.needs, several)
            if self.process is not None:
                answers = self._processed(rows, answers)
            if (allowed := allowed_after(rows, self.eos)) is not None:
                answers = [_restricted(*each) for each in zip(answers, allowed, rows, strict=True)]
            found = self._all_successors(rows, [beside for _, beside in before], answers, width)
        for i, y, successors in zip(asked, rows, found, strict=True):
            out[i] = successors
            if isinstance(successors, ModelFailure):
                y.state = successors
        return out

    def _best_of_ensemble(self, batch: Sequence[Hypothesis], queries: Sequence[Query], width: float) -> list[Any] | None:
        """Of models on trees the few best are known without the scores of all tokens; None where more is asked for."""
        others = self.process is not None or bool(self.score.needs & ON_THE_WAY) or not self.score.plain
        if not self._trees or type(self.model) is not Ensemble or others or (batch[0].parent or batch[0]).node is not None:
            return None
        from .runner import all_at_work

        with self._running(self._trees), all_at_work(*(tree.runner for tree in self._trees)):  # logits are read after all passes
            found = self.own.best(queries, width)
        if found is None:
            return None
        out: list[Successors | ModelFailure] = []
        for y, (values, tokens, state) in zip(batch, found, strict=True):
            y.state = (state, PLAIN)
            wrong = wrong_in(values, tokens, ScoresAfter(y))
            out.append(Successors(values, tokens) if wrong is None else self._given_up(wrong))
        return out

    def _processed(self, batch: Sequence[Hypothesis], answers: Sequence[Any]) -> list[Any]:
        """The answers with what processors make of their scores, in float64."""
        import numpy

        out = list(answers)
        good = [i for i, answer in enumerate(answers) if not isinstance(answer, ModelFailure)]
        rows = [as_float64(answers[i].logprobs, ScoresAfter(batch[i]), nan=True) for i in good]
        for i, row in zip(good, rows, strict=True):
            self._check_size(row, ScoresAfter(batch[i]))
        if good:
            for i, row in zip(good, self.process([batch[i] for i in good], numpy.stack(rows)), strict=True):  # type: ignore[misc]
                out[i] = answers[i]._replace(logprobs=row)
        return out

    def _all_successors(
        self, batch: Sequence[Hypothesis], before: Sequence[ScoreState], answers: Sequence[Any], width: float
    ) -> list[Successors | ModelFailure]:
        if self.score.plain and not self.score.needs & ON_THE_WAY:
            return self._plain(batch, answers, width)
        beside: Sequence[Scored | None] = [None] * len(batch)
        if self.language_model is not None:
            queries = [Query(each.language_model, y.tokens) for each, y in zip(before, batch, strict=True)]
            with self._running(self._trees):
                beside = self.language_model.score(queries)
        return [
            answer if isinstance(answer, ModelFailure) else self._successors(y, each, answer, lm, width)
            for y, each, answer, lm in zip(batch, before, answers, beside, strict=True)
        ]

    def _plain(self, batch: Sequence[Hypothesis], answers: Sequence[Any], width: float) -> list[Successors | ModelFailure]:
        """The best tokens by the model's scores as they are, of all rows in one go where they are alike."""
        out: list[Any] = list(answers)
        good = [i for i, answer in enumerate(answers) if not isinstance(answer, ModelFailure)]
        whats = [ScoresAfter(batch[i]) for i in good]
        for i, what in zip(good, whats, strict=True):
            self._check_size(answers[i].logprobs, what)
            batch[i].state = (answers[i].state, PLAIN)
        best = top_k_rows([answers[i].logprobs for i in good], whats, width)
        for i, what, (values, tokens) in zip(good, whats, best, strict=True):
            wrong = wrong_in(values, tokens, what)
            out[i] = Successors(values, tokens) if wrong is None else self._given_up(wrong)
        return out

    def _check_size(self, row: Any, what: object) -> None:
        """One vocabulary, with EOS in it. What is no row at all is found elsewhere."""
        size = len(row) if isinstance(row, (list, tuple)) else row.shape[0] if len(getattr(row, "shape", ())) == 1 else 0
        if size == self.vocabulary or not size:
            return
        if self.vocabulary:
            raise BrokenLaw(f"{what} are {size}, those before were {self.vocabulary}; give -inf to tokens that may not come")
        self.vocabulary = size
        warn_of_probabilities(row, what)
        if not self.eos or not 0 <= min(self.eos) <= max(self.eos) < size:
            ends = f"{self.own.name}.eos is {sorted(self.eos)}: not one of them"
            raise BrokenLaw(f"{what} are {size}, for the tokens 0 to {size - 1}, and {ends}")

    def _given_up(self, why: str) -> ModelFailure:
        if not self.own.lenient:
            raise ValueError(why)
        return ModelFailure(why)

    def _successors(
        self, y: Hypothesis, before: ScoreState, answer: Scored, beside: Scored | None, width: float
    ) -> Successors | ModelFailure:
        """The successors of `y`, and its state."""
        self._check_size(answer.logprobs, ScoresAfter(y))
        try:
            logprobs = as_float64(answer.logprobs, ScoresAfter(y))
        except BrokenLaw:
            raise
        except ValueError as error:
            return self._given_up(str(error))
        values, reached = self._increments(y, before, logprobs, beside)
        coverage = before.coverage
        if answer.attention is not None:
            coverage = coverage + as_float64(answer.attention, f"the attention after {list(y.tokens)}")
        y.state = (answer.state, ScoreState(None if beside is None else beside.state, reached, coverage))
        ending = float(self.score.ending(coverage)) if "attention" in self.score.needs else 0.0
        ((best, tokens),) = top_k_matrix(values[None], width)
        if wrong := wrong_in(best, tokens, ScoresAfter(y)):
            return self._given_up(wrong)
        return Successors(best, tokens, None if self.score.plain else logprobs[tokens].tolist(), ending)

    def _increments(self, y: Hypothesis, before: ScoreState, logprobs: Any, beside: Scored | None) -> tuple[Any, Any]:
        """What each token adds to the value; and what the language model has reached, where the score asks for that."""
        import numpy

        aux = reached = None
        past = {}
        if beside is not None:
            aux = as_float64(beside.logprobs, f"the language model's scores after {list(y.tokens)}")
            check_same_vocabulary(aux, logprobs)
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

    def advice(self, root: Hypothesis, n_max: int, eos: Collection[int] | None) -> str | None:
        if root.successors is not None and not root.successors.tokens:
            return f"{ScoresAfter(root)} are all -inf: {self.own.name} allows no first token"
        ends = f"{self.own.name}.eos {sorted(self.eos)[:8]}" if eos is None else f"eos {sorted(eos)[:8]}"
        return f"nothing finished within {n_max} tokens; raise max_length, or see whether {ends} is what ends"

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.own.text(source.payload, tokens)


def _state_before(y: Hypothesis) -> State:
    """Of the prefix before it; where that is in the same step, of the last one that is not, for a model without states."""
    before = y if y.parent is None else y.parent
    while before.state is None:
        before = before.parent  # type: ignore[assignment]
    return before.state


def _trees(*models: Any) -> tuple[list[Any], Callable[[list[Any]], AbstractContextManager[None]]]:
    """The trees of the Hugging Face models that these are made of, and how they are asked through them."""
    if "bestfirst.models.text_model" not in sys.modules:
        return [], nullcontext  # type: ignore[return-value]
    from .cached_model import cached, running

    return cached(*models), running


def _restricted(answer: Any, allowed: Any, y: Hypothesis) -> Any:
    """Only what is allowed, by its tokens; None: everything is."""
    import numpy

    if allowed is None or isinstance(answer, ModelFailure):
        return answer
    logprobs = as_float64(answer.logprobs, ScoresAfter(y), nan=True)
    check_vocabulary(allowed, len(logprobs))
    kept = numpy.full_like(logprobs, -inf)
    kept[allowed] = logprobs[allowed]
    return answer._replace(logprobs=kept)
