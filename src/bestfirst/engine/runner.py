"""Runner: one model with its tree and sources. Inputs are admitted, rows are run, inputs are released."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ..models.reader import Prompt
from ..models.text_model import TextModel
from ..settings import Budget
from .model_record import record_of


class Sentence:
    """One input in flight: its place among the sources, its prompt, and every slot its search has taken."""

    __slots__ = ("offset", "place", "prompt", "prompt_slot", "slots", "start")

    def __init__(self, place: int, prompt: Sequence[int]) -> None:
        self.place = place
        self.prompt = prompt
        self.start = prompt[-1]  # the token that the empty hypothesis ends in
        self.offset = len(prompt) - 1  # its position
        self.prompt_slot = 0  # where the token before it lies
        self.slots: list[int] = []

    def row(self, tokens: Sequence[int], slot: int) -> Row:
        """The last token of a hypothesis, to be scored; `slot`: where the one before it lies, unless that is the prompt's."""
        if not tokens:
            return self, self.prompt_slot, self.start, self.offset
        return self, slot, tokens[-1], self.offset + len(tokens)


Row = tuple[Sentence, int, int, int]
"""A token to be scored: its sentence, the slot of the token before it, itself, and its position."""


class Runner:
    """Runs rows of many inputs on one model by a step; `mode`: the context in which all of it is done."""

    def __init__(self, model: TextModel, decoder: Any, mode: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model = model
        self.decoder = decoder
        self.mode = mode
        self.tree, self.sources = decoder.new_tree(model)
        self.lock = (
            getattr(decoder, "lock", None) or record_of(model).lock
        )  # who runs the model: others wait, if on other threads
        self.seconds = 0.0  # spent in the model
        self._watching = False  # whether steps are to tell their attention; the decoder is others' too
        self._places: list[Sentence] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While this lasts nobody else runs the model, and torch takes no notes."""
        with self.mode(), self.lock:
            yield

    def budget(self) -> Budget:
        """The row budget that suits this model here, measured the first time."""
        shared = record_of(self.model)
        with self.at_work():
            if shared.budget is None:
                shared.budget = measure(self.decoder, lambda: self.decoder.new_tree(self.model, tokens=16))
            return shared.budget

    def admit(self, prompts: Sequence[Prompt]) -> list[Sentence]:
        """Take inputs in: run the encoder on all of them, and fill the tree with their prompts."""
        begun = perf_counter()
        if self.model.encoder_decoder:
            places = self.decoder.add_inputs(self.model, prompts, self.sources)
        else:
            places = list(range(len(self._places), len(self._places) + len(prompts)))
        sentences = [Sentence(place, prompt.tokens) for place, prompt in zip(places, prompts, strict=True)]
        self._places += sentences
        self._read_prompts(sentences, prompts)
        self.seconds += perf_counter() - begun
        return sentences

    def _read_prompts(self, sentences: list[Sentence], prompts: Sequence[Prompt]) -> None:
        """Fill the tree with every prompt but for its last token, which the root's own row will bring."""
        table, counts = [], []
        for sentence, prompt in zip(sentences, prompts, strict=True):
            if len(prompt.tokens) == 1:
                continue
            sentence.slots = self.tree.allocate(len(prompt.tokens) - 1)
            parent = 0
            for position, slot in enumerate(sentence.slots):
                table.append((prompt.tokens[position], position, slot, parent, sentence.place))
                parent = slot
            sentence.prompt_slot = parent
            counts.append(len(sentence.slots))
        if table:
            self.decoder.prefill(self.tree.rows(table, counts), self.tree, self.sources)

    def step(self, rows: Sequence[Row], slots: list[int] | None = None) -> tuple[list[int], Any]:
        """One forward pass. Returns each row's slot, and logits (rows, vocabulary). Rows of a sentence stand together.

        `slots`: those taken for the rows, where some of them are the parents of others, which come behind them.
        """
        slots = self.tree.allocate(len(rows)) if slots is None else slots
        table: list[tuple[int, int, int, int, int]] = []
        counts: list[int] = []
        before: Sentence | None = None
        for (sentence, parent, token, position), slot in zip(rows, slots, strict=True):
            table.append((token, position, slot, parent, sentence.place))
            sentence.slots.append(slot)
            if sentence is before:
                counts[-1] += 1
            else:
                counts.append(1)
                before = sentence
        begun = perf_counter()
        self.decoder.records_attention = self._watching
        logits = self.decoder.step(self.tree.rows(table, counts), self.tree, self.sources)
        self.decoder.records_attention = False
        self.seconds += perf_counter() - begun
        return slots, logits

    @cached_property
    def _banned(self) -> Any:
        """The tokens that never come, as the decoder takes them; None where there are none."""
        if not self.model.banned:
            return None
        if self.model.decoder is not None:
            return np.array(self.model.banned)
        import torch

        return torch.tensor(self.model.banned, device=self.model.model.device)  # type: ignore[attr-defined]

    def best(self, logits: Any, width: int, allowed: Any = None) -> tuple[Any, Any]:
        """As `DecoderStep.best`, of the tokens that may come in this model."""
        return self.decoder.best(logits, width, self._banned, allowed)

    def watch(self) -> None:
        """From now on, keep each step's attention to the source."""
        if not self.decoder.has_attention:
            raise ValueError(f"the attention of model {self.model.name!r} is not known here, and a coverage penalty needs it")
        self._watching = True

    def attention(self, rows: Sequence[Row]) -> list[Any]:
        """The last step's attention to each source token, for each row."""
        seen = self.decoder.attention
        return [seen[i, : self.sources.lengths[row[0].place]] for i, row in enumerate(rows)]

    def cache_tokens(self) -> int:
        """Tokens held: one for each scored hypothesis and prompt token, and the sources."""
        return self.tree.used + sum(self.sources.lengths)

    def release(self, sentence: Sentence) -> None:
        """Let an input go: its slots and its place are free; the last input moves to that place."""
        begun = perf_counter()
        self.tree.release(sentence.slots)
        with self.mode():
            last = self.sources.remove(sentence.place) if self.model.encoder_decoder else len(self._places) - 1
        self._places[last].place = sentence.place
        self._places[sentence.place] = self._places[last]
        self._places.pop()
        self.seconds += perf_counter() - begun


@contextmanager
def all_at_work(*runners: Runner) -> Iterator[None]:
    """Several at once. Locks are taken in one order, so that no two threads wait for each other."""
    with ExitStack() as stack:
        for runner in sorted(runners, key=lambda runner: id(runner.lock)):
            stack.enter_context(runner.at_work())
        yield


# -- the row budget that suits a model ------------------------------------------------------------------------------------

FEW, MANY = 1, 96  # rows that are timed
LEAST, MOST = 48, 512  # rows in a step; products work through 48 at a time
SLOW = 0.25  # seconds: a step with FEW rows that takes so long gets no more than it has to
SHARE = 0.75  # of the best rate there is: more rows are more memory, and less of what is scored ahead is needed
TIMES = 5
STEP, ROW = 200e-6, 70e-6  # seconds of a search, for each step and for each row


def measure(decoder: Any, room: Callable[[], tuple[Any, Any]]) -> Budget:
    """As many rows as it takes to come near the model's best rate, if a step takes a time of its own and one for each row.

    All of them may be scored ahead of their turn: most of what the engine chooses comes to be needed (`docs/engine.md`), and
    a step costs as much as some dozens of rows before it has one.

    `room`: makes a tree and sources that hold one input.
    """
    few = seconds(decoder, FEW, *room())
    if few > SLOW:
        return Budget(LEAST, free=LEAST)
    many = seconds(decoder, MANY, *room())
    each = max((many - few) / (MANY - FEW), 1e-9)
    enough = SHARE / (1 - SHARE) * (few / each - FEW)
    rows = min(MOST, max(LEAST, LEAST * ceil(enough / LEAST)))
    alone = round(FEW + (few - FEW * each + STEP) / (each + ROW))  # guesses that cost as much as a step does before it has rows
    return Budget(rows, free=rows, alone=max(2, alone))


def seconds(decoder: Any, rows: int, tree: Any, sources: Any) -> float:
    """The time of a step with so many rows, each with one token before it: the best of a few."""
    table = [(1, 1, slot, 0, 0) for slot in tree.allocate(rows)]
    times: list[float] = []
    while len(times) < TIMES and sum(times) < SLOW:
        begun = perf_counter()
        logits = decoder.step(tree.rows(table, [rows]), tree, sources)
        decoder.best(logits, 1, None)[1].tolist()
        times.append(perf_counter() - begun)
    return min(times)
