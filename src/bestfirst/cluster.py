"""Decoding on many machines with Ray: `decode_dataset` for a Ray Dataset, `Pool` for a file (`bestfirst translate --ray`).

Needs the extra `cluster` (`pip install 'bestfirst[cluster]'`). Actors hold the model; Ray restarts those that die and retries
their tasks. Costs are in docs/cluster.md."""

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
from .settings import Decoding

if TYPE_CHECKING:
    from ray.data import Dataset

OBJECT_BYTES = 256 << 20  # shared memory of a cluster that is started here: shards are small
SHARDS_PER_ACTOR = 2  # in flight per actor: the one in progress and the next
ATTEMPTS = 4  # per shard, so that a shard that kills its actor every time ends the job


def import_ray() -> Any:
    """The module `ray`. Unusable, with the command to install it, if it is missing."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise Unusable(f"this needs Ray ({reason(error)}); install it with: pip install 'bestfirst[cluster]'") from error
    return ray


def connect(address: str, cpus: int | None = None) -> tuple[Any, bool]:
    """Connect to the cluster at an address ("local": start one here). Returns `ray`, and whether this call connected it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_ray()
    if ray.is_initialized():
        return ray, False
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
    try:
        if address == "local":
            ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_BYTES, **quiet)
        else:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if host and port.isdigit():  # fail early: Ray itself would retry for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, **quiet)
    except Exception as error:  # ConnectionError, RuntimeError or ValueError, depending on Ray's version
        raise Unusable(f"cannot reach Ray at {address!r}: {reason(error)}") from error
    return ray, True


def worker_capacity(ray: Any, threads: int, gpu: bool) -> int:
    """The number of workers that the cluster's CPUs or GPUs allow, at least 1."""
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
    """Decode the texts in column `field` on actors that each hold the model. Returns a lazily computed Dataset.

    Rows keep their columns. Added are `into`, the text of the best output (null if there is none), and `score`, `calls`, `exact`,
    `status` and `message`; if `nbest` exceeds 1, also `nbest`: a list of texts and scores. Ray may reorder blocks, unless
    `ray.data.DataContext.get_current().execution_options.preserve_order = True`.

    model       as for `bestfirst.load`: a folder that every node can read, or a name; None is the embedded model
    workers     number of actors, or (fewest, most); by default as many as the cluster has room for
    threads     CPUs per actor; on a GPU (`device="cuda"`) each actor takes one GPU
    batch_size  rows decoded together
    row_budget  rows in a forward pass. By default fixed, not measured as in `decode`: then a block that is decoded again after
                an actor died is the same to the last bit
    settings    any other argument of `bestfirst.decode`: beam, score, nbest, max_length, ...

    Results are those of `bestfirst.decode` (`tests/cluster`)."""
    ray = import_ray()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    gpu = on_gpu(device)
    if workers is None:
        if not ray.is_initialized():
            ray.init()
        workers = worker_capacity(ray, threads, gpu)
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
    """The actor of `decode_dataset`: loads the model once, then decodes batches of rows (pyarrow tables)."""

    def __init__(self, loading: dict[str, Any], threads: int, field: str, into: str, decoding: Decoding) -> None:
        model = load(**loading)
        use_threads(threads)
        self.worker = Worker(model, decoding)
        self.field, self.into, self.nbest = field, into, decoding.nbest

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        texts = batch.column(self.field).to_pylist()
        records = [Record(number, text or "") for number, text in enumerate(texts)]
        by_number: dict[int, Result] = {}
        self.worker.decode(records, lambda record, result: by_number.update({record.number: result}))
        results = [by_number[record.number] for record in records]
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
    """The actor of `Pool`. It builds its worker (loads the model) on first use, so also after Ray has restarted it."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        self.build = build

    @cached_property
    def worker(self) -> Worker:
        return self.build()

    def load(self) -> str:
        """Load the model; returns the signature of its results."""
        return self.worker.signature

    def decode(self, shard: Shard) -> ShardResult:
        return self.worker.decode_shard(shard)


@dataclass
class Pool:
    """A context manager that decodes shards on `workers` actors (None: as many as the cluster has room for). Entering it starts
    the actors and waits until their models are loaded."""

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
        actor = self.ray.remote(max_restarts=-1, max_task_retries=ATTEMPTS - 1, runtime_env=env, **needs)(ShardActor)
        self.actors = [actor.remote(self.build) for _ in range(self.workers or worker_capacity(self.ray, self.threads, self.gpu))]
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

    def work(self, notice: Callable[[int], None], shards: Iterator[Shard]) -> Iterator[ShardResult]:
        """Decode shards, a few per actor at a time; yields results as they complete. `notice` gets the line count of each."""
        pending: dict[Any, tuple[Any, int]] = {}  # by Ray's reference to the result: the actor, and the shard's lines

        def submit(actor: Any) -> None:
            for shard in islice(shards, 1):
                pending[actor.decode.remote(shard)] = (actor, len(shard.records))

        for _ in range(SHARDS_PER_ACTOR):
            for actor in self.actors:
                submit(actor)
        while pending:
            (done,), _ = self.ray.wait(list(pending), num_returns=1)
            actor, lines = pending.pop(done)
            result = self._get(done)
            submit(actor)
            notice(lines)
            yield result

    def _get(self, reference: Any) -> Any:
        """`ray.get`, with our own exceptions as they were raised in the actor, and Stopped for a lost actor."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            lost = f"a worker was lost {ATTEMPTS} times over the same lines, or cannot be replaced"
            raise Stopped(f"{lost}: {reason(error)}") from error
