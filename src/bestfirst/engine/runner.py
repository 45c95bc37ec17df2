"""Runner: a model with its KV cache (`tree`) and encoder outputs (`sources`). Inputs are admitted, rows run, inputs released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from time import perf_counter
from typing import Any

from ..models.reader import Prompt
from ..models.text_model import TextModel
from ..settings import Budget
from .model_record import record_of


class Sentence:
    """One input in flight: its index among the sources, its prompt, and all cache slots that its search has taken."""

    __slots__ = ("offset", "place", "prompt", "prompt_slot", "slots", "start")

    def __init__(self, place: int, prompt: Sequence[int]) -> None:
        self.place = place
        self.prompt = prompt
        self.start = prompt[-1]  # the last prompt token, the row of the empty hypothesis
        self.offset = len(prompt) - 1  # position of `start`
        self.prompt_slot = 0  # slot of the prompt token before `start`
        self.slots: list[int] = []

    def row(self, tokens: Sequence[int], slot: int) -> Row:
        """The row that scores a hypothesis: its last token. `slot`: that of the token before it, unless that is the prompt's."""
        if not tokens:
            return self, self.prompt_slot, self.start, self.offset
        return self, slot, tokens[-1], self.offset + len(tokens)


Row = tuple[Sentence, int, int, int]
"""A token to run: its sentence, the slot of the previous token, the token id, its position."""


class Runner:
    """Runs rows of many inputs on one model with a decoder step (a `DecoderStep` or a `NativeDecoder`)."""

    def __init__(self, model: TextModel, decoder: Any) -> None:
        self.model = model
        self.decoder = decoder
        self.tree, self.sources = decoder.new_tree(model)
        self.lock = getattr(decoder, "lock", None) or record_of(model).lock  # held while this model runs
        self.seconds = 0.0  # spent in the model so far
        self._budget: Budget | None = None
        self._keeps_attention = False  # per runner, since runners share the decoder
        self._sentences: list[Sentence] = []

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the model's lock: no other thread runs the model meanwhile."""
        with self.decoder.mode(), self.lock:
            yield

    def budget(self) -> Budget:
        """The row budget for this model on this machine, measured on the first call."""
        if self._budget is None:
            record = record_of(self.model)
            with self.exclusive():
                self._budget = record.budget = record.budget or measured_budget(self.model, self.decoder)
        return self._budget

    def admit(self, prompts: Sequence[Prompt]) -> list[Sentence]:
        """Admits inputs: runs the encoder on all of them, and prefills the cache with their prompts."""
        begun = perf_counter()
        if self.model.encoder_decoder:
            places = self.decoder.add_inputs(self.model, prompts, self.sources)
        else:
            places = list(range(len(self._sentences), len(self._sentences) + len(prompts)))
        sentences = [Sentence(place, prompt.tokens) for place, prompt in zip(places, prompts, strict=True)]
        self._sentences += sentences
        self._read_prompts(sentences, prompts)
        self.seconds += perf_counter() - begun
        return sentences

    def _read_prompts(self, sentences: list[Sentence], prompts: Sequence[Prompt]) -> None:
        """Prefills the cache with each prompt except for its last token, which the root hypothesis scores."""
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
        """One forward pass. Returns each row's slot, and logits (rows, vocabulary). Rows of a sentence must be adjacent.

        `slots`: slots allocated for the rows in advance, if some rows are parents of others; parents come first.
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
        self.decoder.records_attention = self._keeps_attention
        logits = self.decoder.step(self.tree.rows(table, counts), self.tree, self.sources)
        self.decoder.records_attention = False
        self.seconds += perf_counter() - begun
        return slots, logits

    def best(self, logits: Any, width: int, allowed: Any = None) -> tuple[Any, Any]:
        """As `DecoderStep.best`, over the tokens that this model may generate."""
        return self.decoder.best(logits, width, self.model.banned, allowed)

    def keep_attention(self) -> None:
        """From now on, each step keeps its cross-attention weights. ValueError if the decoder cannot."""
        if not self.decoder.has_attention:
            raise ValueError(f"the attention of model {self.model.name!r} is not known here, and a coverage penalty needs it")
        self._keeps_attention = True

    def attention(self, rows: Sequence[Row]) -> list[Any]:
        """The last step's attention to each source token, for each row."""
        attention = self.decoder.attention
        return [attention[i, : self.sources.lengths[row[0].place]] for i, row in enumerate(rows)]

    def cache_tokens(self) -> int:
        """Tokens in the cache: one per scored hypothesis and prompt token, and the encoded sources."""
        return self.tree.used + sum(self.sources.lengths)

    def release(self, sentence: Sentence) -> None:
        """Releases an input: frees its slots and its index, which the last input takes over."""
        begun = perf_counter()
        self.tree.release(sentence.slots)
        with self.decoder.mode():
            last = self.sources.remove(sentence.place) if self.model.encoder_decoder else len(self._sentences) - 1
        self._sentences[last].place = sentence.place
        self._sentences[sentence.place] = self._sentences[last]
        self._sentences.pop()
        self.seconds += perf_counter() - begun


