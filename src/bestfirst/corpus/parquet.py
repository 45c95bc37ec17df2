"""Parquet: rows come with all their columns, and leave with one more; JSON objects get columns that fit all of them.

Needs pyarrow, and is imported where Parquet is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, BinaryIO

from ..errors import Stopped, Unusable, reason
from .records import Record, Shard, to_json

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise Unusable("Parquet needs pyarrow; install it with: pip install 'bestfirst[parquet]'") from error

DEEPEST = 50  # levels of lists and objects in a row


# -- reading -------------------------------------------------------------------------------------------------------------


def count(path: str, field: str, into: str | None) -> int:
    """How many rows a file has. Looks whether it has the column that is to be read, and not yet the one to be written."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except pa.ArrowException as error:
        raise Unusable(f"cannot read {path!r}: {reason(error)}") from error
    if field not in schema.names:
        raise Unusable(f"{path!r} has no column {field!r} but {', '.join(map(repr, schema.names))}; name the input field")
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise Unusable(f"column {field!r} of {path!r} is {kind}, not text")
    if into in schema.names:
        raise Unusable(f"{path!r} has a column {into!r} already; name another output field")
    return int(rows)


def tables(path: str, rows: int) -> Iterator[Any]:
    """The content of a file, so many rows at a time; of one without rows, a table without any, which has its columns."""
    some = False
    try:
        with pq.ParquetFile(path) as file:
            held = file.schema_arrow.empty_table()  # rows that are not yet enough
            for batch in file.iter_batches(batch_size=rows):
                held = pa.concat_tables([held, pa.Table.from_batches([batch])])
                while held.num_rows >= rows:
                    yield held.slice(0, rows)
                    held, some = held.slice(rows), True
    except pa.ArrowException as error:
        raise Stopped(f"cannot read on in {path!r}: {reason(error)}") from error
    if held.num_rows or not some:
        yield held


def shards(path: str, field: str, rows: int) -> Iterator[Shard]:
    """The rows of a file, so many at a time."""
    for index, table in enumerate(tables(path, rows)):
        numbered = enumerate(table.to_pylist(), index * rows + 1)
        yield Shard(index, [Record(number, row[field] or "", None, row) for number, row in numbered], table)


# -- columns for JSON ----------------------------------------------------------------------------------------------------


def unfit(fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields that no column can hold, and why."""
    found = {}
    for name, value in fields.items():
        try:
            _type({name: value})
        except (ValueError, RecursionError) as error:
            found[name] = reason(error)
    return found


def _type(value: Any, depth: int = 0) -> Any:
    """The type of a column that holds this. An object without fields is null there, for Parquet knows none."""
    if depth > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        for name in value:
            _type(name)
        return pa.struct([(name, _type(each, depth + 1)) for name, each in value.items()]) if value else pa.null()
    if isinstance(value, list):
        return pa.list_(reduce(_widened, (_type(each, depth + 1) for each in value), pa.null()))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("half a character (a lone surrogate)") from None
        return pa.string()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number beyond 64 bits, the sign included")
    return {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}[type(value)]


def _widened(one: Any, other: Any) -> Any:
    """A type that holds what either does: at worst a text, JSON for what is none."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_widened(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {each.name: each.type for each in one}
        for each in other:
            kinds[each.name] = _widened(kinds.get(each.name, pa.null()), each.type)
        return pa.struct(list(kinds.items()))
    return pa.string()


def _fitted(value: Any, kind: Any) -> Any:
    """A value as a column of a widened type has it."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {each.name: _fitted(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_fitted(each, kind.value_type) for each in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        return to_json(value)
    if pa.types.is_float64(kind) and isinstance(value, int) and int(float(value)) != value:
        raise pa.ArrowInvalid(f"{value} would be {float(value):.0f} in a column that has fractions, too")
    return float(value) if pa.types.is_float64(kind) else value


def _table(rows: Iterable[Mapping[str, Any]], kind: Any) -> Any:
    return pa.Table.from_pylist([_fitted(row, kind) for row in rows], schema=pa.schema(list(kind)))


# -- writing -------------------------------------------------------------------------------------------------------------


def encode(shard: Shard, values: Sequence[Any], field: str, into: str, listed: bool) -> bytes:
    """The records with their translations, as a small Parquet file."""
    table = shard.table
    if table is None:
        rows = [record.fields or {field: record.text} for record in shard.records]
        try:
            table = _table(rows, reduce(_widened, map(_type, rows), pa.struct({field: pa.string()} if not rows else {})))
        except pa.ArrowInvalid as error:
            raise _unfitting(error) from error
    texts = [_clean(value) for value in values]
    return _bytes(table.append_column(into, pa.array(texts, pa.list_(pa.string()) if listed else pa.string())))


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return None if value is None else value.encode("utf-8", "replace").decode()


def _bytes(table: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue().to_pybytes()


def join(pieces: Callable[[], Iterator[bytes]], out: BinaryIO) -> None:
    """One file, a row group for each piece, with columns that hold all of them."""
    try:
        schemas = [pq.read_schema(pa.BufferReader(piece)) for piece in pieces()]
        schema = schemas[0]
        kind = pa.struct(list(schema))
        for other in schemas:
            if not other.equals(schema):
                kind = _widened(kind, pa.struct(list(other)))
                schema = pa.schema(list(kind))
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            for piece in pieces():
                table = pq.read_table(pa.BufferReader(piece))
                writer.write_table(table if table.schema.equals(schema) else _table(table.to_pylist(), kind))
    except pa.ArrowException as error:
        raise _unfitting(error) from error


def _unfitting(error: Exception) -> Stopped:
    return Stopped(f"the fields do not fit into one table ({reason(error)}); write .jsonl")


def split(path: str, rows: int) -> Iterator[bytes]:
    """The pieces of a file that was put together of pieces with so many rows each."""
    return map(_bytes, tables(path, rows))
