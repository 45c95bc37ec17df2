"""Parquet files: reading rows with all of their columns, and writing them with one more column for the translation.

JSON objects that are written as Parquet get a schema that fits all of them: per shard in `encode`, of the whole file in `join`.
Imported only when Parquet is requested, because it needs pyarrow."""

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

DEEPEST = 50  # nesting levels of lists and objects in a row


# -- reading -------------------------------------------------------------------------------------------------------------


def count(path: str, field: str, into: str | None) -> int:
    """The number of rows of a file. Unusable if it has no text column `field`, or already has a column `into`."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except pa.ArrowException as error:
        raise Unusable(f"cannot read {path!r}: {reason(error)}") from error
    if field not in schema.names:
        names = ", ".join(map(repr, schema.names))
        raise Unusable(f"{path!r} has no column {field!r} but {names}; name another input field")
    repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if repeated is not None:
        raise Unusable(f"{path!r} has several columns {repeated!r}; rename all but one")
    kind = schema.field(field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise Unusable(f"column {field!r} of {path!r} is {kind}, not text")
    if into in schema.names:
        raise Unusable(f"{path!r} has a column {into!r} already; name another output field")
    return int(rows)


def tables(path: str, rows: int) -> Iterator[Any]:
    """The content of a file as tables of `rows` rows; for a file without rows, one empty table with its schema."""
    yielded = False
    try:
        with pq.ParquetFile(path) as file:
            pending = file.schema_arrow.empty_table()  # rows read but not yet yielded
            for batch in file.iter_batches(batch_size=rows):
                pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
                while pending.num_rows >= rows:
                    yield pending.slice(0, rows)
                    pending, yielded = pending.slice(rows), True
    except pa.ArrowException as error:
        raise Stopped(f"cannot read on in {path!r}: {reason(error)}") from error
    if pending.num_rows or not yielded:
        yield pending


def shards(path: str, field: str, rows: int) -> Iterator[Shard]:
    """The rows of a file, in shards of `rows` rows."""
    for index, table in enumerate(tables(path, rows)):
        numbered = enumerate(table.to_pylist(), index * rows + 1)
        yield Shard(index, [Record(number, row[field] or "", None, row) for number, row in numbered], table)


# -- schemas for JSON ----------------------------------------------------------------------------------------------------


def unfit(fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields whose values no column can store, each with the reason."""
    reasons = {}
    for name, value in fields.items():
        try:
            _column_type({name: value})
        except (ValueError, RecursionError) as error:
            reasons[name] = reason(error)
    return reasons


def _column_type(value: Any, depth: int = 0) -> Any:
    """The Arrow type of a JSON value; null for an object without fields, which Parquet cannot store. ValueError if none fits."""
    if depth > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        for name in value:
            _column_type(name)
        return pa.struct([(name, _column_type(each, depth + 1)) for name, each in value.items()]) if value else pa.null()
    if isinstance(value, list):
        return pa.list_(reduce(_common_type, (_column_type(each, depth + 1) for each in value), pa.null()))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("half a character (a lone surrogate)") from None
        return pa.string()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number beyond 64 bits, the sign included")
    return {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}[type(value)]


def _common_type(one: Any, other: Any) -> Any:
    """The narrowest type that fits the values of both types; string, with other values as JSON, if nothing else does."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_common_type(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {each.name: each.type for each in one}
        for each in other:
            kinds[each.name] = _common_type(kinds.get(each.name, pa.null()), each.type)
        return pa.struct(list(kinds.items()))
    return pa.string()


def _convert(value: Any, kind: Any) -> Any:
    """Convert a JSON value to a type that `_common_type` returned. ArrowInvalid for an integer that float64 cannot represent."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {each.name: _convert(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_convert(each, kind.value_type) for each in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        return to_json(value)
    if pa.types.is_float64(kind) and isinstance(value, int) and int(float(value)) != value:
        raise pa.ArrowInvalid(f"{value} would be {float(value):.0f} in a column that has fractions, too")
    return float(value) if pa.types.is_float64(kind) else value


def _table(rows: Iterable[Mapping[str, Any]], kind: Any) -> Any:
    return pa.Table.from_pylist([_convert(row, kind) for row in rows], schema=pa.schema(list(kind)))


# -- writing -------------------------------------------------------------------------------------------------------------


def encode(shard: Shard, values: Sequence[Any], field: str, into: str, as_list: bool) -> bytes:
    """A shard's records with their translations, as a small Parquet file. With `as_list`, translations are lists of texts."""
    table = shard.table
    if table is None:
        rows = [record.fields or {field: record.text} for record in shard.records]
        fewest = pa.struct({} if rows else {field: pa.string()})
        try:
            table = _table(rows, reduce(_common_type, map(_column_type, rows), fewest))
        except pa.ArrowInvalid as error:
            raise _schema_error(error) from error
    texts = [_encodable(value) for value in values]
    return _to_parquet(table.append_column(into, pa.array(texts, pa.list_(pa.string()) if as_list else pa.string())))


def _encodable(value: Any) -> Any:
    """A text or a list of texts with lone surrogates replaced, which UTF-8 cannot encode."""
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return None if value is None else value.encode("utf-8", "replace").decode()


def _to_parquet(table: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue().to_pybytes()


def join(pieces: Callable[[], Iterator[bytes]], out: BinaryIO) -> None:
    """Write one file with a row group for each piece, and a schema that fits all of them. Stopped if there is none."""
    try:
        schemas = [pq.read_schema(pa.BufferReader(piece)) for piece in pieces()]
        schema = schemas[0]
        kind = pa.struct(list(schema))
        for other in schemas:
            if not other.equals(schema):
                kind = _common_type(kind, pa.struct(list(other)))
                schema = pa.schema(list(kind))
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            for piece in pieces():
                table = pq.read_table(pa.BufferReader(piece))
                writer.write_table(table if table.schema.equals(schema) else _table(table.to_pylist(), kind))
    except pa.ArrowException as error:
        raise _schema_error(error) from error


def _schema_error(error: Exception) -> Stopped:
    return Stopped(f"the fields do not fit into one table ({reason(error)}); write .jsonl")


def split(path: str, rows: int) -> Iterator[bytes]:
    """The inverse of `join`, for pieces of `rows` rows."""
    return map(_to_parquet, tables(path, rows))
