"""TreeScorer: scores hypotheses of many searches on one Hugging Face model, a row a hypothesis, on any device.

What a step gives is an array, of a compiled one, or a tensor; torch is not loaded for the former.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import deepcopy
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from ..constraints import allowed_after, check_vocabulary
from ..models import Query, Source
from ..models.text_model import TextModel
from ..scoring import Score, log_softmax
from ..search import Hypothesis, Successors
from ..settings import Budget
from .cached_model import CachedModel, step_of
from .model_record import record_of
from .runner import Row, Runner, Sentence, all_at_work
from .scorer import Scorer, ScoreState, check_same_vocabulary

LONG = 128  # successors of a hypothesis


class TreeScorer(Scorer):
    """`start` admits inputs, `expand` is one forward pass. A hypothesis' state is (sentence, slot, `ScoreState`); before it is
    scored, a root's slot is 0."""

    normalized = True  # unset, `process` gets the model's scores as they are, as in Hugging Face's greedy search

    def __init__(self, model: TextModel, score: Score) -> None:
        self.model = model
        self.score = score
        self.eos = model.eos
        self.runner = Runner(model, *step_of(model))
        self.ahead = record_of(model).ahead
        self.language_model = None if score.language_model is None else CachedModel(score.language_model)
        self._attends = "attention" in score.needs
        if self._attends:
            self.runner.watch()
        self._top_seconds = 0.0
        self._measured: Budget | None = None

    @property
    def shares_context(self) -> bool:  # type: ignore[override]
        return self.runner.decoder.name != "recompute"

    @property
    def model_seconds(self) -> float:  # type: ignore[override]
        return self.runner.seconds + self._top_seconds

    @property
    def chains(self) -> bool:  # type: ignore[override]
        return self.language_model is None

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return self.model.vocabulary

    def budget(self) -> Budget:
        if self._measured is None:
            self._measured = self.runner.budget()
        return self._measured

    def cache_tokens(self) -> int:
        return self.runner.cache_tokens()

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            from .steps.step_choice import warn_of_recomputing

            warn_of_recomputing(self.model)  # type: ignore[arg-type]
        with self.runner.at_work():
            sentences = self.runner.admit([source.payload for _, source in roots])
        for (root, _), sentence in zip(roots, sentences, strict=True):
            root.state = (sentence, 0, ScoreState(None if self.language_model is None else self.language_model.start(())))

    def release(self, root: Hypothesis) -> None:
        self.runner.release(root.state[0])

    # -- one forward pass ------------------------------------------------------------------------------------------------

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors]:
        beside = () if self.language_model is None else (self.language_model.runner,)
        with all_at_work(self.runner, *beside):  # until what the step computed, in memory that it will use again, is read
            slots = self.runner.tree.allocate(len(batch))
            rows: list[Row] = []
            for y, slot in zip(batch, slots, strict=True):
                sentence, before, own = _before(y)
                rows.append(sentence.row(y.tokens, before))
                y.state = (sentence, slot, own)  # it may be the parent of a row behind it
            if not self.runner.decoder.by_place:
                return self._expand(batch, rows, slots, width)
            order = sorted(range(len(rows)), key=lambda i: rows[i][0].place)
            found = self._expand([batch[i] for i in order], [rows[i] for i in order], [slots[i] for i in order], width)
        out: list[Successors] = [None] * len(batch)  # type: ignore[list-item]
        for i, successors in zip(order, found, strict=True):
            out[i] = successors
        return out

    def _expand(self, batch: Sequence[Hypothesis], rows: Sequence[Row], slots: list[int], width: float) -> list[Successors]:
        _, logits = self.runner.step(rows, slots)
        begun = perf_counter()
        best, tokens, own = map(_array, self._best(batch, logits, int(min(width, logits.shape[1]))))
        self._top_seconds += perf_counter() - begun
        successors = _successors(batch, best, tokens, own)
        return self._with_endings(batch, rows, successors) if self._attends else successors

    def _best(self, batch: Sequence[Hypothesis], logits: Any, width: int) -> tuple[Any, Any, Any]:
        """Increments and tokens of the best extensions, (rows, width), and their log-probabilities where these differ.

        As Hugging Face does it: log-softmax, then what is banned or processed. The score comes last, and top-k after it.
        """
        allowed, width = self._allowed(batch, logits, width)
        wanted = any(y.wanted for y in batch)
        if self.score.plain and not wanted and self.process is None:
            return *self.runner.best(logits, width, allowed), None
        logprobs = _whole(logits)
        if self.normalized:
            logprobs = log_softmax(logprobs).clip(max=0)
        logprobs[:, list(self.model.banned)] = -inf
        if self.process is not None:
            logprobs = self.process(batch, logprobs)
        for row, some in enumerate(allowed or ()):
            if some is not None:
                kept = logprobs[row, some]
                logprobs[row] = -inf
                logprobs[row, some] = kept
        increments = ranked = self._increments(batch, logprobs)
        if wanted:
            ranked = deepcopy(increments)
            for row, y in enumerate(batch):
                ranked[row, list(y.wanted)] = inf
        tokens = _top(ranked, width)
        best, which = _array(_at(increments, tokens)), _array(tokens)
        order = np.lexsort((which, -best))
        own = None if self.score.plain else np.take_along_axis(_array(_at(logprobs, tokens)), order, 1)
        return np.take_along_axis(best, order, 1), np.take_along_axis(which, order, 1), own

    def _allowed(self, batch: Sequence[Hypothesis], logits: Any, width: int) -> tuple[Any, int]:
        """What a constraint lets each row go on with, if there is one; and no more than that of it."""
        if all((y if y.parent is None else y.parent).node is None for y in batch):
            return None, width
        allowed = allowed_after(batch, self.eos) or []
        for tokens in allowed:
            if tokens is not None:
                check_vocabulary(tokens, logits.shape[1])
        most = max(logits.shape[1] if tokens is None else len(tokens) for tokens in allowed)
        return allowed, min(width, max(1, most))

    def _increments(self, batch: Sequence[Hypothesis], logprobs: Any) -> Any:
        if self.language_model is None:
            return self.score.increment(logprobs)
        before: list[ScoreState] = [_before(y)[2] for y in batch]
        queries = [Query(each.language_model, y.tokens) for y, each in zip(batch, before, strict=True)]
        logits, states = self.language_model.step(queries)
        aux = self._own(log_softmax(logits.float() if hasattr(logits, "detach") else logits).clip(max=0))
        check_same_vocabulary(aux, logprobs)
        past, reached = {}, [None] * len(batch)
        if "language_model_past" in self.score.needs:
            sums = [[0.0 if y.parent is None else float(each.reached[y.token])] for y, each in zip(batch, before, strict=True)]
            past = {"past": self._own(np.array(sums, np.float32))}
            reached = past["past"] + aux
        for y, state, sums_after in zip(batch, states, reached, strict=True):
            y.state = (*y.state[:2], ScoreState(state, sums_after))
        increments = self.score.increment(logprobs, aux, **past)
        increments[logprobs == -inf] = -inf
        return increments

    def _own(self, array: Any) -> Any:
        """An array or a tensor as what this scorer works with, where the model is."""
        if self.model.decoder is not None:
            return _array(array)
        import torch

        return torch.as_tensor(array, device=self.model.model.device)  # type: ignore[attr-defined]

    def _with_endings(self, batch: Sequence[Hypothesis], rows: Sequence[Row], found: list[Successors]) -> list[Successors]:
        """What finishing adds for a score that looks at attention: known only when a hypothesis ends."""
        out = []
        for y, attention, successors in zip(batch, self.runner.attention(rows), found, strict=True):
            coverage = _before(y)[2].coverage + attention
            y.state = (*y.state[:2], y.state[2]._replace(coverage=coverage))
            out.append(successors._replace(ending=float(self.score.ending(coverage))))
        return out


