"""Pool: Ray actors that do a job's shards. Ray replaces an actor that dies, and what it had to do is done again."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ..corpus import Shard, ShardResult, Worker
from ..corpus.worker import Work
from ..errors import Stopped, Unusable, reason
from ..settings import Budget

OBJECT_BYTES = 256 << 20  # of shared memory for a cluster that is started here: shards are small
AHEAD = 2  # shards that an actor has: the one it does and the next
TRIES = 4  # of a shard: one that ends its actor each time is given up, and not tried for ever


def require() -> Any:
    """Ray, or how to get it."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise Unusable(f"this needs Ray ({reason(error)}); install it with: pip install 'bestfirst[cluster]'") from error
    return ray


def connect(address: str, cpus: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to the cluster at this address ("local" starts one on this machine), and whether that was done here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require()
    if ray.is_initialized():
        return ray, False
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
    try:
        if address == "local":
            ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_BYTES, **quiet)
        else:
            _check_reachable(address)
            ray.init(address=address, **quiet)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: as Ray's versions have it
        raise Unusable(f"cannot reach Ray at {address!r}: {reason(error)}") from error
    return ray, True


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def room(ray: Any, threads: int, gpu: bool) -> int:
    """How many workers the cluster can hold."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU", 0)) if gpu else int(resources.get("CPU", 1)) // threads)


class ShardActor:
    """What runs in an actor: a worker, made when it is first needed, in the first actor and in whatever takes its place."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        self.build = build
        self.worker: Worker | None = None

    def load(self) -> str:
        """Load the model; returns the signature of its results."""
        self.worker = self.worker or self.build()
        return self.worker.signature

    def decode(self, shard: Shard, budget: Budget | None) -> ShardResult:
        self.load()
        assert self.worker is not None
        return self.worker.decode_shard(shard, budget)


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
        self.signature = ""

    def __enter__(self) -> Pool:
        cpus = self.workers * self.threads if self.workers and not self.gpu else None
        self.ray, self._started = connect(self.address, cpus)
        needs: dict[str, Any] = {"num_gpus": 1} if self.gpu else {"num_cpus": self.threads}
        env = {"env_vars": {"OMP_NUM_THREADS": str(self.threads)}}
        actor = self.ray.remote(max_restarts=-1, max_task_retries=TRIES - 1, runtime_env=env, **needs)(ShardActor)
        self.actors = [actor.remote(self.build) for _ in range(self.workers or room(self.ray, self.threads, self.gpu))]
        try:
            self.signature = self._get([actor.load.remote() for actor in self.actors])[0]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self._started:
            self.ray.shutdown()

    def work(self, budget: Budget | None, notice: Callable[[int], None]) -> Work:
        """Every actor has a few shards, and gets the next when it is done with one; few are ever in memory."""

        def work(shards: Iterator[Shard]) -> Iterator[ShardResult]:
            pending: dict[Any, tuple[Any, int]] = {}  # who does it, and how many lines it has

            def submit(actor: Any) -> None:
                for shard in islice(shards, 1):
                    pending[actor.decode.remote(shard, budget)] = (actor, len(shard.records))

            for _ in range(AHEAD):
                for actor in self.actors:
                    submit(actor)
            while pending:
                (done,), _ = self.ray.wait(list(pending), num_returns=1)
                actor, lines = pending.pop(done)
                result = self._get(done)
                submit(actor)
                notice(lines)
                yield result

        return work

    def _get(self, what: Any) -> Any:
        try:
            return self.ray.get(what)
        except self.ray.exceptions.RayTaskError as error:  # what our own code raised there
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            lost = f"a worker was lost {TRIES} times over the same lines, or cannot be replaced"
            raise Stopped(f"{lost}: {reason(error)}") from error
