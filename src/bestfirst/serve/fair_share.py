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
from typing import Generic, NamedTuple, TypeVar

from ..engine import Job


class Need(NamedTuple):
    """What a job takes: rows of every forward pass that it is in, and tokens of the cache at worst."""

    rows: int
    tokens: int


@dataclass(eq=False)
class Flow:
    """The jobs of one request."""

    client: str
    waiting: deque[int] = field(default_factory=deque)  # numbers of the texts that no engine has seen
    running: dict[Job, Need] = field(default_factory=dict)  # in the engine, the latest last
    used: float = 0.0  # rows it has had, beginning at the virtual time of its arrival

    @property
    def tokens(self) -> int:
        """Of the cache, what may be held for it."""
        return sum(need.tokens for need in self.running.values())


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

    def allocate(self) -> None:
        """Before a forward pass: pause what has had more than its share, and what it has no room for."""
        self._left = self.rows
        self.flows.sort(key=lambda flow: flow.used)
        for flow in self.flows:
            ahead = self._ahead(flow) and self._left < self.rows  # somebody always goes on
            for job, need in flow.running.items():
                job.paused = ahead or not self._fits(need)
                if not job.paused:
                    self._left -= need.rows

    def charge(self) -> None:
        """After a forward pass: count what each has had."""
        total = 0
        for flow in self.flows:
            rows = sum(need.rows for job, need in flow.running.items() if not job.paused)
            flow.used += rows * self._requests[flow.client]  # a client's requests share what is one client's
            total += rows
        if self.flows:
            # Nobody is behind the one who has had least: time that nobody could use is not made up for.
            self._now = max(self._now + total / len(self._requests), min(flow.used for flow in self.flows))

    def next(self) -> Iterator[AnyFlow]:
        """Whose text should be started now, while there are rows for one: those with the least first, a text at a time.

        The caller starts one (`start`), or removes one that needs no start, or goes on to the next flow.
        """
        order = [(flow.used + self._running_rows(flow), place, flow) for place, flow in enumerate(self.flows) if flow.waiting]
        order = [each for each in order if not self._ahead(each[2])]
        heapify(order)
        while order and self._left > 0:
            _, place, flow = order[0]
            waiting = len(flow.waiting)
            yield flow
            if len(flow.waiting) == waiting or not flow.waiting:
                heappop(order)
            else:
                heapreplace(order, (flow.used + self._running_rows(flow), place, flow))

    def start(self, flow: AnyFlow, job: Job, need: Need) -> None:
        """This job is in the engine."""
        flow.running[job] = need
        self._left -= need.rows
        self._free -= need.tokens

    def end(self, flow: AnyFlow, job: Job) -> None:
        """It is there no more."""
        self._free += flow.running.pop(job).tokens

    def room(self, need: Need) -> bool:
        """Whether there is enough of both for such a job."""
        return self._fits(need) and need.tokens <= self._free

    def to_evict(self, flow: AnyFlow, need: Need) -> tuple[AnyFlow, Job] | None:
        """Whose latest job should make room for this one: of the flow that holds most, if it will still hold as much as this."""
        holder = max(self.flows, key=lambda each: each.tokens)
        if not holder.running or not self._fits(need):
            return None
        job, latest = next(reversed(holder.running.items()))
        return (holder, job) if holder.tokens - latest.tokens >= flow.tokens + need.tokens else None

    def overdue(self, flow: AnyFlow) -> bool:
        """Whether it has waited for so long that others may not pass it any more."""
        return flow.used < self._now - self._pass(flow)

    def _ahead(self, flow: AnyFlow) -> bool:
        return flow.used > self._now + self._pass(flow)

    def _pass(self, flow: AnyFlow) -> int:
        """A whole forward pass, as it counts for this flow."""
        return self.rows * self._requests[flow.client]

    def _fits(self, need: Need) -> bool:
        return need.rows <= self._left or self._left == self.rows

    def _running_rows(self, flow: AnyFlow) -> int:
        return self._requests[flow.client] * sum(need.rows for need in flow.running.values())
