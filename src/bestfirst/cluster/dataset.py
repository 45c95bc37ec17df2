"""decode_dataset: a Ray Dataset in, the same rows with their translations out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..corpus import Record, Worker
from ..corpus.worker import SHARD_LINES, fixed_budget
from ..engine.threads import use_threads
from ..loading import load
from ..search import Result
from ..settings import Decoding
from .pool import require, room

if TYPE_CHECKING:
    from ray.data import Dataset


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
    gpu = device is not None and device.startswith("cuda")
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
            self.into: pa.array([y.text if y else e for y, e in zip(best, empty, strict=True)], pa.string()),
            "score": pa.array([y.score if y else None for y in best], pa.float64()),
            "calls": pa.array([result.calls for result in results], pa.int64()),
            "exact": pa.array([result.exact for result in results], pa.bool_()),
            "status": pa.array([result.status for result in results], pa.string()),
            "message": pa.array([result.message for result in results], pa.string()),
        }
        if self.nbest > 1:
            entry = pa.list_(pa.struct({"text": pa.string(), "score": pa.float64()}))
            lists = [[{"text": y.text, "score": y.score} for y in result.hypotheses] for result in results]
            columns["nbest"] = pa.array(lists, entry)
        for name, column in columns.items():
            if name in batch.column_names:
                raise ValueError(f"the rows have a column {name!r} already; rename it, or choose another `into`")
            batch = batch.append_column(name, column)
        return batch
