"""SmallerModel: a drafter that is a model with the same vocabulary and a KV cache of its own."""

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
from .cached_model import runner_of
from .runner import Runner, Sentence

ROWS_PER_STEP = 4  # rows per step of the smaller model
SUCCESSORS = 4  # per hypothesis
MIN_LOGPROB = log(0.02)  # less likely continuations are not guessed
LATER_PREFIX = log(0.4)  # each prefix counts as this much less likely than the one before it


@dataclass(eq=False, slots=True)
class DraftedInput:
    """An input at the smaller model. `known`, by prefix: its slot in the cache, and the best (logprob, token) pairs after it."""

    prompt: Prompt
    sentence: Sentence | None = None
    known: dict[tuple[int, ...], tuple[int, list[tuple[float, int]]]] = field(default_factory=dict)


class SmallerModel(Drafter):
    """Drafts the most probable tree of a smaller model's continuations, with branches where it is uncertain.

    `depth`: steps of the smaller model per step of the larger one.
    """

    name = "model"
    optional = False  # the user chose it, so it is not switched off by its timings

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
        """Created on first use: on a GPU the device's searches run the model instead."""
        return runner_of(self.model)

    def start(self, source: Any) -> DraftedInput:
        given = source.payload
        if not isinstance(given, Prompt) or (given.source is None) == self.model.encoder_decoder:
            raise ValueError(f"model {self.model.name!r} cannot read what the larger one reads")
        return DraftedInput(Prompt(given.source, given.tokens, given.shown, length=given.length if given.hidden is None else 0))

    def guess(self, memory: DraftedInput, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        return self.guess_all(memory, [prefix], n)[0]

    def guess_all(self, memory: DraftedInput, prefixes: Sequence[tuple[int, ...]], n: int) -> list[list[Continuation]]:
        with self._runner.exclusive():
            if any(max(prefix, default=0) >= self.model.vocabulary for prefix in prefixes):
                return []  # tokens that it does not have
            if memory.sentence is None:
                (memory.sentence,) = self._runner.admit([memory.prompt])
            new = {prefix[:i]: None for prefix in prefixes for i in range(len(prefix) + 1)}
            self._score(memory, [prefix for prefix in new if prefix not in memory.known])
            return self._grow_trees(memory, prefixes, n)

    def _grow_trees(self, memory: DraftedInput, prefixes: Sequence[tuple[int, ...]], n: int) -> list[list[Continuation]]:
        """Best-first expansion from all prefixes, a few hypotheses per step."""
        heap: list[tuple[float, tuple[int, ...], int, float]] = []  # cost, tokens, index of its prefix, the last token's logprob
        found: list[list[Continuation]] = [[] for _ in prefixes]
        paths: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, int], ...]] = {}
        for i, prefix in enumerate(prefixes):
            paths[i, prefix] = ()
            self._push_successors(memory, heap, -i * LATER_PREFIX, prefix, i)
        chosen = steps = 0
        while heap and chosen < n and steps < self.depth:
            batch: list[tuple[float, tuple[int, ...], int]] = []
            while heap and len(batch) < ROWS_PER_STEP and chosen < n:
                cost, tokens, i, logprob = heapq.heappop(heap)
                paths[i, tokens] = (*paths[i, tokens[:-1]], (tokens[-1], int(10 * exp(logprob))))
                found[i].append(paths[i, tokens])
                batch.append((cost, tokens, i))
                chosen += 1
            self._score(memory, [tokens for _, tokens, _ in batch if tokens not in memory.known])
            steps += 1
            for cost, tokens, i in batch:
                self._push_successors(memory, heap, cost, tokens, i)
        return found

    def _push_successors(self, memory: DraftedInput, heap: list[Any], cost: float, tokens: tuple[int, ...], i: int) -> None:
        for logprob, token in memory.known[tokens][1]:
            if token not in self._end and cost - logprob <= -MIN_LOGPROB:
                heapq.heappush(heap, (cost - logprob, (*tokens, token), i, logprob))

    def _score(self, memory: DraftedInput, prefixes: Sequence[tuple[int, ...]]) -> None:
        """One step for these prefixes. Some may be ancestors of others; ancestors come first."""
        if not prefixes:
            return
        sentence: Sentence = memory.sentence  # type: ignore[assignment]
        slots = self._runner.tree.allocate(len(prefixes))
        at = {prefix: slot for prefix, (slot, _) in memory.known.items()} | dict(zip(prefixes, slots, strict=True))
        _, logits = self._runner.step([sentence.row(prefix, at.get(prefix[:-1], 0)) for prefix in prefixes], slots)
        values, tokens = self._runner.decoder.best(logits, min(SUCCESSORS, logits.shape[1]))
        for prefix, slot, best, each in zip(prefixes, slots, values.tolist(), tokens.tolist(), strict=True):
            memory.known[prefix] = (slot, list(zip(best, each, strict=True)))

    def finish(self, memory: DraftedInput, outputs: Sequence[tuple[int, ...]]) -> None:
        if memory.sentence is not None:
            with self._runner.exclusive():
                self._runner.release(memory.sentence)
            memory.sentence = None
