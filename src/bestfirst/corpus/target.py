"""Target: in which form results are written. Pieces of an output that were written apart can be put together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from ..search import Result
from . import formats, parquet
from .compression import compress
from .record import Record, Shard

FORMS = ("text", "nbest", "json", "jsonl", "parquet")


@dataclass(frozen=True)
class Target:
    """A form (`FORMS`), and what it depends on. `field` and `into` name the text and its translation in a record."""

    form: str = "text"
    compression: str | None = None
    nbest: int = 1
    partial: bool = False
    field: str = "text"
    into: str = "translation"

    def line(self, record: Record, result: Result) -> str:
        """What is written for one record, with its line end."""
        if self.form == "jsonl":
            value = self._translation(record, result)
            return formats.as_record(record, value, self.field, self.into)
        write = {"text": formats.as_text, "nbest": formats.as_nbest, "json": formats.as_json}[self.form]
        return write(record.number, result, self.partial)

    def encode(self, shard: Shard, results: Sequence[Result]) -> bytes:
        """What is written for these records."""
        each = zip(shard.records, results, strict=True)
        if self.form == "parquet":
            values = [self._translation(record, result) for record, result in each]
            return parquet.encode(shard, values, self.field, self.into, self.nbest > 1)
        text = "".join(self.line(record, result) for record, result in each)
        return compress(text.encode("utf-8", "replace"), self.compression)

    def _translation(self, record: Record, result: Result) -> Any:
        return formats.translation(record, result, self.partial, self.nbest, self.field)

    def join(self, pieces: Sequence[str], out: BinaryIO) -> None:
        """Put files that hold encoded shards together, in this order, a piece at a time."""
        if not pieces:
            out.write(self.encode(Shard(0, ()), ()))
        elif self.form == "parquet":
            parquet.join(pieces, out)
        else:
            for piece in pieces:
                with open(piece, "rb") as stream:
                    shutil.copyfileobj(stream, out, 1 << 20)

    def identity(self) -> dict[str, Any]:
        """What of it matters to the bytes that are written."""
        named = asdict(self)
        return named if self.form in ("jsonl", "parquet") else {k: v for k, v in named.items() if k not in ("field", "into")}
