"""SmallerModel: a drafter that is a model with the same vocabulary, on a tree of its own."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log
from typing import Any

from ..drafting import Continuation, Drafter
from ..models.reader import Prompt
from ..models.text_model import TextModel
from .cached_model import step_of
from .runner import Runner, Sentence

WIDTH = 4  # rows of a step that guesses
SEVERAL = 4  # successors of a hypothesis that are looked at
LEAST = log(0.02)  # what is less likely is not guessed
BEHIND = log(0.4)  # of each prefix, against the one before it


@dataclass(eq=False, slots=True)
class Followed:
    """An input at the smaller model: by prefix, where its last token lies, and the best tokens after it."""

    prompt: Prompt
    sentence: Sentence | None = None
    known: dict[tuple[int, ...], tuple[int, list[tuple[float, int]]]] = field(default_factory=dict)


class SmallerModel(Drafter):
    """Guesses what a smaller model would write: the likeliest tree of it, a branch wherever it is unsure.

    `depth`: steps of the smaller model for one of the larger.
    """

    name = "model"
    optional = False  # whoever trains one for it knows what for

    def __init__(self, model: TextModel, depth: int = 6) -> None:
        if not model.hugging_face:
            raise ValueError(f"a smaller model is one that bestfirst.load or bestfirst.wrap gives, got {type(model).__name__}")
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.model = model
        self.depth = depth
        self._end = frozenset(model.eos)

    @cached_property
    def _runner(self) -> Runner:
        """Made where it is asked: on a GPU the searches there run it."""
        return Runner(self.model, *step_of(self.model))

    def start(self, source: Any) -> Followed:
        given = source.payload
        if not isinstance(given, Prompt) or (given.source is None) == self.model.encoder_decoder:
            raise ValueError(f"model {self.model.name!r} cannot read what the larger one reads")
        return Followed(Prompt(given.source, given.tokens, given.shown, length=given.length if given.hidden is None else 0))

    def guess(self, memory: Followed, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        return self.guess_all(memory, [prefix], n)[0]

    def guess_all(self, memory: Followed, prefixes: Sequence[tuple[int, ...]], n: int) -> list[list[Continuation]]:
        with self._runner.at_work():
            if any(max(prefix, default=0) >= self.model.vocabulary for prefix in prefixes):
                return []  # what it cannot read
            if memory.sentence is None:
                (memory.sentence,) = self._runner.admit([memory.prompt])
            new = {prefix[:i]: None for prefix in prefixes for i in range(len(prefix) + 1)}
            self._score(memory, [prefix for prefix in new if prefix not in memory.known])
            return self._grow(memory, prefixes, n)

    def _grow(self, memory: Followed, prefixes: Sequence[tuple[int, ...]], n: int) -> list[list[Continuation]]:
        """Best first, a few at a time."""
        waiting: list[tuple[float, tuple[int, ...], int, float]] = []  # how unlikely, tokens, which prefix, its own probability
        found: list[list[Continuation]] = [[] for _ in prefixes]
        paths: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, int], ...]] = {}
        for i, prefix in enumerate(prefixes):
            paths[i, prefix] = ()
            self._wait(memory, waiting, -i * BEHIND, prefix, i)
        chosen = steps = 0
        while waiting and chosen < n and steps < self.depth:
            some: list[tuple[float, tuple[int, ...], int]] = []
            while waiting and len(some) < WIDTH and chosen < n:
                cost, tokens, i, own = heapq.heappop(waiting)
                paths[i, tokens] = (*paths[i, tokens[:-1]], (tokens[-1], int(10 * exp(own))))
                found[i].append(paths[i, tokens])
                some.append((cost, tokens, i))
                chosen += 1
            self._score(memory, [tokens for _, tokens, _ in some if tokens not in memory.known])
            steps += 1
            for cost, tokens, i in some:
                self._wait(memory, waiting, cost, tokens, i)
        return found

    def _wait(self, memory: Followed, waiting: list[Any], cost: float, tokens: tuple[int, ...], i: int) -> None:
        for own, token in memory.known[tokens][1]:
            if token not in self._end and cost - own <= -LEAST:
                heapq.heappush(waiting, (cost - own, (*tokens, token), i, own))

    def _score(self, memory: Followed, prefixes: Sequence[tuple[int, ...]]) -> None:
        """One step, for prefixes of which some may be the beginnings of others; those come first."""
        if not prefixes:
            return
        sentence: Sentence = memory.sentence  # type: ignore[assignment]
        slots = self._runner.tree.allocate(len(prefixes))
        at = {prefix: slot for prefix, (slot, _) in memory.known.items()} | dict(zip(prefixes, slots, strict=True))
        _, logits = self._runner.step([sentence.row(prefix, at.get(prefix[:-1], 0)) for prefix in prefixes], slots)
        values, tokens = self._runner.decoder.best(logits, min(SEVERAL, logits.shape[1]), None)
        for prefix, slot, best, each in zip(prefixes, slots, values.tolist(), tokens.tolist(), strict=True):
            memory.known[prefix] = (slot, list(zip(best, each, strict=True)))

    def finish(self, memory: Followed, outputs: Sequence[tuple[int, ...]]) -> None:
        if memory.sentence is not None:
            with self._runner.at_work():
                self._runner.release(memory.sentence)
            memory.sentence = None
