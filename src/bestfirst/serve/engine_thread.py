"""Engine thread: runs the engine. Requests are added and cancelled while it runs, and share its forward passes."""

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

from ..engine import BATCH, FIRST_BATCH, Engine, Job, Stats, engine_for, no_garbage_collection
from ..models import Model
from ..search import Answer, RecordedSearch, Result, Trace
from ..settings import DEFAULT, Decoding
from .fair_share import FairShare, Use
from .schemas import Limits
from .work import Certified, Done, EngineStopped, Inbox, TextReader, Work

JOBS_PER_TURN = 16  # texts that a request starts at a time, where the device schedules searches
GC_THRESHOLD = 50_000  # new objects between collections there: searches leave no cycles, and replayed graphs run no Python

# Seconds after which threads hand over the GIL: the engine's, the event loop's, and those between server and engine process. An
# engine releases it at every launch, and a GPU that waits for the next launch waits for that long. 2,000 texts take 75 ms; with
# half a millisecond here they took 84.
SWITCH_INTERVAL = 0.00002

log = logging.getLogger(__name__)


def tune_interpreter() -> None:
    """Prepare a process of the server, once the model is loaded: exempt the model, which is never freed, from garbage collection,
    and let threads hand over the GIL quickly."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL)


class EngineThread:
    """Runs one model's engine in a thread. `submit`, `cancel` and `stop` may be called from any thread, no other method.

    The texts of a request wait in its `Work` and go into the engine as there is room, in the order that `FairShare` decides.
    Every request that is submitted and not cancelled gets a `Done` for each text or, as its last event, one `EngineStopped`.
    `flush` is called after every step, once for all events of that step, in the engine's thread; also after each refusal, in the
    thread that called `submit` if the engine's has ended.
    """

    def __init__(self, model: Model, limits: Limits, decoding: Decoding = DEFAULT) -> None:
        """`decoding`: the row budget and the drafter, which all requests share; the rest of the settings is theirs."""
        self.model = model
        self.flush: Callable[[], None] = lambda: None
        # An engine for every score that adds up log-probabilities as they are: requests can ask for no other.
        tokens = limits.max_cache_tokens
        self._settings = decoding.using(beam=limits.max_beam, max_cache_tokens=tokens)
        self._engine: Engine = engine_for(model, self._settings)
        self._previous_stats = Stats()  # of engines that were replaced after a failure
        self._share: FairShare[Work] = FairShare(self._engine.slots, tokens)
        self._read = TextReader(model)
        self._inbox = Inbox(self._refuse)
        self._work: dict[Job, Work] = {}  # of the jobs that were started
        self._recordings: dict[Job, RecordedSearch] = {}
        self._suspects: deque[Job] = deque()  # after a failed step: to be run one at a time, until the job at fault is found
        self.thread = Thread(target=self._run, name="engine", daemon=True)

    # -- from other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.thread.start()

    def submit(self, work: Work) -> None:
        self._inbox.put(work)

    def cancel(self, work: Work) -> None:
        """Drop the texts of a request that are not done, and release what they hold. Cancelling twice does no harm."""
        self._inbox.cancel(work)

    def stop(self) -> None:
        """End the thread; requests that are not done get `EngineStopped`."""
        self._inbox.put(None)
        if self.thread.is_alive():
            self.thread.join()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    @property
    def in_flight(self) -> int:
        """The number of texts that are being searched."""
        return len(self._engine.in_flight)

    @property
    def busy(self) -> bool:
        """Whether any request is not done."""
        return bool(self._share.flows)

    @property
    def stats(self) -> Stats:
        """The cost of all searches so far."""
        total = replace(self._previous_stats)
        total.add(self._engine.stats)
        return total

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._engine.pauses:
            gc.set_threshold(GC_THRESHOLD)
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
        """Take the requests that have arrived; wait for one if there is nothing else to do. False if the thread should stop."""
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
        work.emit(EngineStopped("the server is stopping"))
        self.flush()

    def _enter(self, work: Work) -> None:
        work.waiting.extend(range(len(work.texts)))
        self._share.enter(work)

    def _drop(self, work: Work) -> None:
        """Drop what is not done of a cancelled request, which may have been dropped before, or never entered."""
        work.waiting.clear()
        for job in [*work.running]:
            self._remove(job)
        self._leave_if_done(work)

    def _remove(self, job: Job) -> Use:
        """Take a job out of the engine before it is done. Returns what it held."""
        if job in self._suspects:
            self._suspects.remove(job)
        else:
            self._engine.cancel(job)
        self._recordings.pop(job, None)
        return self._share.end(self._work.pop(job), job)

    def _leave_if_done(self, work: Work) -> None:
        if not work.running and not work.waiting and work in self._share.flows:
            self._share.leave(work)

    def _step(self) -> None:
        self._share.pauses = self._engine.pauses
        while not self._suspects and (excess := self._share.excess()):
            self._evict(*excess)
        self._feed()
        in_flight = self._in_flight()
        if all(job.paused for job in in_flight):  # the rows went to jobs that wait for memory which these hold
            for job in in_flight:
                job.paused = False
        try:
            for job, result in self._engine.step():
                self._finish(job, result)
            if any(work.stream for work in self._share.flows):
                for job in self._engine.in_flight:
                    if (work := self._work[job]).stream:
                        self._emit_certified(work, job, self._engine.certified(job))
        except Exception as error:  # raised by the model's own code
            self._recover(error)
        self._share.charge(self._in_flight())

    def _in_flight(self) -> set[Job]:
        """The jobs in the engine, for the scheduler; it needs none of them where jobs cannot be paused."""
        return {*self._engine.in_flight} if self._share.pauses else set()

    def _finish(self, job: Job, result: Result) -> None:
        work = self._work[job]
        if work.stream:
            self._emit_certified(work, job, result.hypotheses)
        trace = self._replay(work, job, result) if work.recorded else None  # calls the model; if that fails, the job runs again
        del self._work[job]
        self._share.end(work, job)
        self._emit_done(work, job.index, result, trace)

    def _emit_done(self, work: Work, index: int, result: Result, trace: Trace | None = None) -> None:
        work.emit(Done(index, result, trace, work.prompt_tokens(index)))
        if not work.running:
            self._leave_if_done(work)

    def _emit_certified(self, work: Work, job: Job, answers: Sequence[Answer]) -> None:
        """Emit those of a text's first answers that were not emitted before."""
        emitted = work.streamed.get(job.index, 0)
        for rank, answer in enumerate(answers[emitted:], emitted + 1):
            work.emit(Certified(job.index, rank, answer))
        work.streamed[job.index] = max(emitted, len(answers))

    # -- what goes into the engine -----------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Start texts as there is room; after a failed step, one suspect at a time."""
        if self._suspects:
            if not self._engine:
                self._engine.submit(self._suspects.popleft())
            for job in self._work:
                job.paused = False
            return
        # An engine on a device is given all it wants at a time: it works on that while the next texts are tokenised.
        wanted, turn = (inf, 1) if self._share.pauses else (self._engine.wants, JOBS_PER_TURN)
        for work in self._share.allocate(self._in_flight()):
            if wanted <= 0:
                return
            before = len(work.waiting)
            lacking = self._start(work, min(turn, wanted, before))
            wanted -= before - len(work.waiting)
            if lacking is not None and self._share.overdue(work, lacking):
                return

    def _start(self, work: Work, most: float) -> Use | None:
        """Start up to `most` of the waiting texts of a request; those that need no search are done at once and do not count.
        Returns what the next text needs if there is no room for it."""
        jobs: list[Job] = []
        share, waiting, running, lacking = self._share, work.waiting, self._work, None
        settings, use = None, Use(1, 0)
        while len(jobs) < most and waiting and lacking is None:
            index = waiting[0]
            job = self._next_job(work, index)
            if isinstance(job, Result):
                self._emit_done(work, waiting.popleft(), job)
                most -= 1
                continue
            if job.decoding is not settings:  # nearly always those of the text before
                settings = job.decoding
                use = Use(settings.beam if settings.plan.level_by_level else 1, 0)
            if share.pauses:  # the memory that a search needs is known when it is done: reserve what most searches need
                usual = 3 * use.rows * (job.source.length + 1)
                use = Use(use.rows, min(work.reserved.get(index, usual), share.tokens // 2))
            if share.has_room(use) or self._make_room(work, use):
                waiting.popleft()
                share.start(work, job, use)
                running[job] = work
                jobs.append(job)
            else:
                lacking = use
        self._engine.submit(*jobs)
        return lacking

    def _next_job(self, work: Work, index: int) -> Job | Result:
        """The job of a text; or its result, if it needs no search or cannot be searched."""
        source = work.sources.get(index)
        if source is None:
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
        """Tokenise waiting texts: this request's next and, if the model reads batches, as many of each other request, since they
        start in turns."""
        most = 1 if self._read.read_batch is None else BATCH if self._work else FIRST_BATCH
        works = [each for each in dict.fromkeys((work, *self._share.flows)) if len(each.sources) < len(each.texts)]
        share = max(JOBS_PER_TURN, most // len(works))
        unread: list[tuple[Work, range]] = []
        for each in works:
            first = len(each.sources)  # texts are read in order
            new = range(first, min(first + min(share, most), len(each.texts)))
            unread.append((each, new))
            most -= len(new)
        self._read(unread)

    def _make_room(self, work: Work, use: Use) -> bool:
        """Evict jobs of requests that hold much more, for a job that there is no room for. Returns whether there is room then."""
        while evicted := self._share.to_evict(work, use):
            self._evict(*evicted)
            if self._share.has_room(use):
                return True
        return False

    def _evict(self, work: Work, job: Job) -> None:
        """Take a job out of the engine, to begin again when there is more room; an error if there is not enough memory at all."""
        tokens = self._remove(job).tokens
        if tokens > self._share.tokens:
            message = f"this text needs more than the {self._share.tokens:,} tokens of memory that the server has"
            self._emit_done(work, job.index, Result(status="error", message=f"{message}; ask for a smaller beam or max_length"))
            return
        work.reserved[job.index] = 2 * tokens
        work.waiting.appendleft(job.index)

    # -- searches that are recorded ----------------------------------------------------------------------------------------

    def _record(self, job: Job) -> RecordedSearch:
        search = job.decoding.search(job.source, self.model.eos, Trace())  # the kind that traces: others may make fewer calls
        self._recordings[job] = RecordedSearch(search)
        return self._recordings[job]

    def _replay(self, work: Work, job: Job, result: Result) -> Trace | None:
        """All events of a recorded search, in strict order; None if the search failed."""
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
        """After a failed step: give up the engine and run its jobs again, one at a time. The one that fails alone is at fault."""
        failed = [job for job in self._work if job not in self._suspects]
        log.warning("a step of %d texts failed: %s", len(failed), error, exc_info=True)
        self._previous_stats.add(self._engine.stats)
        self._engine = engine_for(self.model, self._settings)
        if len(failed) == 1:
            self._finish(failed[0], Result(status="error", message=f"the model failed: {type(error).__name__}"))
        else:
            self._suspects.extend(failed)
