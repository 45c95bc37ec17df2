"""CachedModel: gives a Hugging Face model inside another model (an ensemble, a user's wrapper) a KV cache.

    caches = cached_models_in(model)
    with use_caches(caches):            # replaces `start` and `score` of the Hugging Face models inside
        model.score(batch)

The keys and values of an input are kept as long as a state that refers to it is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from typing import Any

import numpy as np

from ..models import Model, Query, Scored
from ..models.reader import Prompt
from ..models.score_arrays import FewBest, row_blocks
from ..models.text_model import TextModel
from .model_record import record_of
from .runner import Row, Runner, Sentence


def runner_of(model: Any) -> Runner:
    """A `Runner` with the model's own decoder step, or with the fastest that agrees with the model."""
    if model.decoder is not None:
        return Runner(model, model.decoder)
    from .steps.step_choice import step_for

    with record_of(model).lock:  # the first call may compare steps with the model
        return Runner(model, step_for(model))


class CachedInput:
    """An input of a `CachedModel`, admitted with the first batch that contains it. Its slots are freed after it is collected."""

    __slots__ = ("_dropped", "prompt", "sentence")

    def __init__(self, prompt: Prompt, dropped: deque[Sentence]) -> None:
        self.prompt = prompt
        self.sentence: Sentence | None = None
        self._dropped = dropped

    def __del__(self) -> None:
        if self.sentence is not None:
            self._dropped.append(self.sentence)  # released between steps: the destructor may run during one


State = tuple[CachedInput, int]
"""An input and the slot of its last scored token; 0 before the first."""


class CachedModel:
    """Implements `start` and `score` of one Hugging Face model with a KV cache."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.runner = runner_of(model)
        self._dropped: deque[Sentence] = deque()

    def start(self, source: Any) -> State:
        """As `Model.start`."""
        return CachedInput(self.model.read(source).payload, self._dropped), 0

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """As `Model.score`, in one forward pass; the scores are rows of one array."""
        with self.runner.exclusive():
            logits, states = self.step(batch)
            scores = _log_softmax(logits)
        scores[:, list(self.model.banned)] = -inf
        return [Scored(row, state) for row, state in zip(scores, states, strict=True)]

    def best(self, batch: Sequence[Query], count: int) -> FewBest:
        """The best `count` tokens of each query, and its logits, which are valid until the next step."""
        with self.runner.exclusive():
            logits, states, places = self._forward(batch)
            tensors = hasattr(logits, "detach")
            logits = logits.float() if tensors else logits
            values, tokens = self.runner.best(logits, count)
            found = [x.cpu().numpy() if tensors else x for x in (values, tokens, logits)]
        best, first, all_of = (x if places is None else x[places] for x in found)
        return FewBest(best, first, all_of, states)

    def step(self, batch: Sequence[Query]) -> tuple[Any, list[State]]:
        """One forward pass, within `Runner.exclusive`: logits (rows, vocabulary), in a buffer that is used again, and states."""
        logits, states, places = self._forward(batch)
        return (logits if places is None else logits[places]), states

    def _forward(self, batch: Sequence[Query]) -> tuple[Any, list[State], list[int] | None]:
        """One forward pass: logits in the order of the rows run, states, and the row of each query (None: the same order)."""
        self._release_dropped()
        self._admit([state[0] for state, _ in batch])
        rows: list[Row] = [entry.sentence.row(prefix, slot) for (entry, slot), prefix in batch]
        order = self._row_order(rows)
        slots, logits = self.runner.step([rows[i] for i in order])
        places = sorted(range(len(order)), key=order.__getitem__)
        states = [(query.state[0], slots[at]) for query, at in zip(batch, places, strict=True)]
        return logits, states, None if order == list(range(len(order))) else places

    def _row_order(self, rows: Sequence[Row]) -> list[int]:
        """An order in which rows of an input are adjacent: the given one if they already are, as in one engine's batches."""
        first: dict[int, int] = {}
        for i, (sentence, *_) in enumerate(rows):
            first.setdefault(sentence.place, i)
        by_place = self.runner.decoder.by_place
        return sorted(range(len(rows)), key=lambda i: rows[i][0].place if by_place else first[rows[i][0].place])

    def _admit(self, entries: Sequence[CachedInput]) -> None:
        new = list({id(entry): entry for entry in entries if entry.sentence is None}.values())
        if new:
            for entry, sentence in zip(new, self.runner.admit([entry.prompt for entry in new]), strict=True):
                entry.sentence = sentence

    def _release_dropped(self) -> None:
        while self._dropped:
            self.runner.release(self._dropped.popleft())

    def cache_tokens(self) -> int:
        self._release_dropped()
        return self.runner.cache_tokens()


def _log_softmax(logits: Any) -> Any:
    """In a new array, since the step may overwrite its logits."""
    if hasattr(logits, "detach"):
        return logits.float().log_softmax(-1).clamp_(max=0).cpu().numpy()
    scores = np.empty(logits.shape, logits.dtype)
    for rows in row_blocks(len(scores)):
        part = scores[rows]
        part[...] = logits[rows]
        part -= part.max(-1, keepdims=True)
        part -= np.log(np.exp(part).sum(-1, keepdims=True))
    return scores


def cached_models_in(*models: Any) -> list[CachedModel]:
    """A `CachedModel` for each Hugging Face model reachable from these models' attributes, lists and dicts."""
    found: dict[int, CachedModel] = {}
    seen: set[int] = set()
    waiting: list[Any] = [value for model in models if model is not None for value in _parts_of(model)]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if getattr(each, "hugging_face", False) is True:
            with suppress(ValueError):  # no step agrees with this model: it scores from scratch
                found[id(each)] = CachedModel(each)
        elif isinstance(each, (list, tuple)):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, Model) or (hasattr(each, "start") and hasattr(each, "score")):
            waiting += _parts_of(each)
    return list(found.values())


def _parts_of(model: Any) -> list[Any]:
    return [model] if getattr(model, "hugging_face", False) is True else list(getattr(model, "__dict__", {}).values())


@contextmanager
def use_caches(models: Sequence[CachedModel]) -> Iterator[None]:
    """Within this context the models answer `start` and `score` through these caches, and other callers of the same models wait.
    Threads of the composed model itself do not: each forward pass takes the model's lock (`Runner.exclusive`)."""
    with ExitStack() as stack:
        for lock in sorted((record_of(each.model).composed_lock for each in models), key=id):  # in one order, against deadlock
            stack.enter_context(lock)
        before = [each.model.cached for each in models]
        for each in models:
            each.model.cached = each
        try:
            yield
        finally:
            for each, other in zip(models, before, strict=True):
                each.model.cached = other
