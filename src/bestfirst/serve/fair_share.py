"""Fair share: who takes part in the next forward pass. Weighted fair queueing over rows: between clients, and between the
requests of each.

Every request has had so many rows; virtual time is what each would have had if all were served alike. Those that are a whole pass
ahead of it are paused, those furthest behind come first. So a request of many wide searches gets what is left over by small
ones, all there is when it is alone, and as much as any other when all are large.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

from ..engine import Job


@dataclass(eq=False)
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

    @property
    def tokens(self) -> int:
        """Of the cache, what is held for it."""
        return sum(use.tokens for use in self.running.values())


AnyFlow = TypeVar("AnyFlow", bound=Flow)


class FairShare(Generic[AnyFlow]):
    """Divides the rows of forward passes and the tokens of the cache among flows."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = rows
        self.tokens = tokens
        self.flows: list[AnyFlow] = []
        self._now = 0.0
        self._requests: Counter[str] = Counter()  # of each client
        self._left = 0  # rows of the next pass
        self._free = tokens

    def enter(self, flow: AnyFlow) -> None:
        """Another request."""
        flow.used = self._now
        self.flows.append(flow)
        self._requests[flow.client] += 1

    def leave(self, flow: AnyFlow) -> None:
        """It is over."""
        self.flows.remove(flow)
        self._requests[flow.client] -= 1
        self._requests += Counter()  # forgets clients that have none

    def start(self, flow: AnyFlow, job: Job, use: Use) -> None:
        """A job is in the engine."""
        flow.running[job] = use
        self._left -= use.rows
        self._free -= use.tokens

    def end(self, flow: AnyFlow, job: Job) -> Use:
        """It is there no more."""
        use = flow.running.pop(job)
        self._free += use.tokens
        return use

    # -- a forward pass ----------------------------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Before it: pause what has had more than its share, and what there is no room for."""
        self._left = self.rows
        self.flows.sort(key=lambda flow: flow.used)
        for flow in self.flows:
            ahead = self._ahead(flow) and self._left < self.rows  # somebody always goes on
            for job, use in flow.running.items():
                job.paused = ahead or not self._fits(use)
                if not job.paused:
                    self._left -= use.rows

    def charge(self) -> None:
        """After it: count what each has had."""
        total = 0
        for flow in self.flows:
            rows = 0
            for job, use in flow.running.items():
                if not job.paused:
                    rows += use.rows
                    use.scored += use.rows
                    more = max(0, job.source.length + 1 + use.scored - use.tokens)
                    use.tokens += more
                    self._free -= more
            flow.used += rows * self._requests[flow.client]  # a client's requests share what is one client's
            total += rows
        if self.flows:
            # Nobody is behind the one who has had least: time that nobody could use is not made up for.
            self._now = max(self._now + total / len(self._requests), min(flow.used for flow in self.flows))

    # -- who comes next, and who makes room --------------------------------------------------------------------------------

    def next(self) -> Iterator[AnyFlow]:
        """Whose text should be started now, while there are rows for one: those with the least first, a text at a time.

        The caller starts one (`start`), or removes one that needs no start, or goes on to the next flow.
        """
        order = [(self._standing(flow), place, flow) for place, flow in enumerate(self.flows) if flow.waiting]
        order = [each for each in order if not self._ahead(each[2])]
        heapify(order)
        while order and self._left > 0:
            _, place, flow = order[0]
            waiting = len(flow.waiting)
            yield flow
            if len(flow.waiting) == waiting or not flow.waiting:
                heappop(order)
            else:
                heapreplace(order, (self._standing(flow), place, flow))

    def room(self, use: Use) -> bool:
        """Whether there is enough of both for such a job."""
        return self._fits(use) and use.tokens <= self._free

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
        return self.latest_of_largest() if self._free < 0 else None

    def overdue(self, flow: AnyFlow) -> bool:
        """Whether it has waited for so long that others may not pass it any more."""
        return flow.used < self._now - self._pass(flow)

    def _ahead(self, flow: AnyFlow) -> bool:
        return flow.used > self._now + self._pass(flow)

    def _pass(self, flow: AnyFlow) -> int:
        """A whole forward pass, as it counts for this flow."""
        return self.rows * self._requests[flow.client]

    def _standing(self, flow: AnyFlow) -> float:
        """What it has had, with what it gets in this pass."""
        return flow.used + self._requests[flow.client] * sum(use.rows for use in flow.running.values())

    def _fits(self, use: Use) -> bool:
        return use.rows <= self._left or self._left == self.rows
