"""Fair share: who takes part in the next forward pass. Weighted fair queueing over rows: between clients, and between the
requests of each.

Every request has had so many rows; virtual time is what each would have had if all were served alike. Those that are a whole pass
ahead of it are paused, those furthest behind come first. So a request of many wide searches gets what is left over by small
ones, all there is when it is alone, and as much as any other when all are large.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, Generic, TypeVar

from ..engine import Job


@dataclass(eq=False, slots=True)
class Use:
    """What a job takes: rows of every forward pass that it is in, and tokens of the cache: what was set aside for it, or more."""

    rows: int
    tokens: int
    scored: int = 0


@dataclass(eq=False)
class Flow:
    """The jobs of one request."""

    client: str
    waiting: deque[int] = field(default_factory=deque)  # numbers of the texts that no engine has seen
    running: dict[Job, Use] = field(default_factory=dict)  # in the engine, the latest last
    used: float = 0.0  # rows it has had, beginning at the virtual time of its arrival
    rows: int = 0  # of a forward pass, that all of its running jobs take

    @property
    def tokens(self) -> int:
        """Of the cache, what is held for it."""
        return sum(use.tokens for use in self.running.values())


AnyFlow = TypeVar("AnyFlow", bound=Flow)


class FairShare(Generic[AnyFlow]):
    """Divides the rows of forward passes and the tokens of the cache among flows. Of searches that run `by_themselves`, on a
    device, it says who starts, and no more: nobody is paused, and memory is the engine's own affair."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = rows
        self.tokens = tokens
        self.by_themselves = False
        self.flows: list[AnyFlow] = []
        self._now = 0.0
        self._requests: Counter[str] = Counter()  # of each client
        self._left = 0  # rows of the next pass
        self._free = tokens
        self._needed = 0  # rows that all that run would take
        self._pausing = False  # whether some of them may be paused

    def enter(self, flow: AnyFlow) -> None:
        flow.used = self._now
        self.flows.append(flow)
        self._requests[flow.client] += 1

    def leave(self, flow: AnyFlow) -> None:
        self.flows.remove(flow)
        self._requests[flow.client] -= 1
        self._requests += Counter()  # forgets clients that have none

    def start(self, flow: AnyFlow, job: Job, use: Use) -> None:
        """A job is in the engine."""
        flow.running[job] = use
        flow.rows += use.rows
        self._needed += use.rows
        self._left -= use.rows
        self._free -= use.tokens

    def end(self, flow: AnyFlow, job: Job) -> Use:
        use = flow.running.pop(job)
        flow.rows -= use.rows
        self._needed -= use.rows
        self._free += use.tokens
        return use

    def allocate(self, in_flight: Collection[Job]) -> Iterator[AnyFlow]:
        """Before a forward pass: give out its rows, a job at a time. First every request that has begun goes on with a job; then
        those with the least come first. All other jobs are paused.

        Yields whose text should be started now. The caller starts one (`start`), or removes one that needs no start, or neither.
        """
        # Where there is enough for all that run, and for as many again, who starts is the question.
        if self.by_themselves or 2 * self._needed <= self.rows:
            self._left = self.rows - self._needed
            for flow in self.flows if self._pausing else ():
                for job in flow.running:
                    job.paused = False
            self._pausing = False
            waiting = [(False, flow.used, i, flow, iter(())) for i, flow in enumerate(self.flows) if flow.waiting]
            yield from self._starts(waiting, entering=False)
            return
        self._left, self._pausing = self.rows, True
        entering = any(job not in in_flight for flow in self.flows for job in flow.running)
        order = []
        for place, flow in enumerate(self.flows):
            for job in flow.running:
                job.paused = True
            entering = entering or not flow.running
            if not self._ahead(flow):
                order.append((not flow.running, flow.used, place, flow, iter([*flow.running.items()])))
        yield from self._starts(order, entering)

    def _starts(self, order: list[Any], entering: bool) -> Iterator[AnyFlow]:
        heapify(order)
        while order and self._left > 0:
            further, standing, place, flow, jobs = order[0]
            before, waiting = self._left, len(flow.waiting)
            given = next(jobs, None)
            if given is None:
                if waiting:
                    yield flow
                if len(flow.waiting) == waiting:
                    heappop(order)
                    continue
            elif given[0] in flow.running and self._fits(given[1]) and (not (further and entering) or before > self.rows // 4):
                # Engines let jobs in when a quarter of the rows are free: who has several jobs leaves those to who has none.
                given[0].paused = False
                self._left -= given[1].rows
            standing += (before - self._left) * self._requests[flow.client]
            heapreplace(order, (True, standing, place, flow, jobs))

    def charge(self, in_flight: Collection[Job]) -> None:
        """After a forward pass of these jobs: count what each has had."""
        total = 0
        for flow in self.flows:
            rows = flow.rows if self.by_themselves else 0
            for job, use in () if self.by_themselves else flow.running.items():
                if not job.paused and job in in_flight:
                    rows += use.rows
                    use.scored += use.rows
                    more = job.source.length + 1 + use.scored - use.tokens
                    if more > 0:
                        use.tokens += more
                        self._free -= more
            flow.used += rows * self._requests[flow.client]  # a client's requests share what is one client's
            total += rows
        if self.flows:
            # Nobody is behind the one who has had least: time that nobody could use is not made up for.
            self._now = max(self._now + total / len(self._requests), min(flow.used for flow in self.flows))

    # -- who makes room ----------------------------------------------------------------------------------------------------

    def room(self, use: Use) -> bool:
        """Whether there is enough of both for such a job."""
        return (use.rows <= self._left or self._fits(use)) and (self.by_themselves or use.tokens <= self._free)

    def latest_of_largest(self) -> tuple[AnyFlow, Job] | None:
        """The latest job of the flow that most is held for."""
        holder = max(self.flows, key=lambda flow: flow.tokens)
        return (holder, next(reversed(holder.running))) if holder.running else None

    def to_evict(self, flow: AnyFlow, use: Use) -> tuple[AnyFlow, Job] | None:
        """Who should make room for such a job of this flow: somebody who will still hold as much as this one then."""
        found = self.latest_of_largest() if self._fits(use) else None
        if found is None:
            return None
        holder, job = found
        return found if holder.tokens - holder.running[job].tokens >= flow.tokens + use.tokens else None

    def excess(self) -> tuple[AnyFlow, Job] | None:
        """Who should make room because together they came to hold more than there is."""
        return self.latest_of_largest() if self._free < 0 and not self.by_themselves else None

    def overdue(self, flow: AnyFlow, use: Use) -> bool:
        """Whether such a job has waited for rows for so long that others may not pass it any more. For memory they may: those
        that need little are not to wait for those that need much."""
        return not self._fits(use) and flow.used < self._now - self._pass(flow)

    def _ahead(self, flow: AnyFlow) -> bool:
        return flow.used > self._now + self._pass(flow)

    def _pass(self, flow: AnyFlow) -> int:
        """A whole forward pass, as it counts for this flow."""
        return self.rows * self._requests[flow.client]

    def _fits(self, use: Use) -> bool:
        return use.rows <= self._left or self._left == self.rows
