"""TreeScorer: scores hypotheses of many searches on one Hugging Face model, one row per hypothesis, on any device.

The logits of a compiled step are arrays, other steps' tensors; torch is not imported for the former.
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
from .cached_model import CachedModel, runner_of
from .model_record import record_of
from .runner import Row, Sentence, all_exclusive
from .scorer import Scorer, ScoreState, check_same_vocabulary, checked_increments

MAX_LIST = 128  # longest row of successors that is kept as a list


class TreeScorer(Scorer):
    """`start` admits inputs, `expand` runs a forward pass. A hypothesis's state is (sentence, slot, `ScoreState`); slot is 0 for
    new roots."""

    normalized = True  # if False, `process` gets raw logits, as in Hugging Face's greedy search

    def __init__(self, model: TextModel, score: Score) -> None:
        self.model = model
        self.score = score
        self.eos = model.eos
        self.vocabulary = model.vocabulary
        self.runner = runner_of(model)
        self.ahead = record_of(model).ahead
        self.language_model = None if score.language_model is None else CachedModel(score.language_model)
        self.chains = self.language_model is None
        self.shares_context = self.runner.decoder.name != "recompute"
        self._attends = "attention" in score.needs
        if self._attends:
            self.runner.keep_attention()

    @property
    def model_seconds(self) -> float:  # type: ignore[override]
        return self.runner.seconds

    def budget(self) -> Budget:
        return self.runner.budget()

    def cache_tokens(self) -> int:
        return self.runner.cache_tokens()

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            from .steps.step_choice import warn_of_recomputing

            warn_of_recomputing(self.model)  # type: ignore[arg-type]
        with self.runner.exclusive():
            sentences = self.runner.admit([source.payload for _, source in roots])
        for (root, _), sentence in zip(roots, sentences, strict=True):
            root.state = (sentence, 0, ScoreState(None if self.language_model is None else self.language_model.start(())))

    def release(self, root: Hypothesis) -> None:
        self.runner.release(root.state[0])

    # -- one forward pass ------------------------------------------------------------------------------------------------

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors]:
        others = () if self.language_model is None else (self.language_model.runner,)
        with all_exclusive(self.runner, *others):  # until the step's output buffers, which the next step overwrites, are read
            slots = self.runner.tree.allocate(len(batch))
            rows: list[Row] = []
            for y, slot in zip(batch, slots, strict=True):
                sentence, slot_before, state = _parent_state(y)
                rows.append(sentence.row(y.tokens, slot_before))
                y.state = (sentence, slot, state)  # set now: it may be the parent of a later row
            if not self.runner.decoder.by_place:
                return self._expand(batch, rows, slots, width)
            order = sorted(range(len(rows)), key=lambda i: rows[i][0].place)
            scored = self._expand([batch[i] for i in order], [rows[i] for i in order], [slots[i] for i in order], width)
        out: list[Successors] = [None] * len(batch)  # type: ignore[list-item]
        for i, successors in zip(order, scored, strict=True):
            out[i] = successors
        return out

    def _expand(self, batch: Sequence[Hypothesis], rows: Sequence[Row], slots: list[int], width: float) -> list[Successors]:
        _, logits = self.runner.step(rows, slots)
        started = perf_counter()
        best, tokens, own = map(_to_numpy, self._best(batch, logits, int(min(width, logits.shape[1]))))
        self.runner.seconds += perf_counter() - started
        successors = _successors(batch, best, tokens, own, processed=self.process is not None)
        return self._with_endings(batch, rows, successors) if self._attends else successors

    def _best(self, batch: Sequence[Hypothesis], logits: Any, width: int) -> tuple[Any, Any, Any]:
        """The best extensions: increments and tokens (rows, width), and their log-probabilities, if these differ.

        In Hugging Face's order: log-softmax, then bans and processors; then the score, and top-k last. What a constraint, the
        model or a processor forbids is left out after the score: a temperature normalises over all tokens.
        """
        allowed, width = self._allowed(batch, logits, width)
        wanted = any(y.wanted for y in batch)
        if self.score.plain and not wanted and self.process is None:
            return *self.runner.best(logits, width, allowed), None
        logprobs = _contiguous(logits)
        if self.normalized:
            logprobs = log_softmax(logprobs).clip(max=0)
        unprocessed = None if self.process is None or self.score.plain else deepcopy(logprobs)
        if self.process is not None:
            logprobs[:, list(self.model.banned)] = -inf
            logprobs = self.process(batch, logprobs)
        increments = ranked = self._increments(batch, logprobs, unprocessed)
        increments[:, list(self.model.banned)] = -inf
        for row, permitted in enumerate(allowed or ()):
            if permitted is not None:
                kept = increments[row, permitted]
                increments[row] = -inf
                increments[row, permitted] = kept
        if wanted:
            ranked = deepcopy(increments)
            for row, y in enumerate(batch):
                ranked[row, list(y.wanted)] = inf
        tokens = _top_tokens(ranked, width)
        best, ids = _to_numpy(_gather(increments, tokens)), _to_numpy(tokens)
        order = np.lexsort((ids, -best))
        own = None if self.score.plain else np.take_along_axis(_to_numpy(_gather(logprobs, tokens)), order, 1)
        return np.take_along_axis(best, order, 1), np.take_along_axis(ids, order, 1), own

    def _allowed(self, batch: Sequence[Hypothesis], logits: Any, width: int) -> tuple[Any, int]:
        """The tokens that the constraint, if any, allows each row, and the width reduced to their largest number."""
        if all((y if y.parent is None else y.parent).node is None for y in batch):
            return None, width
        allowed = allowed_after(batch) or []
        for tokens in allowed:
            if tokens is not None:
                check_vocabulary(tokens, logits.shape[1])
        most = max(logits.shape[1] if tokens is None else len(tokens) for tokens in allowed)
        return allowed, min(width, max(1, most))

    def _increments(self, batch: Sequence[Hypothesis], logprobs: Any, unprocessed: Any) -> Any:
        if self.language_model is None:
            return checked_increments(self.score, logprobs, unprocessed=unprocessed)
        before: list[ScoreState] = [_parent_state(y)[2] for y in batch]
        queries = [Query(each.language_model, y.tokens) for y, each in zip(batch, before, strict=True)]
        logits, states = self.language_model.step(queries)
        aux = self._on_device(log_softmax(logits.float() if hasattr(logits, "detach") else logits).clip(max=0))
        check_same_vocabulary(aux, logprobs)
        past, reached = {}, [None] * len(batch)
        if "language_model_past" in self.score.needs:
            sums = [[0.0 if y.parent is None else float(each.reached[y.token])] for y, each in zip(batch, before, strict=True)]
            past = {"past": self._on_device(np.array(sums, np.float32))}
            reached = past["past"] + aux
        for y, state, sums_after in zip(batch, states, reached, strict=True):
            y.state = (*y.state[:2], ScoreState(state, sums_after))
        increments = checked_increments(self.score, logprobs, aux, **past)
        increments[logprobs == -inf] = -inf
        return increments

    def _on_device(self, array: Any) -> Any:
        """An array or tensor in the form that this scorer computes with, on the model's device."""
        if self.model.decoder is not None:
            return _to_numpy(array)
        import torch

        return torch.as_tensor(array, device=self.model.model.device)  # type: ignore[attr-defined]

    def _with_endings(self, batch: Sequence[Hypothesis], rows: Sequence[Row], scored: list[Successors]) -> list[Successors]:
        """Adds what the score adds at the end for attention (coverage), known only when a hypothesis ends."""
        out = []
        for y, attention, successors in zip(batch, self.runner.attention(rows), scored, strict=True):
            coverage = _parent_state(y)[2].coverage + attention
            y.state = (*y.state[:2], y.state[2]._replace(coverage=coverage))
            out.append(successors._replace(ending=float(self.score.ending(coverage))))
        return out