@contextmanager
def all_exclusive(*runners: Runner) -> Iterator[None]:
    """`exclusive` for several runners. Locks are taken in one order, against deadlock."""
    with ExitStack() as stack:
        for runner in sorted(runners, key=lambda runner: id(runner.lock)):
            stack.enter_context(runner.exclusive())
        yield


# -- the row budget that suits a model ------------------------------------------------------------------------------------

FEW, MANY = 1, 96  # row counts that are timed
LONG_STEP = 0.02  # seconds: if a step of FEW rows takes longer, of MIN_ROWS instead of MANY, so that the first call waits less
MIN_ROWS, MAX_ROWS = 48, 512  # rows per step; matmul kernels process 48 at a time
SLOW_STEP = 0.25  # seconds: if a step of FEW rows takes longer, the budget is MIN_ROWS
RATE_SHARE = 0.75  # of the peak throughput: more rows need more memory, and fewer of the rows scored ahead are needed
REPEATS = 5
SEARCH_STEP, SEARCH_ROW = 200e-6, 70e-6  # seconds that the search itself takes per step and per row


def measured_budget(model: TextModel, decoder: Any) -> Budget:
    """The row budget at which throughput reaches `RATE_SHARE` of its peak, if a step takes a constant time plus a time per row.

    All rows may be speculative: most of what the engine chooses is needed later (`docs/engine.md`), and the constant part of a
    step equals the cost of some dozens of rows.
    """
    few = step_seconds(model, decoder, FEW)
    if few > SLOW_STEP:
        return Budget(MIN_ROWS, free=MIN_ROWS, step_seconds=few)
    many = MANY if few < LONG_STEP else MIN_ROWS
    per_row = max((step_seconds(model, decoder, many) - few) / (many - FEW), 1e-9)
    enough = RATE_SHARE / (1 - RATE_SHARE) * (few / per_row - FEW)
    rows = min(MAX_ROWS, max(MIN_ROWS, MIN_ROWS * ceil(enough / MIN_ROWS)))
    alone = round(FEW + (few - FEW * per_row + SEARCH_STEP) / (per_row + SEARCH_ROW))  # 1 + the cost of an empty step in rows
    return Budget(rows, free=rows, alone=max(2, alone), step_seconds=few)


def step_seconds(model: TextModel, decoder: Any, rows: int) -> float:
    """The time of a step of this many rows of one input, each with one previous token: the minimum of a few runs."""
    tree, sources = decoder.new_tree(model, tokens=16)
    table = [(1, 1, slot, 0, 0) for slot in tree.allocate(rows)]
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < SLOW_STEP:
        begun = perf_counter()
        logits = decoder.step(tree.rows(table, [rows]), tree, sources)
        decoder.best(logits, 1)[1].tolist()
        times.append(perf_counter() - begun)
    return min(times)
