"""Input: a file of text, JSON lines or Parquet, compressed or not, read as it is used and never whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import islice
from typing import Any

from . import parquet
from .compression import BROKEN, bare, plain
from .errors import Stopped, Unusable, reason
from .lines import batches, read_json, read_line
from .record import Record, Shard

FORMATS = ("text", "jsonl", "parquet")
ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def format_of(name: str | None) -> str:
    """The format of a file of this name."""
    plain = bare(name or "")
    return next((form for ending, form in ENDINGS.items() if plain.endswith(ending)), "text")


@dataclass(frozen=True)
class Survey:
    """What an input holds: how many lines, and a digest of its content (decompressed), by which it is known again."""

    lines: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Input:
    """A file to read. `field`: where a record's text is; `into`: where its translation will go, and nothing may be yet."""

    path: str
    form: str = "text"
    field: str = "text"
    into: str = "translation"

    def survey(self) -> Survey:
        """Read it once, a block at a time."""
        try:
            with FileIO(self.path) as raw:
                if self.form == "parquet":
                    size, digest, _, _ = _digest(raw)
                    return Survey(parquet.count(self.path, self.field, self.into), size, digest)
                size, digest, feeds, last = _digest(plain(raw, self.path))
                return Survey(feeds + (last not in (b"", b"\n")), size, digest)
        except (OSError, *BROKEN) as error:
            raise Unusable(f"cannot read {self.path!r}: {reason(error)}") from error

    def shards(self, lines: int) -> Iterator[Shard]:
        """The whole input, so many lines at a time; the last shard may have fewer."""
        try:
            if self.form == "parquet":
                yield from parquet.shards(self.path, self.field, lines)
                return
            records = self._records()
            index = 0
            while shard := list(islice(records, lines)):
                yield Shard(index, shard)
                index += 1
        except (OSError, *BROKEN) as error:
            raise Stopped(f"cannot read on in {self.path!r}: {reason(error)}") from error

    def parse(self, number: int, raw: bytes) -> Record:
        """What a line holds."""
        return read_json(number, raw, self.field, self.into) if self.form == "jsonl" else read_line(number, raw)

    def identity(self) -> dict[str, Any]:
        """What matters of it beside its content."""
        named = asdict(self)
        del named["path"]
        return named if self.form != "text" else {"form": "text"}

    def _records(self) -> Iterator[Record]:
        with FileIO(self.path) as raw:
            for batch in batches(plain(raw, self.path), self.parse):
                yield from batch


def _digest(stream: Any) -> tuple[int, str, int, bytes]:
    """Size, digest, line feeds and the last byte of what is left of a stream."""
    digest = hashlib.sha256()
    size, feeds, last = 0, 0, b""
    while block := stream.read(1 << 20):
        digest.update(block)
        size += len(block)
        feeds += block.count(b"\n")
        last = block[-1:]
    return size, digest.hexdigest(), feeds, last