def _whole(logits: Any) -> Any:
    """Logits as they can be worked with: what a step gives may be turned on its side, or in half precision."""
    return logits.float().contiguous() if hasattr(logits, "detach") else np.ascontiguousarray(logits)


def _top(ranked: Any, width: int) -> Any:
    """The tokens of the greatest numbers of each row, (rows, width), in any order."""
    if not hasattr(ranked, "detach"):
        return np.argpartition(-ranked, width - 1, 1)[:, :width]
    from .steps.operations import top

    return top(ranked, width)[1]


def _array(x: Any) -> Any:
    return x.cpu().numpy() if hasattr(x, "detach") else x


def _at(x: Any, tokens: Any) -> Any:
    """Of x (rows, vocabulary) what stands at these tokens (rows, any)."""
    return x.gather(1, tokens) if hasattr(x, "detach") else np.take_along_axis(x, tokens, 1)


def _before(y: Hypothesis) -> tuple[Sentence, int, ScoreState]:
    """The state of what a hypothesis continues; of a root, its own before it is scored."""
    return (y if y.parent is None else y.parent).state


def _successors(batch: Sequence[Hypothesis], best: Any, tokens: Any, logprobs: Any) -> list[Successors]:
    """Impossible tokens, which come last, left out; ties in order of tokens."""
    possible = best > -inf
    broken = ~(best < inf).all(1)
    if broken.any():
        raise not_finite(batch[int(broken.argmax())].tokens)
    tied = ((best[:, 1:] == best[:, :-1]) & possible[:, 1:]).any(1)
    if tied.any():
        order = np.lexsort((tokens[tied], -best[tied]))
        for each in (best, tokens) if logprobs is None else (best, tokens, logprobs):
            each[tied] = np.take_along_axis(each[tied], order, 1)
    counts = possible.sum(1).tolist()
    rows = zip(_each(best), _each(tokens), [None] * len(best) if logprobs is None else _each(logprobs), counts, strict=True)
    whole = best.shape[1]
    return [
        Successors(values, ids, own) if n == whole else Successors(values[:n], ids[:n], None if own is None else own[:n])
        for values, ids, own, n in rows
    ]


def not_finite(tokens: Sequence[int]) -> ValueError:
    return ValueError(f"the scores after {list(tokens)} are not finite: check the model's weights and dtype")


def _each(rows: Any) -> Sequence[Any]:
    """Rows as Python has them: lists, which are faster to read, or, of many numbers, what takes an eighth of their memory."""
    if rows.shape[1] <= LONG:
        return rows.tolist()
    rows = rows.astype(np.int32) if rows.dtype.kind == "i" else rows
    code = {"i": "i", "f": "f" if rows.itemsize == 4 else "d"}[rows.dtype.kind]
    return [array(code, row.tobytes()) for row in rows]
