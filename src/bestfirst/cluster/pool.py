"""Pool: actors that do a job's shards. Ray replaces an actor that dies, and what it had in hand is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from ..corpus import Finished, Shard, Stopped, Worker
from ..corpus.job import Work
from ..settings import Budget
from . import ray as rays

AHEAD = 2  # shards that an actor has in hand: the one it does and the next
TRIES = 4  # of a shard: one that ends its actor each time is given up, and not tried for ever


class Hand:
    """What runs in an actor: a worker, made when it is first needed, in the first actor and in whatever takes its place."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        self.build = build
        self.worker: Worker | None = None

    def ready(self) -> str:
        """Load the model; returns the signature of its results."""
        self.worker = self.worker or self.build()
        return self.worker.signature

    def work(self, shard: Shard, budget: Budget | None) -> Finished:
        self.ready()
        assert self.worker is not None
        return self.worker.work(shard, budget)


class Pool:
    """As many actors as asked for, or as the cluster has room for; their models are loaded when this is entered."""

    def __init__(
        self, build: Callable[[], Worker], address: str, workers: int | None, threads: int = 1, device: str | None = None
    ) -> None:
        self.build = build
        self.address = address
        self.workers = workers
        self.threads = threads
        self.gpu = device is not None and device.startswith("cuda")

    def __enter__(self) -> Pool:
        cpus = self.workers * self.threads if self.workers and not self.gpu else None
        self.ray, self._started = rays.connect(self.address, cpus)
        room = self.ray.cluster_resources()
        fit = int(room.get("GPU", 0)) if self.gpu else int(room.get("CPU", 1)) // self.threads
        self.workers = self.workers or max(1, fit)
        needs: dict[str, Any] = {"num_gpus": 1} if self.gpu else {"num_cpus": self.threads}
        threads = {"OMP_NUM_THREADS": str(self.threads)}
        hand = self.ray.remote(max_restarts=-1, max_task_retries=TRIES - 1, runtime_env={"env_vars": threads}, **needs)(Hand)
        self.actors = [hand.remote(self.build) for _ in range(self.workers)]
        try:
            self._signature = self._get([actor.ready.remote() for actor in self.actors])[0]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self._started:
            self.ray.shutdown()

    def signature(self) -> str:
        return self._signature

    def work(self, budget: Budget | None, notice: Callable[[int], None]) -> Work:
        """Every actor has a few shards in hand, and gets the next when it is done with one; few are ever in memory."""

        def work(shards: Iterator[Shard]) -> Iterator[Finished]:
            in_hand: dict[Any, tuple[Any, int]] = {}  # who does it, and how many lines it has

            def give(actor: Any) -> None:
                for shard in islice(shards, 1):
                    in_hand[actor.work.remote(shard, budget)] = (actor, len(shard.records))

            for _ in range(AHEAD):
                for actor in self.actors:
                    give(actor)
            while in_hand:
                (done,), _ = self.ray.wait(list(in_hand), num_returns=1)
                actor, lines = in_hand.pop(done)
                finished = self._get(done)
                give(actor)
                notice(lines)
                yield finished

        return work

    def _get(self, what: Any) -> Any:
        try:
            return self.ray.get(what)
        except self.ray.exceptions.RayTaskError as error:  # what our own code raised there
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            raise Stopped(f"a worker was lost {TRIES} times over the same lines, or cannot be replaced: {first}") from error
