"""Parquet through pyarrow: rows come with all their columns, and leave with one more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from .errors import Stopped, Unusable, reason
from .record import Record, Shard


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Unusable("Parquet needs pyarrow; install it with: pip install 'bestfirst[parquet]'") from error
    return pyarrow, pyarrow.parquet


def require() -> None:
    """Say now that pyarrow is missing."""
    _arrow()


def count(path: str, field: str, into: str) -> int:
    """How many rows a file has. Looks whether it has the column that is to be read, and not yet the one to be written."""
    pa, pq = _arrow()
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except pa.ArrowException as error:
        raise Unusable(f"cannot read {path!r}: {reason(error)}") from error
    if field not in schema.names:
        raise Unusable(f"{path!r} has no column {field!r} but {', '.join(map(repr, schema.names))}; name it with --input-field")
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise Unusable(f"column {field!r} of {path!r} is {kind}, not text")
    if into in schema.names:
        raise Unusable(f"{path!r} has a column {into!r} already; name another with --output-field")
    return int(rows)


def shards(path: str, field: str, rows: int) -> Iterator[Shard]:
    """The rows of a file, so many at a time; of one without rows, a shard without any, which has its columns."""
    pa, pq = _arrow()
    index, number = 0, 0
    try:
        with pq.ParquetFile(path) as file:
            held = file.schema_arrow.empty_table()  # rows that are not yet enough
            for batch in file.iter_batches(batch_size=rows):
                held = pa.concat_tables([held, pa.Table.from_batches([batch])])
                while held.num_rows >= rows:
                    yield _shard(index, number, held.slice(0, rows), field)
                    held = held.slice(rows)
                    index, number = index + 1, number + rows
    except pa.ArrowException as error:
        raise Stopped(f"cannot read on in {path!r}: {reason(error)}") from error
    if held.num_rows or not index:
        yield _shard(index, number, held, field)


def _shard(index: int, before: int, table: Any, field: str) -> Shard:
    texts = table.column(field).to_pylist()
    rows = table.to_pylist()
    return Shard(
        index,
        [Record(before + i, text or "", None, row) for i, (text, row) in enumerate(zip(texts, rows, strict=True), 1)],
        table,
    )


def encode(shard: Shard, values: Sequence[Any], field: str, into: str, listed: bool) -> bytes:
    """The records with their translations, as a small Parquet file."""
    pa, pq = _arrow()
    column = pa.array(values, pa.list_(pa.string()) if listed else pa.string())
    table = shard.table
    if table is None:
        rows = [{field: record.text} if record.fields is None else dict(record.fields) for record in shard.records]
        try:
            table = pa.Table.from_pylist(rows) if rows else pa.table({field: pa.array([], pa.string())})
        except pa.ArrowException as error:
            first = shard.records[0].number
            raise Stopped(
                f"the fields of lines {first} to {first + len(rows) - 1} do not fit into a table ({reason(error)}); write .jsonl"
            ) from error
    out = pa.BufferOutputStream()
    pq.write_table(table.append_column(into, column), out, compression="zstd")
    return out.getvalue().to_pybytes()


def join(pieces: Sequence[str], out: BinaryIO) -> None:
    """One file, a row group for each piece."""
    pa, pq = _arrow()
    try:
        schema = pa.unify_schemas([pq.read_schema(piece) for piece in pieces], promote_options="permissive")
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            for piece in pieces:
                table = pq.read_table(piece)
                missing = [name for name in schema.names if name not in table.column_names]
                for name in missing:
                    table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
                writer.write_table(table.select(schema.names).cast(schema))
    except pa.ArrowException as error:
        raise Stopped(f"the fields do not fit into one table ({reason(error)}); write .jsonl") from error
