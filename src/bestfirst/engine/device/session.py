"""Session: the scheduler of the device. Admits jobs to slots, queues steps, returns results. The host is a few steps behind."""

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
from .admission import MAX_BATCH, MAX_TOKENS
from .collector import Collected, Collector
from .cuda_graphs import Graphs, Transfer, send
from .device_bart import DeviceBart
from .device_step import DeviceStep
from .kernels.answers import BEAM, FULL
from .kernels.logits_kernels import PROGRAMS
from .kernels.rows import ACTIVE, ALL_ROWS, BROKEN, DONE, FREE, IN_FLIGHT, LEAVING, ROWS, STEPS
from .rules import Rules, table_key, table_of
from .state import SCORES, Shape, State

FEW_ACTIVE, MANY_ACTIVE = 16, 512  # inputs in flight: few are soon done, many keep the device busy while the host reads others
FIXED_ROWS = 256  # rows of every step where bits may not depend on the batch (`deterministic=True`)
AHEAD = 1  # snapshots not read yet: so many bursts are queued while the host waits for the one before
MIN_COLLECTED = 64  # finished jobs that are not worth collecting while many others run,
COLLECTED_PART = 8  # and the part (1 / 8) of those in flight that is
MAX_PENDING = 4  # collections whose results may wait until the host is idle
MAX_RULES = 1024  # settings whose rules are remembered
RESULTS_WHEN_IDLE = 128  # results returned at a time when nothing is in flight
RESULTS_AT_A_TIME = 32, 1024  # results, and their answers, that are made between two looks at the device


@dataclass
class Snapshot:
    """The device's counters and slot states after all that is queued, and the host's counts at the time it was queued."""

    board: Transfer
    admitted: int
    removals: int


