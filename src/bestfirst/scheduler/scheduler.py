"""The scheduler: all searches in flight share a budget of rows for each forward pass.

Certain work comes first: the hypothesis that each search needs next. What is left of the budget goes to speculation, where it is
likeliest to be needed. Searches take what was scored in any order (`bestfirst.search`), so neither results nor `calls` depend on the
budget or on who shares it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import Scorer, Source
from ..search import Driven, Hypothesis, Result


@dataclass
class Job:
    """One input on its way through the scheduler."""

    index: int
    source: Source
    search: Driven
    steps: int = 0


class Scheduler:
    """Runs searches on a scorer: at most `row_budget` rows a step, at most `in_flight` inputs at a time."""

    def __init__(self, scorer: Scorer, row_budget: int, in_flight: int | None = None) -> None:
        if row_budget < 1:
            raise ValueError(f"row_budget must be at least 1, got {row_budget}")
        self.scorer = scorer
        self.row_budget = row_budget
        self.in_flight = in_flight or row_budget
        self.steps = 0
        self.rows = 0

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Decode all jobs; yields each as it finishes."""
        waiting = deque(jobs)
        active: list[Job] = []
        while waiting or active:
            active += self._admit(waiting, len(active))
            plan = self._plan(active)
            self._step(plan)
            active = []
            for job, work in plan:
                if work:
                    active.append(job)
                else:
                    yield job, self._result(job)

    def _admit(self, waiting: deque[Job], busy: int) -> list[Job]:
        """Let inputs in as others leave, a quarter of the room at a time, so that what is done once for each is done in batches."""
        room = self.in_flight - busy
        if not waiting or (busy and room < self.in_flight / 4):
            return []
        entering = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        self.scorer.start([(job.search.root, job.source) for job in entering])
        return entering

    def _plan(self, active: Sequence[Job]) -> list[tuple[Job, list[Hypothesis]]]:
        """Who is scored in this step: what is needed, then what is worth scoring ahead."""
        share = max(1, self.row_budget // max(1, len(active)))
        return [(job, job.search.frontier(share)) for job in active]

    def _step(self, plan: Sequence[tuple[Job, list[Hypothesis]]]) -> None:
        """One forward pass; every search takes what was scored for it."""
        batch = [y for _, work in plan for y in work]
        if not batch:
            return
        answers = iter(self.scorer.expand(batch))
        self.steps += 1
        self.rows += len(batch)
        for job, work in plan:
            job.steps += bool(work)
            for y in work:
                job.search.commit(y, next(answers))

    def _result(self, job: Job) -> Result:
        result = job.search.result()
        result.steps = job.steps
        for answer in [*result.hypotheses, *([result.partial] if result.partial else [])]:
            answer.text = self.scorer.text(job.source, answer.tokens)
        self.scorer.release(job.search.root)
        return result
