"""Fair share: the scheduler that decides which jobs take part in the next forward pass. Weighted fair queueing over rows: first
between clients, then between the requests of each client.

Every request has been given a number of rows; virtual time is the number that each would have been given if all were served
alike. Requests that are a whole pass ahead of virtual time are paused, those furthest behind come first. So a request of many
wide searches gets the rows that small requests leave, all rows when it is alone, and as many as any other when all are large.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, Generic, TypeVar

from ..engine import Job


@dataclass(eq=False, slots=True)
class Use:
    """What a job takes: rows of every forward pass that it is in, and tokens of the KV cache (those reserved for it, or more)."""

    rows: int
    tokens: int
    scored: int = 0


@dataclass(eq=False)
class Flow:
    """The jobs of one request, in the sense of fair queueing: the unit between which rows are divided."""

    client: str
    waiting: deque[int] = field(default_factory=deque)  # indices of the texts that are not in the engine
    running: dict[Job, Use] = field(default_factory=dict)  # in the engine, the latest last
    used: float = 0.0  # rows it has been given, counted from the virtual time of its arrival
    rows: int = 0  # of a forward pass, for all of its running jobs

    @property
    def tokens(self) -> int:
        """Tokens of the KV cache that its running jobs hold."""
        return sum(use.tokens for use in self.running.values())


AnyFlow = TypeVar("AnyFlow", bound=Flow)


class FairShare(Generic[AnyFlow]):
    """Divides the rows of forward passes and the tokens of the KV cache among flows.

    `pauses` is that of the engine: whether jobs can be paused. On a device they cannot; then this class decides which text starts
    next, nothing more: no job is paused, and the engine itself bounds memory.
    """

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = rows
        self.tokens = tokens
        self.pauses = True
        self.flows: list[AnyFlow] = []
        self._virtual_time = 0.0
        self._requests: Counter[str] = Counter()  # by client
        self._rows_left = 0  # of the next pass
        self._free_tokens = tokens
        self._rows_needed = 0  # by all running jobs
        self._may_have_paused = False

    def enter(self, flow: AnyFlow) -> None:
        flow.used = self._virtual_time
        self.flows.append(flow)
        self._requests[flow.client] += 1

    def leave(self, flow: AnyFlow) -> None:
        self.flows.remove(flow)
        self._requests[flow.client] -= 1
        self._requests += Counter()  # drops clients without requests

    def start(self, flow: AnyFlow, job: Job, use: Use) -> None:
        """Count a job that goes into the engine."""
        flow.running[job] = use
        flow.rows += use.rows
        self._rows_needed += use.rows
        self._rows_left -= use.rows
        self._free_tokens -= use.tokens

    def end(self, flow: AnyFlow, job: Job) -> Use:
        """Release what a job holds that has left the engine. Returns what that was."""
        use = flow.running.pop(job)
        flow.rows -= use.rows
        self._rows_needed -= use.rows
        self._free_tokens += use.tokens
        return use

    def allocate(self, in_flight: Collection[Job]) -> Iterator[AnyFlow]:
        """Divide the rows of the next forward pass, a job at a time: first one job of every request that is running, then by how
        few rows a request was given. All other jobs are paused.

        Yields the flow that may start texts next. The caller starts some (`start`), removes some that need no search, or neither.
        """
        # With rows for all running jobs and as many again, no job has to be paused: the only question is which text starts next.
        if not self.pauses or 2 * self._rows_needed <= self.rows:
            self._rows_left = self.rows - self._rows_needed
            for flow in self.flows if self._may_have_paused else ():
                for job in flow.running:
                    job.paused = False
            self._may_have_paused = False
            waiting = [(False, flow.used, i, flow, iter(())) for i, flow in enumerate(self.flows) if flow.waiting]
            yield from self._allocate_in_order(waiting, entering=False)
            return
        self._rows_left, self._may_have_paused = self.rows, True
        entering = any(job not in in_flight for flow in self.flows for job in flow.running)
        order = []
        for place, flow in enumerate(self.flows):
            for job in flow.running:
                job.paused = True
            entering = entering or not flow.running
            if flow.used <= self._virtual_time + self._pass_cost(flow):
                order.append((not flow.running, flow.used, place, flow, iter([*flow.running.items()])))
        yield from self._allocate_in_order(order, entering)

    def _allocate_in_order(self, order: list[Any], entering: bool) -> Iterator[AnyFlow]:
        """`order`: for each flow (whether it comes after the first jobs of the running ones, rows given, place, flow, its running
        jobs); becomes a heap. `entering`: whether a job waits to get into the engine."""
        heapify(order)
        while order and self._rows_left > 0:
            later, used, place, flow, jobs = order[0]
            before, waiting = self._rows_left, len(flow.waiting)
            entry = next(jobs, None)
            if entry is None:
                if waiting:
                    yield flow
                if len(flow.waiting) == waiting:
                    heappop(order)
                    continue
            elif entry[0] in flow.running and self._rows_fit(entry[1]) and (not (later and entering) or before > self.rows // 4):
                # Engines admit jobs when a quarter of the rows are free: flows with several jobs leave it to those without any.
                entry[0].paused = False
                self._rows_left -= entry[1].rows
            used += (before - self._rows_left) * self._requests[flow.client]
            heapreplace(order, (True, used, place, flow, jobs))

    def charge(self, in_flight: Collection[Job]) -> None:
        """Count what each flow was given by a forward pass of these jobs, and advance virtual time."""
        total = 0
        for flow in self.flows:
            rows = 0 if self.pauses else flow.rows
            for job, use in flow.running.items() if self.pauses else ():
                if not job.paused and job in in_flight:
                    rows += use.rows
                    use.scored += use.rows
                    more = job.source.length + 1 + use.scored - use.tokens
                    if more > 0:
                        use.tokens += more
                        self._free_tokens -= more
            flow.used += rows * self._requests[flow.client]  # the requests of a client divide one client's share
            total += rows
        if self.flows:
            # Virtual time is at least that of the flow with the fewest rows: rows that no flow could use are not made up for.
            self._virtual_time = max(self._virtual_time + total / len(self._requests), min(flow.used for flow in self.flows))

    # -- memory ------------------------------------------------------------------------------------------------------------

    def has_room(self, use: Use) -> bool:
        """Whether there are enough rows and tokens for such a job."""
        return (use.rows <= self._rows_left or self._rows_fit(use)) and (not self.pauses or use.tokens <= self._free_tokens)

    def _latest_of_largest(self, flows: Sequence[AnyFlow]) -> tuple[AnyFlow, Job] | None:
        """Of these flows the one that holds most tokens, and its latest job."""
        holder = max(flows, key=lambda flow: flow.tokens)
        return (holder, next(reversed(holder.running))) if holder.running else None

    def to_evict(self, flow: AnyFlow, use: Use) -> tuple[AnyFlow, Job] | None:
        """The job to evict so that this flow can start such a job: one of a flow that will still hold as much as this one."""
        candidate = self._latest_of_largest(self.flows) if self._rows_fit(use) else None
        if candidate is None:
            return None
        holder, job = candidate
        return candidate if holder.tokens - holder.running[job].tokens >= flow.tokens + use.tokens else None

    def excess(self) -> tuple[AnyFlow, Job] | None:
        """The job to evict because the running jobs have come to hold more tokens than there are.

        The oldest request keeps its last job as long as others have any: two jobs of more than half of the tokens each would
        otherwise evict each other for ever.
        """
        if self._free_tokens >= 0 or not self.pauses:
            return None
        oldest, *others = [flow for flow in self.flows if flow.running]
        return self._latest_of_largest(others if others and len(oldest.running) == 1 else [oldest, *others])

    def overdue(self, flow: AnyFlow, use: Use) -> bool:
        """Whether such a job has waited for rows for so long that no other may pass it. Others may always pass a job that waits
        for memory: those that need little should not wait for those that need much."""
        return not self._rows_fit(use) and flow.used < self._virtual_time - self._pass_cost(flow)

    def _pass_cost(self, flow: AnyFlow) -> int:
        """What `used` of this flow grows by for a whole forward pass."""
        return self.rows * self._requests[flow.client]

    def _rows_fit(self, use: Use) -> bool:
        return use.rows <= self._rows_left or self._rows_left == self.rows
