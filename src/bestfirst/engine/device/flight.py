"""Flight: inputs are let in, steps run until they are done, results come back. The host only looks on, a few steps behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...search import Answer, Result
from .answers import settle
from .rows import ACTIVE, ALL_ROWS, BROKEN, FREE, ROWS, STEPS
from .state import Shape, State, power
from .step import Step
from .weights import Weights

if TYPE_CHECKING:
    from ...models.scorer import Source
    from ...models.transformers import TransformersModel

BUCKETS = (16, 64, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144)  # rows in a step: a graph for each
EARLY = 32  # steps: inputs that take more are hard, and most of what is scored ahead for them is needed
RATES = ((1.25, 2.0), (2.0, 4.0))  # rows for each active input, early and later; with a beam of up to 10, and beyond
CHEAP = 256  # rows that cost little more than one, beside what is needed
BURST = 2  # steps between two looks
BEHIND = 12  # steps queued for the other inputs before results are made
AHEAD = 2  # looks outstanding: so many bursts are queued while the host waits for the one before


@dataclass
class Entrant:
    """An input that waits: its number, what the model reads, and the most tokens of its output."""

    index: int
    source: Source
    n_max: int


class Flight:
    """Decodes inputs on one device, in rooms of one `Shape`. Kept with the model: its graphs serve the next decode too."""

    def __init__(self, model: TransformersModel, shape: Shape, weights: Weights | None = None, step: type[Step] = Step) -> None:
        self.model = model
        self.shape = shape
        self.weights = weights or Weights(model.model, shape.lengths)
        self.state = State(shape, self.weights, model.eos, model.banned)
        self.step = step(self.state, self.weights)
        self.step.rows(BUCKETS[-1])
        self.cuda = self.weights.device.type == "cuda"
        self.graphs: dict[int, Any] = {}
        self._pool: Any = None
        self._slots: list[Entrant | None] = [None] * shape.inputs
        self.in_flight = 0  # inputs that have a slot
        self._queued = 0  # steps of this run
        self.most_in_flight = self.most_tokens = self.rows = self.steps = 0
        self.seconds = 0.0  # of the last run, from the first input let in to the last that was done
        self.trusted = False  # whether its answers were checked

    # -- letting in -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def admit(self, entrants: Sequence[Entrant]) -> None:
        """Encode inputs, the longest first, in chunks of like length, and put each in a free slot.

        A step is queued after each, so that the device is not idle while the host prepares the next.
        """
        free = [slot for slot, taken in enumerate(self._slots) if taken is None]
        before = self.in_flight
        for start, end in chunks([len(entrant.source.payload.source) for entrant in entrants]):
            self._admit(entrants[start:end], free[start:end])
            self._run_step(self._rows_for(before + end))
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def _admit(self, entrants: Sequence[Entrant], slots: list[int]) -> None:
        offset = len(self.shape.prompt) - 1
        sources = [entrant.source.payload.source for entrant in entrants]
        longest = max(map(len, sources))
        numbers = np.zeros((3 + longest, len(entrants)), dtype=np.int32)
        numbers[:3] = slots, [entrant.n_max + offset for entrant in entrants], [len(source) for source in sources]
        tokens = np.fromiter(chain.from_iterable(sources), np.int32)
        numbers[3:].T[np.arange(longest) < numbers[2][:, None]] = tokens
        given = torch.from_numpy(numbers).to(self.weights.device, non_blocking=True)
        places, limits, lengths = given[:3].unbind(0)
        self.state.source[places.long(), :longest] = self.weights.source_keys(given[3:].T, lengths)
        self.state.begin(places, limits, lengths)
        for slot, entrant in zip(slots, entrants, strict=True):
            self._slots[slot] = entrant
        self.in_flight += len(slots)

    # -- running -----------------------------------------------------------------------------------------------------------

    def run(self, batches: Iterator[list[Entrant]]) -> Iterator[tuple[Entrant, Result]]:
        """Decode all; yields each with its result. The next batch is asked for while the device works on those before.

        If memory does not do for all that are in flight, fewer are let in from then on.
        """
        begun = perf_counter()
        counters = self.state.counters
        counters[ALL_ROWS], counters[STEPS], counters[BROKEN] = 0, 0, 0
        self._queued = 0
        most, waiting = self.shape.inputs, next(batches, [])
        while waiting or self.in_flight:
            while waiting and self.in_flight < most:
                room = most - self.in_flight
                self.admit(waiting[:room])
                waiting = waiting[room:] or next(batches, [])
            # Most results are made while the device works on the rest.
            enough = most * 3 // 4 if waiting else self.in_flight // 3
            if self._fly(0 if enough < AHEAD else enough):
                waiting = [*self._make_room(), *waiting]
                most = self.in_flight
            yield from self._harvest()
        self.rows, self.steps = int(counters[ALL_ROWS]), int(counters[STEPS])
        self.seconds = perf_counter() - begun

    @torch.inference_mode()
    def _fly(self, enough: int) -> bool:
        """Steps, until no more than `enough` inputs are active. True if there are, but no node is free for them."""
        active = self.in_flight
        looks: list[tuple[torch.Tensor, Any]] = []
        while True:
            rows = self._rows_for(active)
            for _ in range(BURST):
                self._run_step(rows)
            looks.append(self._look())
            if len(looks) > (AHEAD if self.cuda else 0):
                seen, ready = looks.pop(0)
                if ready is not None:
                    ready.synchronize()
                active = int(seen[ACTIVE])
                if int(seen[BROKEN]):
                    raise ValueError("the model's scores are not finite: check its weights and dtype")
                if active <= enough:
                    return False
                if int(seen[ROWS]) == 0:
                    return True

    def _rows_for(self, active: int) -> int:
        """The least bucket with a row for each active input, as many more as are likely to be needed, and the cheap ones.

        The wider the beam and the harder the input, the more of a length is needed. No more rows are of use than inputs can name.
        """
        wanted = min(int(active * RATES[self.shape.k > 10][self._queued > EARLY]) + CHEAP, active * self.shape.picks)
        return next((rows for rows in BUCKETS if rows >= wanted), BUCKETS[-1])

    def _look(self) -> tuple[torch.Tensor, Any]:
        """The counters as they will be once all that is queued has run, and what to wait for."""
        if not self.cuda:
            return self.state.counters.clone(), None
        seen = torch.empty(8, dtype=torch.int32, pin_memory=True)
        seen.copy_(self.state.counters, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return seen, event

    def _run_step(self, rows: int) -> None:
        self._queued += 1
        if not self.cuda:
            self.step(rows)
            return
        if rows not in self.graphs:
            self.graphs[rows] = self._capture(rows)
        self.graphs[rows].replay()

    def _capture(self, rows: int) -> Any:
        """A step of so many rows as a graph. Run once before, so that kernels are compiled; a step too many does no harm."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self.step(rows)
        self._pool = graph.pool()
        return graph

    @torch.inference_mode()
    def _make_room(self) -> list[Entrant]:
        """The later half of the inputs in flight begin again when there is room."""
        status = self.state.status.tolist()
        flying = [slot for slot, taken in enumerate(self._slots) if taken is not None and status[slot] == 1]
        if len(flying) < 2:
            raise torch.OutOfMemoryError("one input alone needs more memory for its search than there is")
        leaving = flying[len(flying) // 2 :]
        self.state.release(torch.tensor(leaving, device=self.weights.device))
        back = [self._slots[slot] for slot in leaving]
        for slot in leaving:
            self._slots[slot] = None
        self.in_flight -= len(leaving)
        return [entrant for entrant in back if entrant is not None]

    # -- results -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _harvest(self) -> list[tuple[Entrant, Result]]:
        """Results of the inputs that are done; their slots are free."""
        shape, st = self.shape, self.state
        status = st.status.tolist()
        lengths_of = [len(taken.source.payload.source) for taken in self._slots if taken is not None]
        self.most_tokens = max(self.most_tokens, sum(lengths_of) + shape.nodes - 1 - int(st.counters[FREE]))
        done = [slot for slot, taken in enumerate(self._slots) if taken is not None and status[slot] == 2]
        if not done:
            return []
        slots = torch.tensor(done, dtype=torch.int32, device=self.weights.device)
        calls = torch.empty_like(slots)
        lengths = torch.zeros(len(done), shape.n, dtype=torch.int32, device=slots.device)
        tokens = torch.zeros(len(done), shape.n, shape.lengths, dtype=torch.int32, device=slots.device)
        settle[(len(done),)](
            slots, st.value, st.entry, st.node, st.count, st.token, st.paths, st.node_token, st.deepest, st.limit, st.answers,
            st.answer_value, calls, lengths, tokens, shape.n, shape.k, shape.lengths, shape.successors, len(shape.prompt),
            KP=power(shape.k), LP=power(shape.lengths), num_warps=4,
        )  # fmt: skip
        longest = max(1, int(lengths.abs().max()))
        counts = torch.stack([calls, st.rows[slots.long()], st.steps[slots.long()]], 1).tolist()
        values, many, words = st.answer_value[slots.long()].tolist(), lengths.tolist(), tokens[:, :, :longest].tolist()
        if len(done) == self.in_flight:
            self._release_all()
        else:
            st.release(slots)
            for _ in range(BEHIND if self.cuda else 0):
                self._run_step(self._rows_for(self.in_flight - len(done)))
        self.in_flight -= len(done)
        found = []
        for slot, *found_for in zip(done, counts, values, many, words, strict=True):
            entrant = self._slots[slot]
            assert entrant is not None
            self._slots[slot] = None
            found.append((entrant, self._result(entrant, *found_for)))
        return found

    def _release_all(self) -> None:
        """As `release` of everything."""
        st, nodes = self.state, self.shape.nodes
        st.node_input.fill_(-1)
        st.stack[:-1] = torch.arange(nodes - 1, 0, -1, dtype=torch.int32, device=st.stack.device)
        st.counters[FREE] = nodes - 1
        st.status.zero_()

    def _result(
        self, entrant: Entrant, counts: list[int], values: list[float], lengths: list[int], tokens: list[list[int]]
    ) -> Result:
        payload, text = entrant.source.payload, self.model.text
        answers = []
        for length, value, words in zip(lengths, values, tokens, strict=True):
            if length != 0:
                y = tuple(words[: abs(length)])
                answers.append(Answer(y, value, value, text(payload, y)))
        calls, rows, steps = counts
        if lengths[0] > 0:
            return Result(answers, calls, rows, steps, exact=True, status="complete")
        partial = answers[0] if answers else Answer((), 0.0, 0.0, text(payload, ()))
        return Result([], calls, rows, steps, exact=True, status="incomplete", partial=partial)


def chunks(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut inputs, the longest first, where they have become a third shorter, so that little is padded."""
    cuts = [0]
    for i, length in enumerate(lengths):
        if i - cuts[-1] >= 256 and length < 0.67 * lengths[cuts[-1]]:
            cuts.append(i)
    return list(zip(cuts, [*cuts[1:], len(lengths)], strict=True))