class Session:
    """Memory of one `Shape` and its CUDA graphs. Kept for the next decode with the same weights; holds no model."""

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
        self.device_step = step(self.state, self.weights)
        if fixed:
            self.device_step.fixed = True  # type: ignore[attr-defined]
        self.device_step.allocate_rows(self.buckets[-1])
        self.burst, self.ahead = (step.burst, AHEAD) if self.weights.device.type == "cuda" else ((1, 1, 1), 0)
        self._tables: dict[Hashable, int] = {}  # rows of scores' tables
        self._programs: dict[bytes, int] = {}  # 1 + row of the code of logits edits
        self.target_inputs = shape.inputs  # inputs at a time that were asked for; the memory may have allowed fewer
        self.drafts: Any = None  # the `DraftModels` of its jobs
        self.python_edits: Edits | None = None  # Python code that edits scores in every step
        self.checked = False  # whether `model_check.check_answers` has compared its first answers with the model
        self.key: Any = None  # what its jobs have in common (`DeviceEngine._session_key`)
        self.owner: Callable[[], Any] = lambda: None  # the engine that has jobs here, if it still exists

    @torch.inference_mode()
    def begin(self, eos: Sequence[int], banned: Sequence[int], prompt: Sequence[int], trie: Trie | None = None) -> None:
        """Start a decode with nothing in flight. Outputs start from `prompt` and are constrained by the trie, if any."""
        self.graphs.run("clear", self.state.clear)
        self.state.set_vocabulary(eos, banned, prompt)
        self.state.set_trie(trie)
        self._ends = len(eos)
        self._known_rules: dict[Hashable, tuple[Decoding, Rules]] = {}  # by identity of the settings, and code of the edits
        self._max_beam = self._busy_rows = 1
        self.max_in_flight = self.shape.inputs  # fewer after an eviction
        self._slots: list[Job | None] = [None] * self.shape.inputs
        self._collections: deque[Collected] = deque()
        self._snapshots: deque[Snapshot] = deque()
        self._spare_boards: list[Transfer] = []  # transfers to reuse for the next snapshots
        self.in_flight = self._source_tokens = 0  # jobs in slots, and their input tokens
        self._active = self._admitted = self._removals = 0
        self.peak_in_flight = self.peak_tokens = self.rows = self.steps = 0
        self.seconds = 0.0  # while jobs were in flight

    def __bool__(self) -> bool:
        """Whether jobs are in flight or results to be returned."""
        return bool(self.in_flight or self._collections)

    @property
    def costs(self) -> Stats:
        """What the jobs since `begin` have cost so far."""
        return Stats(
            self.steps, self.rows, model_seconds=self.seconds, engine="device",
            in_flight=self.peak_in_flight, cache_tokens=self.peak_tokens,
        )  # fmt: skip

    def jobs(self) -> list[Job]:
        return [job for job in self._slots if job is not None]

    @torch.inference_mode()
    def step(self, waiting: deque[Job], still_valid: Callable[[], bool] = lambda: True) -> list[tuple[Job, Result]]:
        """Admit jobs, queue a burst of steps, and read what an earlier burst has done. Evicted jobs go back to `waiting`.

        Results are made while the device works; when it has nothing left to do, a few at a time, so that the caller can begin
        with them. `still_valid` is called before the host waits for the device; if False, the step is given up.
        """
        begun = perf_counter()
        entered = self._admit(waiting)
        results: list[tuple[Job, Result]] = []
        if self.in_flight:
            self._run_burst(entered)
            if len(self._snapshots) > self.ahead:
                snapshot = self._snapshots.popleft()
                if not still_valid():
                    return []
                while self._results_due(snapshot):
                    results += self._next_results()
                self._read_snapshot(snapshot, waiting)
        else:
            self._snapshots.clear()
            while self._collections and len(results) < RESULTS_WHEN_IDLE:
                results += self._next_results()
        self.seconds += perf_counter() - begun
        return results

    # -- admission ------------------------------------------------------------------------------------------------------

    def _admit(self, waiting: deque[Job]) -> bool:
        """Admit the first waiting jobs, as many as there is room for; whether there were any."""
        jobs = [*islice(waiting, min(MAX_BATCH, self.max_in_flight - self.in_flight))]
        rules = self._rules_of_batch(jobs)
        if not rules:
            return False
        sums = [*accumulate(self._source_lengths(jobs[: len(rules)]))]
        jobs = jobs[: max(1, bisect(sums, MAX_TOKENS))]
        for _ in jobs:
            waiting.popleft()
        slots = list(islice((slot for slot, taken in enumerate(self._slots) if taken is None), len(jobs)))
        size = 1 if self.fixed else len(jobs)  # if fixed, prefill one by one: the size of a matmul may change bits
        for i in range(0, len(jobs), size):
            self.admission(jobs[i : i + size], slots[i : i + size], rules[i : i + size])
        for slot, job in zip(slots, jobs, strict=True):
            self._slots[slot] = job
        self._source_tokens += sums[len(jobs) - 1]
        self.in_flight += len(jobs)
        self._admitted += len(jobs)
        self._active += len(jobs)
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return True

    def _source_lengths(self, jobs: Sequence[Job]) -> list[int]:
        return self._lengths_of([job.source.payload for job in jobs])

    def _rules_of_batch(self, jobs: Sequence[Job]) -> list[Rules]:
        """The rules of each job, up to the first whose tables have no room; tables are dropped only when nothing is in flight."""
        if not self.in_flight and (len(self._tables) >= SCORES or len(self._programs) >= PROGRAMS):
            self._known_rules, self._tables, self._programs = {}, {}, {}
        batch: list[Rules] = []
        for job in jobs:
            if (rules := self._rules_for(job.decoding, None if job.edits is None else job.edits.code or None)) is None:
                break
            batch.append(rules)
        return batch

    def _rules_for(self, decoding: Decoding, code: bytes | None) -> Rules | None:
        """The rules of these settings, after writing tables of a new score and code of new edits. None if these have no room."""
        if (known := self._known_rules.get((id(decoding), code))) is not None:
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
        if len(self._known_rules) >= MAX_RULES:
            self._known_rules.clear()
        self._known_rules[id(decoding), code] = (decoding, rules)  # holds the settings, so that their id is not reused
        self._max_beam = max(self._max_beam, rules.numbers[BEAM.value])
        self._busy_rows = max(self._busy_rows, rules.numbers[FULL.value])
        return rules

    # -- running -----------------------------------------------------------------------------------------------------------

    def _run_burst(self, entered: bool) -> None:
        """Queue some steps and a snapshot; more steps if inputs have `entered`: the host is busy, and hardly any is done soon."""
        rows = self._rows_for(self._active)
        key = self.device_step.graph_key(rows, self._active)
        if self.python_edits is not None:
            self.device_step.run_with_python_edits(rows, self.graphs, self.python_edits, self._slots)
        else:
            few, some, many = self.burst
            if self._active <= FEW_ACTIVE:
                steps = some if entered else few
            else:
                steps = many if entered and self._active > MANY_ACTIVE else some
            for _ in range(steps):
                self.graphs.run(("step", key), lambda: self.device_step(key))
        board = self._spare_boards.pop().restart() if self._spare_boards else Transfer(self.state.board)
        self._snapshots.append(Snapshot(board, self._admitted, self._removals))

    def _rows_for(self, active: int) -> int:
        """The smallest bucket for so many inputs, by the rule of `share_rows`; inputs cannot name more rows than that."""
        wanted = max(active, min(active * min(self.shape.times * self._max_beam, self.shape.picks), self._busy_rows))
        return next((rows for rows in self.buckets if rows >= wanted), self.buckets[-1])

    def _read_snapshot(self, snapshot: Snapshot, waiting: deque[Job]) -> None:
        """Collect finished inputs once there are enough of them; if no node is free, evict some of the others."""
        board = snapshot.board.wait()
        self._spare_boards.append(snapshot.board)  # reused by the next snapshot, after all that is read below
        counters, status = board[:8], board[8:]
        if counters[BROKEN]:
            raise ValueError("the model's scores are not finite: check its weights and dtype")
        self._active = int(counters[ACTIVE]) + self._admitted - snapshot.admitted
        self.rows, self.steps = int(counters[ALL_ROWS]), int(counters[STEPS])
        self.peak_tokens = max(self.peak_tokens, self._source_tokens + self.shape.nodes - 1 - int(counters[FREE]))
        if snapshot.removals < self._removals:
            return  # of a time when other jobs had these slots
        done = np.flatnonzero(status == DONE).tolist()
        starved = counters[ACTIVE] > 0 and counters[ROWS] == 0
        enough = (self.max_in_flight if waiting else self.in_flight) // COLLECTED_PART
        if not waiting:
            enough = max(enough, MIN_COLLECTED if self.in_flight > MIN_COLLECTED else 1)
        if done and (starved or len(done) >= min(enough, self.in_flight)):
            self._collections.append(self._collector(self._free_slots(done), done))
        elif starved:
            self._evict_half(np.flatnonzero(status == IN_FLIGHT).tolist(), waiting)

    # -- leaving -----------------------------------------------------------------------------------------------------------

    def _evict_half(self, running: Sequence[int], waiting: deque[Job]) -> None:
        """Nodes are used up: half of the inputs in flight, those in the higher slots, restart later; from now on fewer are in
        flight."""
        if len(running) < 2:
            raise torch.OutOfMemoryError("one input alone needs more memory for its search than there is")
        waiting.extendleft(reversed(self._abandon(running[len(running) // 2 :])))
        self.max_in_flight = self.in_flight

    @torch.inference_mode()
    def cancel(self, job: Job) -> None:
        self._abandon([self._slots.index(job)])

    def _abandon(self, slots: Sequence[int]) -> list[Job]:
        """Free slots and their nodes; returns their jobs."""
        self.state.status.index_fill_(0, send(np.array(slots), self.weights.device).long(), LEAVING.value)
        self.state.reclaim()
        return self._free_slots(slots)

    def _free_slots(self, slots: Sequence[int]) -> list[Job]:
        jobs = [job for slot in slots if (job := self._slots[slot]) is not None]
        for slot in slots:
            self._slots[slot] = None
        self.in_flight -= len(jobs)
        self._source_tokens -= sum(self._source_lengths(jobs))
        self._removals += 1
        return jobs

    def _results_due(self, snapshot: Snapshot) -> bool:
        """Whether to make results now: they cost nothing while the device works, and must not pile up."""
        collected = self._collections
        return len(collected) > MAX_PENDING or (bool(collected) and collected[0].ready() and not snapshot.board.ready())

    def _next_results(self) -> list[tuple[Job, Result]]:
        """The next few results of the oldest collection."""
        count = max(1, min(RESULTS_AT_A_TIME[0], RESULTS_AT_A_TIME[1] // self.shape.n))
        results = list(islice(self._collections[0].results, count))
        if self.drafts is not None:
            for _, result in results:
                self.device_step.learn(result)
        if len(results) < count:
            self._collections.popleft()
        return results