def _contiguous(logits: Any) -> Any:
    """Logits in a contiguous float32 layout: a step may return transposed or half-precision ones."""
    return logits.float().contiguous() if hasattr(logits, "detach") else np.ascontiguousarray(logits)


def _top_tokens(ranked: Any, width: int) -> Any:
    """The tokens of each row's largest numbers, (rows, width), unordered; of equal numbers the smaller tokens."""
    if hasattr(ranked, "detach"):
        from .steps.operations import top

        return top(ranked, width)[1]
    tokens = np.argpartition(-ranked, width - 1, 1)[:, :width]
    least = np.take_along_axis(ranked, tokens, 1).min(1, keepdims=True)
    for row in np.flatnonzero((np.count_nonzero(ranked >= least, 1) > width) & (least[:, 0] > -inf)):
        above, equal = (np.flatnonzero(which) for which in (ranked[row] > least[row], ranked[row] == least[row]))
        tokens[row] = np.concatenate([above, equal[: width - len(above)]])
    return tokens


def _to_numpy(x: Any) -> Any:
    return x.cpu().numpy() if hasattr(x, "detach") else x


def _gather(x: Any, tokens: Any) -> Any:
    """x (rows, vocabulary) at tokens (rows, any)."""
    return x.gather(1, tokens) if hasattr(x, "detach") else np.take_along_axis(x, tokens, 1)


def _parent_state(y: Hypothesis) -> tuple[Sentence, int, ScoreState]:
    """The parent's state; of a root, its own before it is scored."""
    return (y if y.parent is None else y.parent).state


def _successors(batch: Sequence[Hypothesis], best: Any, tokens: Any, logprobs: Any, processed: bool) -> list[Successors]:
    """Successors without impossible tokens, which come last; ties in order of token ids. `processed`: by logits processors."""
    possible = best > -inf
    broken = ~(best < inf).all(1)
    if broken.any():
        raise not_finite(batch[int(broken.argmax())].tokens, processed)
    tied = ((best[:, 1:] == best[:, :-1]) & possible[:, 1:]).any(1)
    if tied.any():
        order = np.lexsort((tokens[tied], -best[tied]))
        for each in (best, tokens) if logprobs is None else (best, tokens, logprobs):
            each[tied] = np.take_along_axis(each[tied], order, 1)
    counts = possible.sum(1).tolist()
    rows = zip(_lists(best), _lists(tokens), [None] * len(best) if logprobs is None else _lists(logprobs), counts, strict=True)
    whole = best.shape[1]
    return [
        Successors(values, ids, own) if n == whole else Successors(values[:n], ids[:n], None if own is None else own[:n])
        for values, ids, own, n in rows
    ]


def not_finite(tokens: Sequence[int], processed: bool = False) -> ValueError:
    """The error for scores that are NaN or infinitely good; `processed`: after logits processors."""
    others = ", and whether the logits processors leave a token to choose" if processed else ""
    return ValueError(f"the scores after {list(tokens)} are not finite: check the model's weights and dtype{others}")


def _lists(rows: Any) -> Sequence[Any]:
    """Rows as lists, which Python reads faster, or as `array`s if they are long, in an eighth of the memory."""
    if rows.shape[1] <= MAX_LIST:
        return rows.tolist()
    rows = rows.astype(np.int32) if rows.dtype.kind == "i" else rows
    code = {"i": "i", "f": "f" if rows.itemsize == 4 else "d"}[rows.dtype.kind]
    return [array(code, row.tobytes()) for row in rows]
