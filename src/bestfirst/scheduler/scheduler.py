"""The scheduler: all searches in flight share a budget of rows for each forward pass.

    scheduler.submit(job)           # at any time between two steps; so is `cancel`
    for job, result in scheduler.step():
        ...                         # those that are over, before the forward pass of the others

Certain work comes first: the hypothesis that each search needs next. What is left of the budget goes to speculation, where it is
likeliest to be needed. Searches take what was scored in any order (`bestfirst.search`), so neither results nor `calls` depend
on the budget, on who shares it or on when they came (`tests/scheduler/`).
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from ..models import Budget, Scorer, Source
from ..search import Hypothesis, Result, Search

WINDOW = 16  # inputs that are read ahead and sorted by length, for each one in flight


@dataclass(eq=False)
class Job:
    """One input on its way through the scheduler."""

    index: int
    source: Source
    search: Search
    again: Callable[[], Search] | None = None  # a new search of the same input, should this one have to make room
    steps: int = 0
    guessed: int = 0  # rows that were scored ahead
    share: float = 0.0  # of the memory bound

    @property
    def holds(self) -> float:
        """Its share, or what it has for certain after the next step, where that is more; and what was scored ahead for it."""
        certain = self.source.length + 1 + self.search.rows - self.guessed
        return max(self.share, certain + self.rows_each) + self.guessed

    @property
    def rows_each(self) -> int:
        """How many rows it needs in a step: a whole level, or one."""
        return self.search.level_rows if self.search.whole_levels else 1

    def begin_again(self) -> None:
        """Forget what was searched."""
        assert self.again is not None
        self.search, self.steps, self.guessed, self.share = self.again(), 0, 0, 0.0


@dataclass
class Stats:
    """What a decode cost as a whole. `model_seconds`: in the encoder, forward passes, gathers and top-k; the rest is search."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    in_flight: int = 0  # most inputs at a time
    cache_tokens: int = 0  # most tokens held at a time, for all of them

    @property
    def outside(self) -> float:
        """The share of time that was not the model's."""
        return 1 - self.model_seconds / self.seconds if self.seconds else 0.0


Plan = list[tuple[Job, list[Hypothesis]]]


