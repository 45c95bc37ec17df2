"""TwoEngines: two host engines on one compiled model, so that one searches, in Python, while the other's step is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from ..search import Answer, Result
from .engine import Job, Stats
from .host import HostEngine
from .threads import share, side_by_side

WORTH = 96  # inputs that come together from which on it is faster than one engine whose steps threads share (docs/engine.md)
TURNS = 8  # steps of one until it waits for the other: what is done is told, and more is read, in between


class TwoEngines:
    """As one engine. The second is made when there is enough for it."""

    def __init__(self, first: HostEngine, second: Callable[[], HostEngine]) -> None:
        self._engines = [first]
        self._second = second

    @property
    def stats(self) -> Stats:
        """Of both; seconds at the same time count once."""
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

    @property
    def slots(self) -> int:
        return sum(engine.slots for engine in self._engines)

    @property
    def in_flight(self) -> list[Job]:
        return [job for engine in self._engines for job in engine.in_flight]

    @property
    def shares_context(self) -> bool:
        return self._engines[0].shares_context

    pauses = True

    def __bool__(self) -> bool:
        return any(self._engines)

    def submit(self, *jobs: Job) -> None:
        """Deal jobs out, long ones and short ones alike, more to who has fewer."""
        if len(jobs) >= WORTH and len(self._engines) == 1:
            self._engines.append(self._second())
        loads = [len(engine.jobs) for engine in self._engines]
        dealt: list[list[Job]] = [[] for _ in loads]
        for job in sorted(jobs, key=lambda job: -job.source.length):
            place = loads.index(min(loads))
            loads[place] += 1
            dealt[place].append(job)
        for engine, some in zip(self._engines, dealt, strict=True):
            engine.submit(*some)

    def cancel(self, job: Job) -> None:
        self._of(job).cancel(job)

    def certified(self, job: Job) -> list[Answer]:
        return self._of(job).certified(job)

    def _of(self, job: Job) -> HostEngine:
        return next((engine for engine in self._engines if job in engine.jobs), self._engines[0])

    def step(self) -> Iterator[tuple[Job, Result]]:
        """A few steps of each that has any left; fewer where one needs more inputs, and there may be more."""
        busy = [engine for engine in self._engines if engine]
        if len(busy) < 2:
            for engine in busy:
                yield from engine.step()
            return
        last = self.wants > 0  # who was asked for more and gave none has none
        done: list[tuple[Job, Result]] = []
        failures: list[Exception] = []
        enough: list[bool] = []

        def turns(place: int) -> None:
            engine = busy[place]
            try:
                with side_by_side():
                    for turn in count(1):
                        done.extend(engine.step())
                        if enough or turn == TURNS or not engine or (engine.wants and not last):
                            return
            except Exception as error:  # told when the other has come to a step's end
                failures.append(error)
            finally:
                enough.append(True)

        share(turns, len(busy))
        yield from done
        if failures:
            raise failures[0]
