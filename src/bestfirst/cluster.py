"""Ray: the same decoding on many machines. `decode_dataset` for a Ray Dataset; `bestfirst translate --ray` for a file (`Pool`).

Needs the extra `cluster` (`pip install 'bestfirst[cluster]'`). Actors hold the model; Ray replaces those that die, and what they
had in hand is done again. docs/cluster.md has what it costs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from .corpus import Record, Shard, ShardResult, Worker
from .corpus.worker import SHARD_LINES, fixed_budget, on_gpu
from .engine.threads import use_threads
from .errors import Stopped, Unusable, reason
from .loading import load
from .search import Result
from .settings import Budget, Decoding

if TYPE_CHECKING:
    from ray.data import Dataset

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
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if host and port.isdigit():  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, **quiet)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: as Ray's versions have it
        raise Unusable(f"cannot reach Ray at {address!r}: {reason(error)}") from error
    return ray, True


def room(ray: Any, threads: int, gpu: bool) -> int:
    """How many workers the cluster can hold."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU", 0)) if gpu else int(resources.get("CPU", 1)) // threads)


# -- a dataset ---------------------------------------------------------------------------------------------------------


def decode_dataset(
    ds: Dataset,
    *,
    model: str | None = None,
    field: str = "text",
    into: str = "translation",
    workers: int | tuple[int, int] | None = None,
    threads: int = 1,
    batch_size: int = SHARD_LINES,
    row_budget: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> Dataset:
    """Decode the texts in column `field`, on actors that each hold the model. Returns a Dataset, computed as it is used.

    Rows keep their columns and get, in `into`, the best output's text (null where there is none), and beside it `score`, `calls`,
    `exact`, `status` and `message`; with `nbest`, also `nbest`: a list of texts and scores. Ray may hand blocks on in another
    order; `ray.data.DataContext.get_current().execution_options.preserve_order = True` keeps it.

    model       as for `bestfirst.load`: a folder that every node can read, or a name; None is the embedded one
    workers     how many actors, or (fewest, most); by default as many as the cluster has room for
    threads     CPUs of each; on a GPU (`device="cuda"`) each actor takes one
    batch_size  rows that are decoded together
    row_budget  rows in a forward pass. By default not measured, as by `decode`, but fixed: then a block that is done again
                after an actor died comes out the same to the last bit
    settings    whatever else `bestfirst.decode` takes: beam, score, nbest, max_length, ...

    Results are those of `bestfirst.decode` (`tests/cluster`).
    """
    ray = require()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    gpu = on_gpu(device)
    if workers is None:
        if not ray.is_initialized():
            ray.init()
        workers = room(ray, threads, gpu)
    least, most = (workers, workers) if isinstance(workers, int) else workers
    loading = {"path_or_name": model, "device": device, "dtype": dtype, "source_lang": source_lang, "target_lang": target_lang}
    return ds.map_batches(
        RowDecoder,
        fn_constructor_args=(loading, threads, field, into, Decoding(row_budget=row_budget or fixed_budget(device), **settings)),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=None if gpu else threads,
        num_gpus=1 if gpu else None,
    )


class RowDecoder:
    """An actor: a model, loaded once, that decodes batches of rows."""

    def __init__(self, loading: dict[str, Any], threads: int, field: str, into: str, decoding: Decoding) -> None:
        model = load(**loading)
        use_threads(threads)
        self.worker = Worker(model, decoding)
        self.field, self.into, self.nbest = field, into, decoding.nbest

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        texts = batch.column(self.field).to_pylist()
        records = [Record(number, text or "") for number, text in enumerate(texts)]
        found: dict[int, Result] = {}
        self.worker.decode(records, lambda record, result: found.update({record.number: result}))
        results = [found[record.number] for record in records]
        best = [result.hypotheses[0] if result.hypotheses else None for result in results]
        empty = [text if result.status == "complete" else None for text, result in zip(texts, results, strict=True)]
        columns = {
            self.into: ([y.text if y else e for y, e in zip(best, empty, strict=True)], pa.string()),
            "score": ([y.score if y else None for y in best], pa.float64()),
        }
        for name, kind in (("calls", pa.int64()), ("exact", pa.bool_()), ("status", pa.string()), ("message", pa.string())):
            columns[name] = ([getattr(result, name) for result in results], kind)
        if self.nbest > 1:
            lists = [[{"text": y.text, "score": y.score} for y in result.hypotheses] for result in results]
            columns["nbest"] = (lists, pa.list_(pa.struct({"text": pa.string(), "score": pa.float64()})))
        for name, (values, kind) in columns.items():
            if name in batch.column_names:
                raise ValueError(f"the rows have a column {name!r} already; rename it, or choose another `into`")
            batch = batch.append_column(name, pa.array(values, kind))
        return batch


# -- a file ------------------------------------------------------------------------------------------------------------


class ShardActor:
    """What runs in an actor: a worker, made when it is first needed, in the first actor and in whatever takes its place."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        self.build = build

    @cached_property
    def worker(self) -> Worker:
        return self.build()

    def load(self) -> str:
        """Load the model; returns the signature of its results."""
        return self.worker.signature

    def decode(self, shard: Shard, budget: Budget | None) -> ShardResult:
        return self.worker.decode_shard(shard, budget)


@dataclass
class Pool:
    """As many actors as asked for, or as the cluster has room for; their models are loaded when this is entered."""

    build: Callable[[], Worker]
    address: str
    workers: int | None
    threads: int
    gpu: bool
    signature: str = ""

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

    def work(self, budget: Budget | None, notice: Callable[[int], None], shards: Iterator[Shard]) -> Iterator[ShardResult]:
        """Every actor has a few shards, and gets the next when it is done with one; few are ever in memory."""
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

    def _get(self, what: Any) -> Any:
        try:
            return self.ray.get(what)
        except self.ray.exceptions.RayTaskError as error:  # what our own code raised there
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            lost = f"a worker was lost {TRIES} times over the same lines, or cannot be replaced"
            raise Stopped(f"{lost}: {reason(error)}") from error
