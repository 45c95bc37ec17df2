"""Flight: inputs are let in, steps run until they are done, results come back. The host only looks on, a few steps behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...search import Result
from .entry import PIECE, TOKENS, Entrant, Entry
from .graphs import Graphs
from .landing import Landing
from .mail import Mail, sent
from .rows import ACTIVE, ALL_ROWS, BROKEN, DONE, FLYING, FREE, LEAVING, ROWS, STEPS
from .state import Shape, State
from .step import CHEAP, EARLY, RATES, Step
from .weights import Weights

if TYPE_CHECKING:
    from ...models.transformers import TransformersModel

BUCKETS = (16, 64, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144)  # rows in a step: a graph for each
BURST = 4  # steps between two looks
AHEAD = 1  # looks outstanding: so many bursts are queued while the host waits for the one before
FEW = 64  # inputs that are not worth a landing while others fly
BEHIND = 4  # landings whose results may wait for a better time
SLICE = 32  # results that are made between two glances at the device


@dataclass
class Look:
    """The device as it will be once all that is queued has run; who was let in by then, and how often some were taken out."""

    mail: Mail
    let_in: int
    taken_out: int


class Flight:
    """Decodes inputs on one device, in rooms of one `Shape`. Kept with the model: its graphs serve the next decode too."""

    def __init__(self, model: TransformersModel, shape: Shape, weights: Weights | None = None, step: type[Step] = Step) -> None:
        self.model = model
        self.shape = shape
        self.weights = weights or Weights(model.model, shape.lengths, shape.source)
        self.state = State(shape, self.weights, model.eos, model.banned)
        self.graphs = Graphs(self.weights.device)
        self.entry = Entry(self.state, self.weights, self.graphs)
        self.step = step(self.state, self.weights)
        self.step.rows(BUCKETS[-1])
        self.burst, self.ahead = (BURST, AHEAD) if self.weights.device.type == "cuda" else (1, 0)
        self.trusted = False  # whether its answers were checked
        self._clear()

    def _clear(self) -> None:
        self.state.clear()
        self._slots: list[Entrant | None] = [None] * self.shape.inputs
        self._most = self.shape.inputs  # in flight
        self._waiting: deque[Entrant] = deque()
        self._landings: deque[Landing] = deque()
        self._looks: deque[Look] = deque()
        self.in_flight = self._source_tokens = 0  # inputs that have a slot, and their tokens
        self._active = self._queued = self._let_in = self._taken_out = 0
        self.most_in_flight = self.most_tokens = self.rows = self.steps = 0
        self.seconds = 0.0  # of the last run, from the first input let in to the last that was done

    def run(self, batches: Iterator[list[Entrant]]) -> Iterator[tuple[Entrant, Result]]:
        """Decode all; yields each with its result. Batches are asked for, and results made, while the device works.

        If memory does not do for all that are in flight, fewer are let in from then on.
        """
        begun = perf_counter()
        self._clear()
        more = True
        while True:
            if more and len(self._waiting) < PIECE:
                batch = next(batches, [])
                self._waiting.extend(batch)
                more = bool(batch)
            self._admit()
            if not self.in_flight:
                break
            self._burst()
            if len(self._looks) > self.ahead:
                look = self._looks.popleft()
                while self._time_for_results(look):
                    yield from self._some_results()
                self._heed(look)
        while self._landings:
            yield from self._some_results()
        counters = self.state.counters.tolist()
        self.rows, self.steps = counters[ALL_ROWS], counters[STEPS]
        self.seconds = perf_counter() - begun

    # -- letting in -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _admit(self) -> None:
        """Encode some of those that wait, as far as there is room, and put each in a free slot."""
        entrants: list[Entrant] = []
        tokens, room = 0, min(PIECE, self._most - self.in_flight)
        while self._waiting and len(entrants) < room:
            tokens += len(self._waiting[0].source.payload.source)
            if tokens > TOKENS and entrants:
                break
            entrants.append(self._waiting.popleft())
        if not entrants:
            return
        many = len(entrants)
        slots = list(islice((slot for slot, taken in enumerate(self._slots) if taken is None), many))
        self.entry(entrants, slots)
        for slot, entrant in zip(slots, entrants, strict=True):
            self._slots[slot] = entrant
        self._source_tokens += sum(len(entrant.source.payload.source) for entrant in entrants)
        self.in_flight += many
        self._let_in += many
        self._active += many
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    # -- running -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _burst(self) -> None:
        """Some steps, and a look at what they will have done."""
        rows = self._rows_for(self._active)
        for _ in range(self.burst):
            self.graphs.run(("step", rows), lambda: self.step(rows))
        self._queued += self.burst
        self._looks.append(Look(Mail(self.state.board), self._let_in, self._taken_out))

    def _rows_for(self, active: int) -> int:
        """The least bucket that these inputs will need: a step takes as many of its rows as are likely to be needed (`share`).

        The wider the beam and the harder the input, the more of a length is needed. No more rows are of use than inputs can name.
        """
        rate = RATES[self.shape.k > 10][self._queued > EARLY]
        wanted = min(active * rate + CHEAP, active * self.shape.picks)
        return next((rows for rows in BUCKETS if rows >= wanted), BUCKETS[-1])

    def _heed(self, look: Look) -> None:
        """Take out inputs that are done, once they are many; or, if no node is free, let fewer be in flight."""
        board = look.mail.wait()
        counters, status = board[:8], board[8:]
        if counters[BROKEN]:
            raise ValueError("the model's scores are not finite: check its weights and dtype")
        self._active = int(counters[ACTIVE]) + self._let_in - look.let_in
        self.most_tokens = max(self.most_tokens, self._source_tokens + self.shape.nodes - 1 - int(counters[FREE]))
        if look.taken_out < self._taken_out:
            return  # of a time when others had these slots
        done = np.flatnonzero(status == DONE).tolist()
        starved = counters[ACTIVE] > 0 and counters[ROWS] == 0
        enough = self._most // 4 if self._waiting else max(self.in_flight // 4, FEW)
        if done and (starved or len(done) >= min(enough, self.in_flight)):
            self._land(done)
        elif starved:
            self._make_room(np.flatnonzero(status == FLYING).tolist())

    # -- results -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _land(self, done: Sequence[int]) -> None:
        """Results of these slots are made when they are here; the slots are free."""
        slots = sent(np.array(done), self.weights.device)
        entrants = self._take_out(done)
        self._landings.append(Landing(self.model, self.state, entrants, slots))
        self.state.reclaim()

    @torch.inference_mode()
    def _make_room(self, flying: Sequence[int]) -> None:
        """The later half of the inputs in flight begin again when there is room."""
        if len(flying) < 2:
            raise torch.OutOfMemoryError("one input alone needs more memory for its search than there is")
        leaving = flying[len(flying) // 2 :]
        self.state.status.index_fill_(0, sent(np.array(leaving), self.weights.device).long(), LEAVING.value)
        self.state.reclaim()
        self._waiting.extendleft(reversed(self._take_out(leaving)))
        self._most = self.in_flight

    def _take_out(self, slots: Sequence[int]) -> list[Entrant]:
        entrants = [entrant for slot in slots if (entrant := self._slots[slot]) is not None]
        for slot in slots:
            self._slots[slot] = None
        self.in_flight -= len(entrants)
        self._source_tokens -= sum(len(entrant.source.payload.source) for entrant in entrants)
        self._taken_out += 1
        return entrants

    def _time_for_results(self, look: Look) -> bool:
        """While the device works they cost nothing; and they must not pile up."""
        landed = self._landings
        return len(landed) > BEHIND or (bool(landed) and landed[0].here() and not look.mail.here())

    def _some_results(self) -> list[tuple[Entrant, Result]]:
        """The next few of what has landed."""
        found = list(islice(self._landings[0].results, SLICE))
        if len(found) < SLICE:
            self._landings.popleft()
        return found
