"""Session: jobs in slots of the device, steps until they are done, results back. The host only looks on, a few steps behind."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...constraints.trie import Trie
from ...search import Result
from ...settings import Decoding
from ..engine import Job, Stats
from ..logits_edits import Edits
from .admission import PIECE, TOKENS
from .collector import Collected, Collector
from .cuda_graphs import Graphs, Transfer, send
from .device_bart import DeviceBart
from .device_step import DeviceStep
from .kernels.answers import BEAM, FULL
from .kernels.logits_kernels import PROGRAMS
from .kernels.rows import ACTIVE, ALL_ROWS, BROKEN, DONE, FREE, IN_FLIGHT, LEAVING, ROWS, STEPS
from .rules import Rules, table_key, table_of
from .state import SCORES, Shape, State

FEW_ACTIVE, MANY_ACTIVE = 16, 512  # inputs: few are soon done, many keep the device busy while the host reads others
FIXED_ROWS = 256  # of a step where it always has the same
AHEAD = 1  # snapshots outstanding: so many bursts are queued while the host waits for the one before
FEW = 64  # jobs that are not worth collecting while many others run,
ENOUGH = 8  # and the part of those in flight that is
BEHIND = 4  # collections whose results may wait for a better time
MOST_RULES = 1024  # settings that are remembered
SOME = 128  # results that are told at a time when there is nothing else to do
SLICE = 32, 1024  # results, and answers of theirs, that are made between two glances at the device


@dataclass
class Snapshot:
    """The device as it will be once all that is queued has run; who was let in by then, and how often some were taken out."""

    board: Transfer
    let_in: int
    taken_out: int


class Session:
    """Room of one `Shape` on one device, with its graphs. Kept for the next decode with the same weights; holds no model."""

    def __init__(
        self, model: Any, shape: Shape, weights: Any = None, step: type[DeviceStep] = DeviceStep, fixed: bool = False
    ) -> None:
        self.shape = shape
        self.fixed = fixed  # whether the bits of an input's scores depend on that input alone
        self.weights = weights or DeviceBart(model, shape.lengths, shape.source)
        self.buckets = (FIXED_ROWS,) if fixed else step.buckets_for(shape, self.weights.vocabulary)
        self.state = State(shape, self.weights)
        self.graphs = Graphs(self.weights.device)
        self.admission = step.admission(self.state, self.weights, self.graphs)
        self._lengths_of = self.admission.lengths
        self._collector = Collector(self.state, self.graphs)
        self.step_of = step(self.state, self.weights)
        if fixed:
            self.step_of.fixed = True  # type: ignore[attr-defined]
        self.step_of.rows(self.buckets[-1])
        self.burst, self.ahead = (step.burst, AHEAD) if self.weights.device.type == "cuda" else ((1, 1, 1), 0)
        self._tables: dict[Hashable, int] = {}  # places of scores' tables
        self._programs: dict[bytes, int] = {}  # places of edits, from 1 on
        self.meant_for = shape.inputs  # inputs at a time; the memory may have allowed fewer
        self.drafts: Any = None  # who drafts for its jobs
        self.asking: Edits | None = None  # what is to be asked between two parts of every step
        self.checked = False  # whether its answers were held against the model's own
        self.kind: Any = None  # what its jobs have in common
        self.owner: Callable[[], Any] = lambda: None  # the engine whose jobs are here, if it is still there

    @torch.inference_mode()
    def begin(self, eos: Sequence[int], banned: Sequence[int], prompt: Sequence[int], trie: Trie | None = None) -> None:
        """Nothing is in flight; from now on outputs start from `prompt`, and are those of the trie, if there is one."""
        self.graphs.run("clear", self.state.clear)
        self.state.settle_vocabulary(eos, banned, prompt)
        self.state.settle_trie(trie)
        self._ends = len(eos)
        self._rules: dict[Hashable, tuple[Decoding, Rules]] = {}  # by the settings' identity and the edits
        self._beam = self._full = 1
        self.most = self.shape.inputs  # in flight
        self._slots: list[Job | None] = [None] * self.shape.inputs
        self._collections: deque[Collected] = deque()
        self._snapshots: deque[Snapshot] = deque()
        self._boards: list[Transfer] = []  # that were looked at, for the next snapshots
        self.in_flight = self._source_tokens = 0  # jobs that have a slot, and their tokens
        self._active = self._let_in = self._taken_out = 0
        self.most_in_flight = self.most_tokens = self.rows = self.steps = 0
        self.seconds = 0.0  # with jobs in flight

    def __bool__(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.in_flight or self._collections)

    @property
    def costs(self) -> Stats:
        """Of this engine's jobs, so far."""
        return Stats(
            self.steps, self.rows, model_seconds=self.seconds, engine="device",
            in_flight=self.most_in_flight, cache_tokens=self.most_tokens,
        )  # fmt: skip

    def jobs(self) -> list[Job]:
        """Those that have a slot."""
        return [job for job in self._slots if job is not None]

    @torch.inference_mode()
    def step(self, waiting: deque[Job], meanwhile: Callable[[], bool] = lambda: True) -> list[tuple[Job, Result]]:
        """Let some in, queue some steps, and look at what the ones before have done. What cannot stay goes back to `waiting`.

        Results are made while the device works; when it has nothing left to do, some at a time, for whoever waits can begin with
        those. `meanwhile` is asked before the device is waited for; if it says no, nobody wants to know any more.
        """
        begun = perf_counter()
        entered = self._admit(waiting)
        found: list[tuple[Job, Result]] = []
        if self.in_flight:
            self._run_burst(entered)
            if len(self._snapshots) > self.ahead:
                snapshot = self._snapshots.popleft()
                if not meanwhile():
                    return []
                while self._time_for_results(snapshot):
                    found += self._some_results()
                self._look(snapshot, waiting)
        else:
            self._snapshots.clear()
            while self._collections and len(found) < SOME:
                found += self._some_results()
        self.seconds += perf_counter() - begun
        return found

    # -- letting in -----------------------------------------------------------------------------------------------------

    def _admit(self, waiting: deque[Job]) -> bool:
        """Encode some of those that wait, as far as there is room, and put each in a free slot; whether there were any."""
        jobs = [*islice(waiting, min(PIECE, self.most - self.in_flight))]
        rules = self._rules_of(jobs)
        if not rules:
            return False
        sums = [*accumulate(self._lengths(jobs[: len(rules)]))]
        jobs = jobs[: max(1, bisect(sums, TOKENS))]
        for _ in jobs:
            waiting.popleft()
        slots = list(islice((slot for slot, taken in enumerate(self._slots) if taken is None), len(jobs)))
        size = 1 if self.fixed else len(jobs)  # what is read together is multiplied together
        for i in range(0, len(jobs), size):
            self.admission(jobs[i : i + size], slots[i : i + size], rules[i : i + size])
        for slot, job in zip(slots, jobs, strict=True):
            self._slots[slot] = job
        self._source_tokens += sums[len(jobs) - 1]
        self.in_flight += len(jobs)
        self._let_in += len(jobs)
        self._active += len(jobs)
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return True

    def _lengths(self, jobs: Sequence[Job]) -> list[int]:
        return self._lengths_of([job.source.payload for job in jobs])

    def _rules_of(self, jobs: Sequence[Job]) -> list[Rules]:
        """The settings of each as numbers, up to the first whose score or edits have no room beside those that are here: what
        is in flight looks at these."""
        if not self.in_flight and (len(self._tables) >= SCORES or len(self._programs) >= PROGRAMS):
            self._rules, self._tables, self._programs = {}, {}, {}
        found: list[Rules] = []
        for job in jobs:
            rules = self._rules_for(job.decoding, None if job.edits is None else job.edits.code or None)
            if rules is None:
                break
            found.append(rules)
        return found

    def _rules_for(self, decoding: Decoding, code: bytes | None) -> Rules | None:
        """Where a score is new, its tables are written, and so are edits; None where there is no room for them."""
        known = self._rules.get((id(decoding), code))
        if known is not None:
            return known[1]
        key = table_key(decoding.objective)
        new_score, new_edits = key not in self._tables, code is not None and code not in self._programs
        if (new_score and len(self._tables) >= SCORES) or (new_edits and len(self._programs) >= PROGRAMS):
            return None
        if new_score:
            self._tables[key] = len(self._tables)
            both = table_of(decoding.objective, self.state.norm.shape[1], self.shape.prompt)
            for table, numbers in zip((self.state.norm, self.state.gain), both, strict=True):
                table[self._tables[key]] = torch.tensor(numbers, dtype=torch.float64, device=table.device)
        if code is not None and new_edits:
            program = send(np.frombuffer(code, np.int32), self.weights.device)
            self.state.programs[len(self._programs), : len(program)] = program
            self._programs[code] = 1 + len(self._programs)
        width = min(int(decoding.plan.k) + self._ends, self.shape.successors)
        rules = Rules.of(decoding, width, self._tables[key], 0 if code is None else self._programs[code])
        if len(self._rules) >= MOST_RULES:
            self._rules.clear()
        self._rules[id(decoding), code] = (decoding, rules)  # kept, so that no other object gets its identity
        self._beam, self._full = max(self._beam, rules.numbers[BEAM.value]), max(self._full, rules.numbers[FULL.value])
        return rules

    # -- running -----------------------------------------------------------------------------------------------------------

    def _run_burst(self, entered: bool) -> None:
        """Some steps, and a snapshot of what they will have done. Where inputs have `entered`, the host has other things to do,
        and of a few none is done so soon."""
        rows = self._rows_for(self._active)
        size = self.step_of.size(rows, self._active)
        if self.asking is not None:
            self.step_of.ask(rows, self.graphs, self.asking, self._slots)
        else:
            few, some, many = self.burst
            if self._active <= FEW_ACTIVE:
                steps = some if entered else few
            else:
                steps = many if entered and self._active > MANY_ACTIVE else some
            for _ in range(steps):
                self.graphs.run(("step", size), lambda: self.step_of(size))
        board = self._boards.pop().again() if self._boards else Transfer(self.state.board)
        self._snapshots.append(Snapshot(board, self._let_in, self._taken_out))

    def _rows_for(self, active: int) -> int:
        """The least bucket that these inputs will need, as `share_rows` grants rows. No more are of use than inputs can name."""
        wanted = max(active, min(active * min(self.shape.times * self._beam, self.shape.picks), self._full))
        return next((rows for rows in self.buckets if rows >= wanted), self.buckets[-1])

    def _look(self, snapshot: Snapshot, waiting: deque[Job]) -> None:
        """Collect inputs that are done, once they are many; or, if no node is free, let fewer be in flight."""
        board = snapshot.board.wait()
        self._boards.append(snapshot.board)  # all that is looked at below is read before the next snapshot
        counters, status = board[:8], board[8:]
        if counters[BROKEN]:
            raise ValueError("the model's scores are not finite: check its weights and dtype")
        self._active = int(counters[ACTIVE]) + self._let_in - snapshot.let_in
        self.rows, self.steps = int(counters[ALL_ROWS]), int(counters[STEPS])
        self.most_tokens = max(self.most_tokens, self._source_tokens + self.shape.nodes - 1 - int(counters[FREE]))
        if snapshot.taken_out < self._taken_out:
            return  # of a time when others had these slots
        done = np.flatnonzero(status == DONE).tolist()
        starved = counters[ACTIVE] > 0 and counters[ROWS] == 0
        enough = self.most // ENOUGH if waiting else max(self.in_flight // ENOUGH, FEW if self.in_flight > FEW else 1)
        if done and (starved or len(done) >= min(enough, self.in_flight)):
            self._collect(done)
        elif starved:
            self._make_room(np.flatnonzero(status == IN_FLIGHT).tolist(), waiting)

    # -- results -----------------------------------------------------------------------------------------------------------

    def _collect(self, done: Sequence[int]) -> None:
        """Results of these slots are made when they are here; the slots are free."""
        self._collections.append(self._collector(self._take_out(done), done))

    def _make_room(self, running: Sequence[int], waiting: deque[Job]) -> None:
        """The later half of the inputs in flight begin again when there is room."""
        if len(running) < 2:
            raise torch.OutOfMemoryError("one input alone needs more memory for its search than there is")
        waiting.extendleft(reversed(self._give_up(running[len(running) // 2 :])))
        self.most = self.in_flight

    @torch.inference_mode()
    def cancel(self, job: Job) -> None:
        """Give up a job that has a slot."""
        self._give_up([self._slots.index(job)])

    def _give_up(self, slots: Sequence[int]) -> list[Job]:
        self.state.status.index_fill_(0, send(np.array(slots), self.weights.device).long(), LEAVING.value)
        self.state.reclaim()
        return self._take_out(slots)

    def _take_out(self, slots: Sequence[int]) -> list[Job]:
        jobs = [job for slot in slots if (job := self._slots[slot]) is not None]
        for slot in slots:
            self._slots[slot] = None
        self.in_flight -= len(jobs)
        self._source_tokens -= sum(self._lengths(jobs))
        self._taken_out += 1
        return jobs

    def _time_for_results(self, snapshot: Snapshot) -> bool:
        """While the device works they cost nothing; and they must not pile up."""
        collected = self._collections
        return len(collected) > BEHIND or (bool(collected) and collected[0].here() and not snapshot.board.here())

    def _some_results(self) -> list[tuple[Job, Result]]:
        """The next few of what was collected."""
        some = max(1, min(SLICE[0], SLICE[1] // self.shape.n))
        found = list(islice(self._collections[0].results, some))
        if self.drafts is not None:
            for _, result in found:
                self.step_of.learn(result)
        if len(found) < some:
            self._collections.popleft()
        return found
