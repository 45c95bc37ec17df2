"""CachedModel: a Hugging Face model inside another model (an ensemble, a wrapper), asked like any model and run on the tree.

    trees = [CachedModel(each) for each in inside(model)]
    with running(trees):                # meanwhile the `start` and `score` of each of them are these
        model.score(batch)

An input's keys and values are held as long as anybody holds a state of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from math import inf
from typing import Any

import numpy as np

from ..models import Model, Query, Scored
from ..models.reader import Prompt
from ..models.score_arrays import FewBest, row_blocks
from ..models.text_model import TextModel
from .model_record import record_of
from .runner import Row, Runner, Sentence


def step_of(model: Any) -> tuple[Any, Any]:
    """What runs the decoder of a model, a `DecoderStep` or its like, and the context in which all of it is done."""
    if model.decoder is not None:
        return model.decoder, nullcontext
    import torch

    from .steps.step_choice import step_for

    with record_of(model).lock:  # it may try which step agrees with the model
        return step_for(model), torch.inference_mode


class Held:
    """An input of a `CachedModel`: read, and let in with the others of its first batch. What it holds is given back with it."""

    __slots__ = ("_dead", "prompt", "sentence")

    def __init__(self, prompt: Prompt, dead: deque[Sentence]) -> None:
        self.prompt = prompt
        self.sentence: Sentence | None = None
        self._dead = dead

    def __del__(self) -> None:
        if self.sentence is not None:
            self._dead.append(self.sentence)  # to be released between two steps: this may be called in the midst of one


State = tuple[Held, int]
"""An input, and the slot of the last token that was scored of it; 0 before there is one."""


class CachedModel:
    """Runs rows of one model for whoever asks it."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.runner = Runner(model, *step_of(model))
        self._dead: deque[Sentence] = deque()

    def start(self, source: Any) -> State:
        """As `Model.start`."""
        return Held(self.model.read(source).payload, self._dead), 0

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """As `Model.score`, in one forward pass; scores are rows of one array."""
        with self.runner.at_work():
            logits, states = self.step(batch)
            scores = _log_softmax(logits)
        scores[:, list(self.model.banned)] = -inf
        return [Scored(row, state) for row, state in zip(scores, states, strict=True)]

    def best(self, batch: Sequence[Query], count: int) -> FewBest:
        """The first `count` tokens of each, and its logits, which hold until the next step."""
        with self.runner.at_work():
            logits, states, places = self._run(batch)
            tensors = hasattr(logits, "detach")
            logits = logits.float() if tensors else logits
            values, tokens = self.runner.best(logits, count)
            found = [x.cpu().numpy() if tensors else x for x in (values, tokens, logits)]
        best, first, all_of = (x if places is None else x[places] for x in found)
        return FewBest(best, first, all_of, states)

    def step(self, batch: Sequence[Query]) -> tuple[Any, list[State]]:
        """One forward pass: logits (rows, vocabulary), in memory that is used again, and states. For a runner `at_work`."""
        logits, states, places = self._run(batch)
        return (logits if places is None else logits[places]), states

    def _run(self, batch: Sequence[Query]) -> tuple[Any, list[State], list[int] | None]:
        """One forward pass: logits as they come, states, and where each query's row is; None: where it was."""
        self._let_go()
        self._admit([state[0] for state, _ in batch])
        rows: list[Row] = [held.sentence.row(prefix, slot) for (held, slot), prefix in batch]
        order = self._order(rows)
        slots, logits = self.runner.step([rows[i] for i in order])
        places = sorted(range(len(order)), key=order.__getitem__)
        states = [(query.state[0], slots[at]) for query, at in zip(batch, places, strict=True)]
        return logits, states, None if order == list(range(len(order))) else places

    def _order(self, rows: Sequence[Row]) -> list[int]:
        """Rows of an input stand together, as they do already where one engine asks: then rows stay as they are."""
        first: dict[int, int] = {}
        for i, (sentence, *_) in enumerate(rows):
            first.setdefault(sentence.place, i)
        by_place = self.runner.decoder.by_place
        return sorted(range(len(rows)), key=lambda i: rows[i][0].place if by_place else first[rows[i][0].place])

    def _admit(self, inputs: Sequence[Held]) -> None:
        new = list({id(held): held for held in inputs if held.sentence is None}.values())
        if new:
            for held, sentence in zip(new, self.runner.admit([held.prompt for held in new]), strict=True):
                held.sentence = sentence

    def _let_go(self) -> None:
        while self._dead:
            self.runner.release(self._dead.popleft())

    def cache_tokens(self) -> int:
        self._let_go()
        return self.runner.cache_tokens()


def _log_softmax(logits: Any) -> Any:
    """As an array of its own: a step may use the memory of its logits again."""
    if hasattr(logits, "detach"):
        return logits.float().log_softmax(-1).clamp_(max=0).cpu().numpy()
    scores = np.empty(logits.shape, logits.dtype)
    for rows in row_blocks(len(scores)):
        part = scores[rows]
        part[...] = logits[rows]
        part -= part.max(-1, keepdims=True)
        part -= np.log(np.exp(part).sum(-1, keepdims=True))
    return scores


def cached(*models: Any) -> list[CachedModel]:
    """One for each Hugging Face model that these are made of, wherever they keep it."""
    found: dict[int, CachedModel] = {}
    seen: set[int] = set()
    waiting: list[Any] = [value for model in models if model is not None for value in _parts(model)]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if getattr(each, "hugging_face", False) is True:
            with suppress(ValueError):  # no step gives what it gives: it scores from scratch
                found[id(each)] = CachedModel(each)
        elif isinstance(each, (list, tuple)):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, Model) or (hasattr(each, "start") and hasattr(each, "score")):
            waiting += _parts(each)
    return list(found.values())


def _parts(model: Any) -> list[Any]:
    return [model] if getattr(model, "hugging_face", False) is True else list(getattr(model, "__dict__", {}).values())


@contextmanager
def running(trees: Sequence[CachedModel]) -> Iterator[None]:
    """Meanwhile these models are asked through their trees, and by no other call: it waits. Not so the threads of this one, where
    what is made of the models asks them on several: a model itself is locked for a pass of it (`Runner.at_work`)."""
    with ExitStack() as stack:
        for lock in sorted((record_of(tree.model).asked for tree in trees), key=id):  # in one order: no two wait for each other
            stack.enter_context(lock)
        before = [tree.model.cached for tree in trees]
        for tree in trees:
            tree.model.cached = tree
        try:
            yield
        finally:
            for tree, other in zip(trees, before, strict=True):
                tree.model.cached = other
