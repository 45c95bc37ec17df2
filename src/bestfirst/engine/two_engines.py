"""TwoEngines: two host engines on one compiled model: one runs Python while a kernel of the other releases the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from ..search import Result
from .engine import Job, Stats
from .host import HostEngine
from .threads import parallel_for, side_by_side

MIN_INPUTS = 96  # inputs of one call from which on this is faster than threads that share one engine's steps (docs/engine.md)
MAX_STEPS = 8  # steps of one engine before it waits for the other; results are yielded and jobs are read in between


class TwoEngines:
    """A `Runnable` made of two engines. The second is created when there are enough jobs for it."""

    def __init__(self, first: HostEngine, second: Callable[[], HostEngine]) -> None:
        self._engines = [first]
        self._second = second

    @property
    def stats(self) -> Stats:
        """The sum of both; of model time the mean, since both run at the same time."""
        total = Stats()
        for engine in self._engines:
            total.add(engine.stats)
        total.in_flight = sum(engine.stats.in_flight for engine in self._engines)
        total.cache_tokens = sum(engine.stats.cache_tokens for engine in self._engines)
        total.model_seconds /= len(self._engines)
        return total

    @property
    def wants(self) -> int:
        return max(engine.wants for engine in self._engines)

    def __bool__(self) -> bool:
        return any(self._engines)

    def submit(self, *jobs: Job) -> None:
        """Distributes jobs, longest first, each to the engine with fewer jobs."""
        if len(jobs) >= MIN_INPUTS and len(self._engines) == 1:
            self._engines.append(self._second())
        loads = [len(engine.jobs) for engine in self._engines]
        dealt: list[list[Job]] = [[] for _ in loads]
        for job in sorted(jobs, key=lambda job: -job.source.length):
            index = loads.index(min(loads))
            loads[index] += 1
            dealt[index].append(job)
        for engine, batch in zip(self._engines, dealt, strict=True):
            engine.submit(*batch)

    def step(self) -> Iterator[tuple[Job, Result]]:
        """Up to `MAX_STEPS` steps of each engine, in parallel; fewer if one needs more jobs that the caller may have."""
        busy = [engine for engine in self._engines if engine]
        if len(busy) < 2:
            for engine in busy:
                yield from engine.step()
            return
        exhausted = self.wants > 0  # the caller did not submit what was wanted: it has no more
        done: list[tuple[Job, Result]] = []
        failures: list[Exception] = []
        stop: list[bool] = []

        def run_steps(index: int) -> None:
            engine = busy[index]
            try:
                with side_by_side():
                    for steps in count(1):
                        done.extend(engine.step())
                        if stop or steps == MAX_STEPS or not engine or (engine.wants and not exhausted):
                            return
            except Exception as error:  # raised after the other engine has finished its step
                failures.append(error)
            finally:
                stop.append(True)

        parallel_for(run_steps, len(busy))
        yield from done
        if failures:
            raise failures[0]