class Scheduler:
    """Runs searches on a scorer.

    `budget`: rows in a step. `max_cache_tokens`: no more inputs are let in than will, as far as can be foreseen, hold so many
    tokens together; if they come to need more, the latest make room and begin again later. Only an input that needs more by
    itself exceeds the bound; nothing is ever given up.
    """

    def __init__(self, scorer: Scorer, budget: Budget, max_cache_tokens: float = float("inf")) -> None:
        self.scorer = scorer
        self.budget = budget
        self.max_cache_tokens = max_cache_tokens
        self.stats = Stats()
        self.waiting = Waiting(WINDOW * budget.rows)
        self.active: list[Job] = []
        self._tokens_each = 3.0  # most tokens held for each token of an input, so far

    def __bool__(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.active or self.waiting)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Decode all jobs; yields each as it finishes."""
        self.waiting.read(jobs)
        if (alone := self.waiting.alone()) is not None:  # latency counts: a step for each length, as in beam search
            self.budget = Budget(self.budget.rows, max(self.budget.free, min(self.budget.rows, alone.search.level_rows)))
        with no_garbage_collection():
            while self:
                yield from self.step()

    def submit(self, job: Job) -> None:
        """Queue a job behind those that wait."""
        self.waiting.add(job)

    def cancel(self, job: Job) -> None:
        """Give up a job that waits or is in flight, and what is held for it."""
        if job in self.active:
            self.active.remove(job)
            self.scorer.release(job.search.root)
        else:
            self.waiting.remove(job)
        job.search.dismantle()

    def step(self) -> Iterator[tuple[Job, Result]]:
        """Yields the jobs that are over; then one forward pass for all others in flight."""
        self.active += self._admit(self.waiting, self.active)
        self.active = self._make_room(self.waiting, self.active)
        plan = self._plan(self.active)
        self.stats.in_flight = max(self.stats.in_flight, len(self.active))
        over = [job for job, work in plan if work is DONE]
        if over:
            self.active = [job for job, work in plan if work is not DONE]
        for job in over:
            yield job, self._result(job)
        self._step(plan)
        self.stats.cache_tokens = max(self.stats.cache_tokens, self.scorer.cache_tokens())

    def _admit(self, waiting: Waiting, active: Sequence[Job]) -> list[Job]:
        """Let inputs in as others leave, a quarter of the room at a time, so that what is done once for each is done in batches.

        Each takes with it a share of the memory bound, by its length and by what the inputs before it came to need.
        """
        if not waiting:
            return []
        rows = self.budget.rows - sum(job.rows_each for job in active)  # each has as many as it needs in a step
        if active and rows < max(waiting.next.rows_each, self.budget.rows // 4):
            return []
        free = self.max_cache_tokens - sum(job.holds for job in active)
        entering: list[Job] = []
        while waiting and (rows >= waiting.next.rows_each or not (active or entering)):
            job = waiting.next
            job.share = self._tokens_each * (job.source.length + 1) * job.rows_each
            if job.share > free and (active or entering):
                break
            rows -= job.rows_each
            free -= job.share
            entering.append(waiting.take())
        entering.sort(key=lambda job: -job.source.length)  # those encoded together are to be alike
        if entering:
            self.scorer.start([(job.search.root, job.source) for job in entering])
        return entering

    def _make_room(self, waiting: Waiting, active: list[Job]) -> list[Job]:
        """While the next step could go beyond the memory bound, send the latest input back to begin again when there is room."""
        while len(active) > 1 and self.scorer.cache_tokens() + sum(job.rows_each for job in active) > self.max_cache_tokens:
            job = active[-1]
            if job.again is None:
                break
            self.scorer.release(job.search.root)
            job.search.dismantle()
            job.begin_again()
            waiting.give_back(job)
            active = active[:-1]
        return active

    def _plan(self, active: Sequence[Job]) -> Plan:
        """Who is scored in this step: what is needed, then, while the step has room, what is worth scoring ahead."""
        left = self.budget.rows
        unshared = self.max_cache_tokens - sum(job.holds for job in active)  # memory for what may turn out not to be needed
        ahead = int(max(0, min(left - len(active), self.budget.free - len(active), unshared)))
        each = min(ahead, 1 + 2 * ahead // max(1, len(active)))  # guesses asked of a search; the likeliest of all are taken
        plan: Plan = []
        guesses: list[tuple[float, int, Hypothesis]] = []
        for place, job in enumerate(active):
            if place and left < 1:
                plan.append((job, []))  # waits for its turn
                continue
            search = job.search
            # With k rows a step, a search takes no more steps than beam search: more would not make it faster.
            work = search.frontier(left if search.whole_levels else min(1 + each, search.level_rows))
            if ahead and not search.whole_levels:
                guesses += [(work[0].bound - y.bound, place, y) for y in work[1:]]
                work = work[:1]
            left -= len(work)
            plan.append((job, work or DONE))
        guesses.sort(key=lambda guess: guess[0])
        for _, place, y in guesses[: min(ahead, left)]:
            plan[place][0].guessed += 1
            plan[place][1].append(y)
        return plan

    def _step(self, plan: Plan) -> None:
        """One forward pass; every search takes what was scored for it."""
        batch = [y for _, work in plan for y in work]
        if not batch:
            return
        answers = iter(self.scorer.expand(batch))
        self.stats.steps += 1
        self.stats.rows += len(batch)
        for job, work in plan:
            if work:
                job.steps += 1
                commit = job.search.commit
                for y in work:
                    commit(y, next(answers))

    def _result(self, job: Job) -> Result:
        result = job.search.result()
        result.steps = job.steps
        self._tokens_each = max(self._tokens_each, 1 + (result.rows - job.guessed) / (job.source.length + 1) / job.rows_each)
        for answer in [*result.hypotheses, *([result.partial] if result.partial else [])]:
            answer.text = self.scorer.text(job.source, answer.tokens)
        self.scorer.release(job.search.root)
        job.search.dismantle()
        return result


DONE: list[Hypothesis] = []
"""In a plan: this search is over, as against having no row in this step."""


class Waiting:
    """Inputs that have not begun: those submitted, in order; or read a window ahead, the longest first, so that those encoded
    together are alike."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._unread: Iterator[Job] = iter(())
        self._jobs: deque[Job] = deque()

    def __bool__(self) -> bool:
        if not self._jobs:
            self._jobs.extend(sorted(islice(self._unread, self._window), key=lambda job: -job.source.length))
        return bool(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """Those that were submitted or read."""
        return iter(self._jobs)

    def read(self, jobs: Iterable[Job]) -> None:
        """From now on, take inputs from here."""
        self._unread = iter(jobs)

    def add(self, job: Job) -> None:
        """One more, behind all others."""
        self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """One fewer."""
        self._jobs.remove(job)

    @property
    def next(self) -> Job:
        """The one that comes first, where there is one."""
        return self._jobs[0]

    def take(self) -> Job:
        """Let it go."""
        return self._jobs.popleft()

    def give_back(self, job: Job) -> None:
        """Put one that had begun in front again."""
        self._jobs.appendleft(job)

    def alone(self) -> Job | None:
        """The only input there is."""
        return self._jobs[0] if self and len(self._jobs) == 1 else None


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Searches make many objects and take them apart themselves; looking for garbage among them costs more than the search."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
