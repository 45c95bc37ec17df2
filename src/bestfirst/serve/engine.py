"""Engine: one thread that runs the model. Orders come in and events go out while it runs; all share the forward passes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from ..decoding import Task
from ..scheduler import Job, Scheduler
from ..scoring import LogProbability
from ..search import Answer, Result, Trace, certified
from ..settings import Budget, Model
from .recorded import Recorded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Certified:
    """An answer that is sure to be the text's `rank`-th, before its search is over."""

    index: int
    rank: int
    answer: Answer


@dataclass(frozen=True)
class Done:
    """A text's search is over."""

    index: int
    result: Result
    trace: Trace | None = None


@dataclass(frozen=True)
class Failed:
    """The order cannot be carried out, through no fault of its own."""

    message: str


Event = Certified | Done | Failed


@dataclass(eq=False)
class Order:
    """Texts, and what is asked of each. `tell` gets its events, in the engine's thread."""

    items: Sequence[tuple[str, Task]]
    tell: Callable[[Event], None]
    stream: bool = False  # tell of answers as they are certified
    traced: bool = False  # tell every event of every search, in strict order
    cancelled: bool = False
    jobs: list[Job] = field(default_factory=list)  # those that are not over


class Engine:
    """Runs orders on one model. `submit`, `cancel` and `stop` may be called from any thread; nothing else of it may.

    `flush` is called in the engine's thread after events were told, once for all of a step.
    """

    def __init__(self, model: Model, *, max_beam: int, row_budget: int | None = None) -> None:
        self.model = model
        self.flush: Callable[[], None] = lambda: None
        self._width = max_beam + len(model.eos)
        self._budget = None if row_budget is None else Budget(row_budget, row_budget)
        self._scheduler = self._fresh()
        self._before = (0, 0)  # steps and rows of schedulers that were given up
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._orders: dict[Job, Order] = {}
        self._told: dict[Job, int] = {}  # of an order that streams, how many answers it knows
        self._one_by_one: deque[Job] = deque()  # after a failure, until who is at fault is found
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # -- from other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, order: Order) -> None:
        """Carry out this order."""
        self._inbox.put(partial(self._enter, order))

    def cancel(self, order: Order) -> None:
        """Nobody waits for this order any more: give up what is not done, and what is held for it."""
        order.cancelled = True
        self._inbox.put(partial(self._drop, order))

    def stop(self) -> None:
        """End the thread; orders that are not done fail."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self._thread.is_alive()

    @property
    def in_flight(self) -> int:
        """Texts that share the forward passes."""
        return len(self._scheduler.active)

    @property
    def steps(self) -> int:
        """Forward passes so far."""
        return self._before[0] + self._scheduler.stats.steps

    @property
    def rows(self) -> int:
        """Hypotheses scored so far."""
        return self._before[1] + self._scheduler.stats.rows

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                for note in self._notes():
                    if note is None:
                        return
                    note()
                self._step()
                self.flush()
        finally:
            for order in {*self._orders.values()}:
                order.tell(Failed("the server is stopping"))
            self.flush()

    def _notes(self) -> Iterator[Callable[[], None] | None]:
        """What has come in; where there is nothing else to do, wait for it."""
        if not self._scheduler and not self._one_by_one:
            yield self._inbox.get()
        while True:
            try:
                yield self._inbox.get_nowait()
            except Empty:
                return

    def _enter(self, order: Order) -> None:
        for index, (text, task) in enumerate(order.items):
            if order.cancelled:
                return
            if not text.strip():  # nothing to ask the model
                order.tell(Done(index, Result(status="complete", exact=True)))
                continue
            try:
                job = self._job(index, text, task, order.traced)
            except ValueError as error:
                order.tell(Done(index, Result(status="error", message=str(error))))
                continue
            except Exception as error:  # of the tokenizer's own code
                log.warning("a text could not be read: %s", error, exc_info=True)
                order.tell(Done(index, Result(status="error", message=f"the text cannot be read: {type(error).__name__}")))
                continue
            self._orders[job] = order
            order.jobs.append(job)
            if self._one_by_one:
                self._one_by_one.append(job)
            else:
                self._scheduler.submit(job)

    def _job(self, index: int, text: str, task: Task, traced: bool) -> Job:
        job = task.job(index, self._scheduler.scorer.reader()(text), self._scheduler.scorer.eos)
        again = job.again
        if traced and again is not None:
            job.search, job.again = Recorded(job.search), lambda: Recorded(again())
        return job

    def _drop(self, order: Order) -> None:
        for job in order.jobs:
            if job in self._one_by_one:
                self._one_by_one.remove(job)
            else:
                self._scheduler.cancel(job)
            self._forget(job)
        order.jobs = []

    def _forget(self, job: Job) -> None:
        del self._orders[job]
        self._told.pop(job, None)

    def _step(self) -> None:
        if self._one_by_one and not self._scheduler:
            self._scheduler.submit(self._one_by_one.popleft())
        try:
            for job, result in self._scheduler.step():
                self._done(job, result)
            for job in self._scheduler.active:
                if self._orders[job].stream:
                    self._certify(job, certified(job.search))
        except Exception as error:  # of the model's own code
            self._recover(error)

    def _done(self, job: Job, result: Result) -> None:
        order = self._orders[job]
        if order.stream:
            self._certify(job, result.hypotheses)
        order.jobs.remove(job)
        self._forget(job)
        order.tell(Done(job.index, result, self._story(job, order, result)))

    def _story(self, job: Job, order: Order, result: Result) -> Trace | None:
        """Every event of a search that was recorded, as they would come in strict order."""
        if not isinstance(job.search, Recorded) or result.status == "error":
            return None
        text, task = order.items[job.index]
        trace = Trace()
        trace.describe(self.model, text)
        eos = self._scheduler.scorer.eos
        job.search.tell(task.job(job.index, job.source, eos, trace).search, int(task.plan.k) + len(eos))
        trace.text(result)
        return trace

    def _certify(self, job: Job, answers: Sequence[Answer]) -> None:
        """Tell of those answers that are news."""
        known = self._told.get(job, 0)
        for rank, answer in enumerate(answers[known:], known + 1):
            answer.text = self._scheduler.scorer.text(job.source, answer.tokens)
            self._orders[job].tell(Certified(job.index, rank, answer))
        self._told[job] = max(known, len(answers))

    # -- when the model fails ----------------------------------------------------------------------------------------------

    def _fresh(self) -> Scheduler:
        """A scheduler for every score that adds up log-probabilities as they are: what a request can ask for."""
        scorer = self.model.scorer(LogProbability(), self._width)
        self._budget = self._budget or scorer.budget()
        return Scheduler(scorer, self._budget)

    def _recover(self, error: Exception) -> None:
        """A forward pass failed: all that are not done begin again, each alone, and the one that fails then is at fault."""
        suspects = [job for job in self._orders if job not in self._one_by_one]
        log.warning("a step of %d texts failed: %s", len(suspects), error, exc_info=True)
        self._before = (self.steps, self.rows)
        self._scheduler = self._fresh()
        for job in suspects:
            if len(suspects) == 1:
                self._done(job, Result(status="error", message=f"the model failed: {type(error).__name__}"))
            else:
                job.begin_again()
                self._one_by_one.append(job)
