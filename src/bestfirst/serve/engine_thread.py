"""Engine thread: runs the engine. Requests come in and events go out while it runs; all share its forward passes."""

from __future__ import annotations

import gc
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from threading import Thread
from typing import Any

from ..engine import Engine, Job, Stats, engine_for, no_garbage_collection
from ..models import Model
from ..search import Answer, RecordedSearch, Result, Trace
from ..settings import Decoding
from .fair_share import FairShare, Use
from .schemas import Limits
from .work import Certified, Done, EngineStopped, Inbox, TextReader, Work

FIRST, TOGETHER = 320, 512  # texts that are read at a time, as many as a device is given: at first fewer, for it waits
TURN = 16  # texts that a request starts at a time where searches run by themselves
YOUNG = 50_000  # objects between two collections of garbage there: searches leave none, and what a device repeats runs no Python

# Seconds after which the engine's thread and the one that answers take turns. An engine gives its turn up at every launch, and a
# GPU that waits for the next one waits for so long: with half a millisecond 2,000 texts took 84 ms, so they take 75.
SWITCH = 0.00002

log = logging.getLogger(__name__)


def take_turns() -> None:
    """To be called in the engine's process once the model is loaded, which is here to stay: no garbage collection need look at
    it, and whoever waits for a turn beside the engine does not wait long."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH)


class EngineThread:
    """Runs one model's engine. `submit`, `cancel` and `stop` may be called from any thread; nothing else of it may.

    Texts wait here, a queue for each request, and are handed to the engine as it has room for them and as is fair.
    `flush` is called in the engine's thread after events were told, once for all of a step.
    """

    def __init__(self, model: Model, limits: Limits, *, row_budget: int | None = None, draft: Any = None) -> None:
        self.model = model
        self.flush: Callable[[], None] = lambda: None
        # For every score that adds up log-probabilities as they are: what a request can ask for.
        tokens = limits.max_cache_tokens
        self._settings = Decoding(beam=limits.max_beam, row_budget=row_budget, max_cache_tokens=tokens, draft=draft)
        self._engine: Engine = engine_for(model, self._settings)
        self._before = Stats()  # of engines that were given up
        self._share: FairShare[Work] = FairShare(self._engine.slots, tokens)
        self._read = TextReader(model)
        self._inbox = Inbox(self._refuse)
        self._work: dict[Job, Work] = {}  # of the jobs that were started
        self._recordings: dict[Job, RecordedSearch] = {}
        self._suspects: deque[Job] = deque()  # after a failure, to be run one by one until who is at fault is found
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # -- from other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._inbox.put(work)

    def cancel(self, work: Work) -> None:
        """Nobody waits for it any more: give up what is not done, and what is held for it."""
        self._inbox.cancel(work)

    def stop(self) -> None:
        """End the thread; what is not done fails."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def in_flight(self) -> int:
        """Texts that were let in and are not over."""
        return len(self._engine.in_flight)

    @property
    def busy(self) -> bool:
        """Whether any request is not over."""
        return bool(self._share.flows)

    @property
    def stats(self) -> Stats:
        """What it cost so far."""
        total = replace(self._before)
        total.add(self._engine.stats)
        return total

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._engine.pauses:
            gc.set_threshold(YOUNG)
        try:
            while self._receive():
                with no_garbage_collection():
                    self._step()
                self.flush()
        finally:
            for work in self._share.flows:
                self._refuse(work)
            self._inbox.close()

    def _receive(self) -> bool:
        """Take the requests that have arrived, and wait for one if there is nothing else to do. False if the thread should stop."""
        idle = not self._share.flows
        while idle or not self._inbox.empty():  # no other thread takes from it
            work, idle = self._inbox.get(), False
            if work is None:
                return False
            if work.cancelled:
                self._drop(work)
            else:
                self._enter(work)
        return True

    def _refuse(self, work: Work) -> None:
        work.tell(EngineStopped("the server is stopping"))
        self.flush()

    def _enter(self, work: Work) -> None:
        work.waiting.extend(range(len(work.texts)))
        self._share.enter(work)

    def _drop(self, work: Work) -> None:
        work.waiting.clear()
        for job in [*work.running]:
            self._withdraw(job)
        self._leave_if_over(work)

    def _withdraw(self, job: Job) -> Use:
        """Take a job out of the engine that is not over."""
        if job in self._suspects:
            self._suspects.remove(job)
        else:
            self._engine.cancel(job)
        self._recordings.pop(job, None)
        return self._share.end(self._work.pop(job), job)

    def _leave_if_over(self, work: Work) -> None:
        if not work.running and not work.waiting and work in self._share.flows:
            self._share.leave(work)

    def _step(self) -> None:
        self._share.by_themselves = not self._engine.pauses
        while not self._suspects and (excess := self._share.excess()):
            self._evict(*excess)
        self._feed()
        in_flight = self._in_flight()
        if all(job.paused for job in in_flight):  # others were given the rows, but wait for what these hold
            for job in in_flight:
                job.paused = False
        try:
            for job, result in self._engine.step():
                self._done(job, result)
            if any(work.stream for work in self._share.flows):
                for job in self._engine.in_flight:
                    if (work := self._work[job]).stream:
                        self._certify(work, job, self._engine.certified(job))
        except Exception as error:  # of the model's own code
            self._recover(error)
        self._share.charge(self._in_flight())

    def _in_flight(self) -> set[Job]:
        """Those of whom it matters: nobody, where searches run by themselves."""
        return set() if self._share.by_themselves else {*self._engine.in_flight}

    def _done(self, job: Job, result: Result) -> None:
        work = self._work[job]
        if work.stream:
            self._certify(work, job, result.hypotheses)
        trace = self._replayed(work, job, result) if work.recorded else None  # which asks the model: until then it is not over
        del self._work[job]
        self._share.end(work, job)
        self._tell(work, job.index, result, trace)

    def _tell(self, work: Work, index: int, result: Result, trace: Trace | None = None) -> None:
        work.tell(Done(index, result, trace, work.size(index)))
        if not work.running:
            self._leave_if_over(work)

    def _certify(self, work: Work, job: Job, answers: Sequence[Answer]) -> None:
        """Tell of those answers that are news."""
        known = work.told.get(job.index, 0)
        for rank, answer in enumerate(answers[known:], known + 1):
            work.tell(Certified(job.index, rank, answer))
        work.told[job.index] = max(known, len(answers))

    # -- what goes into the engine -----------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Start texts as there is room; after a failure, one suspect at a time."""
        if self._suspects:
            if not self._engine:
                self._engine.submit(self._suspects.popleft())
            for job in self._work:
                job.paused = False
            return
        # What searches by itself is given as much as it wants at a time: it works on that while the next texts are read.
        wanted, turn = (self._engine.wants, TURN) if self._share.by_themselves else (inf, 1)
        for work in self._share.allocate(self._in_flight()):
            if wanted <= 0:
                return
            before = len(work.waiting)
            lacking = self._start(work, min(turn, wanted, before))
            wanted -= before - len(work.waiting)
            if lacking is not None and self._share.overdue(work, lacking):
                return

    def _start(self, work: Work, most: float) -> Use | None:
        """Start the first so many texts that wait, or tell the results of those that need no model; if there is no room for one,
        what it needs."""
        jobs: list[Job] = []
        share, waiting, lacking, settings, rows = self._share, work.waiting, None, None, 1
        while len(jobs) < most and waiting and lacking is None:
            read = self._next_job(work, waiting[0])
            if isinstance(read, Result):
                self._tell(work, waiting.popleft(), read)
                most -= 1
                continue
            if read.decoding is not settings:  # nearly always those of the text before
                settings = read.decoding
                rows = settings.beam if settings.plan.level_by_level else 1
            # How much memory a search needs is known when it is over: to begin with, what most need.
            use = Use(rows, work.set_aside.get(read.index) or 3 * rows * (read.source.length + 1))
            if share.room(use) or self._make_room(work, use):
                waiting.popleft()
                share.start(work, read, use)
                jobs.append(read)
            else:
                lacking = use
        self._work.update(dict.fromkeys(jobs, work))
        self._engine.submit(*jobs)
        return lacking

    def _next_job(self, work: Work, index: int) -> Job | Result:
        """A text, read; or its result, where it needs no search or cannot have one."""
        if index not in work.sources:
            self._read_ahead(work)
        source = work.sources[index]
        if isinstance(source, Result):
            return source
        try:
            job = Job(index, source, work.texts[index][1])
        except ValueError as error:
            return Result(status="error", message=str(error))
        if work.recorded:
            job.begin = partial(self._record, job)
        return job

    def _read_ahead(self, work: Work) -> None:
        """Read texts that wait, this request's first, with those of others if many can be read together."""
        most = 1 if self._read.together is None else TOGETHER if self._work else FIRST
        unread: list[tuple[Work, range]] = []
        for each in dict.fromkeys((work, *self._share.flows)):
            first = len(each.sources)  # they are read in order
            new = range(first, min(first + most, len(each.texts)))
            unread.append((each, new))
            most -= len(new)
        self._read(unread)

    def _make_room(self, work: Work, use: Use) -> bool:
        """Have those that hold much more give some up for a job that there is no room for; whether there is then."""
        while found := self._share.to_evict(work, use):
            self._evict(*found)
            if self._share.room(use):
                return True
        return False

    def _evict(self, work: Work, job: Job) -> None:
        """Let a job begin again when there is room for more; one that needs more than there is cannot be done."""
        tokens = self._withdraw(job).tokens
        if tokens > self._share.tokens:
            message = f"this text needs more than the {self._share.tokens:,} tokens of memory that the server has"
            self._tell(work, job.index, Result(status="error", message=f"{message}; ask for a smaller beam or max_length"))
            return
        work.set_aside[job.index] = min(2 * tokens, self._share.tokens // 2)
        work.waiting.appendleft(job.index)

    # -- searches that are shown -------------------------------------------------------------------------------------------

    def _record(self, job: Job) -> RecordedSearch:
        self._recordings[job] = RecordedSearch(job.decoding.search(job.source, self.model.eos))
        return self._recordings[job]

    def _replayed(self, work: Work, job: Job, result: Result) -> Trace | None:
        """Every event of a search that was recorded, as they would come in strict order; None where it failed."""
        recording = self._recordings.pop(job, None)
        if recording is None or result.status == "error":
            return None
        trace = Trace()
        trace.describe(self.model, work.texts[job.index][0])
        recording.replay(job.decoding.search(job.source, self.model.eos, trace))
        trace.text(result)
        return trace

    # -- when the model fails ----------------------------------------------------------------------------------------------

    def _recover(self, error: Exception) -> None:
        """A forward pass failed: all that are not done begin again, each alone, and the one that fails then is at fault."""
        failed = [job for job in self._work if job not in self._suspects]
        log.warning("a step of %d texts failed: %s", len(failed), error, exc_info=True)
        self._before.add(self._engine.stats)
        self._engine = engine_for(self.model, self._settings)
        if len(failed) == 1:
            self._done(failed[0], Result(status="error", message=f"the model failed: {type(error).__name__}"))
        else:
            self._suspects.extend(failed)
