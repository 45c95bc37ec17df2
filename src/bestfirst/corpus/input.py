"""Input: a file of text, JSON lines or Parquet, compressed or not, read as it is used and never whole."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from ..errors import InputChanged, Stopped, Unusable, reason
from ..journal import digest
from .records import Record, Shard, blocks, read_json, read_line, whole_lines

try:
    import zstandard
except ImportError:  # where it cannot be installed, all other files can still be read
    zstandard = None  # type: ignore[assignment]

ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
UNREADABLE = (OSError, EOFError, zlib.error, *([] if zstandard is None else [zstandard.ZstdError]))
"""What a damaged file raises."""


def format_of(name: str | None) -> str:
    path = Path(name or "")
    bare = path.stem if path.suffix in COMPRESSIONS else path.name
    return next((form for ending, form in ENDINGS.items() if bare.endswith(ending)), "text")


def compression_of(name: str) -> str | None:
    """How a file of this name is compressed."""
    return COMPRESSIONS.get(Path(name).suffix)


def decompressed(stream: BinaryIO | FileIO, name: str) -> BinaryIO:
    """The content of a file of this name, decompressed as it is read."""
    kind = compression_of(name)
    if kind == "gzip":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if kind == "zstd":
        return zstd().ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return stream


def compress(data: bytes, kind: str | None) -> bytes:
    """The same bytes each time for the same data. Pieces can be put together as they are: both formats allow that."""
    if kind == "gzip":
        return gzip.compress(data, compresslevel=6, mtime=0)
    if kind == "zstd":
        return zstd().ZstdCompressor().compress(data)
    return data


def zstd() -> ModuleType:
    if zstandard is None:
        raise ValueError("a .zst file needs the package zstandard: pip install 'bestfirst[zstd]'")
    return zstandard


def parquet() -> ModuleType:
    """What reads and writes Parquet; it needs pyarrow."""
    from . import parquet

    return parquet


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
            if self.form == "parquet":
                path = Path(self.path)
                return Survey(parquet().count(self.path, self.field, self.into), path.stat().st_size, digest(path))
            with FileIO(self.path) as raw:
                found, size, lines, last = sha256(), 0, 0, b"\n"
                for block in blocks(decompressed(raw, self.path), found):
                    size += len(block)
                    lines += block.count(b"\n")
                    last = block[-1:]
                return Survey(lines + (last != b"\n"), size, found.hexdigest())
        except UNREADABLE as error:
            raise Unusable(f"cannot read {self.path!r}: {reason(error)}") from error

    def shards(self, lines: int, survey: Survey | None = None) -> Iterator[Shard]:
        """The whole input, so many lines at a time; the last shard may have fewer. InputChanged if that is not what the survey
        saw, which is known at the end."""
        try:
            if self.form == "parquet":
                yield from parquet().shards(self.path, self.field, lines)
                changed = survey is not None and self.survey() != survey
            else:
                with FileIO(self.path) as raw:
                    found = sha256()
                    numbered = enumerate(chain.from_iterable(whole_lines(blocks(decompressed(raw, self.path), found))), 1)
                    index = 0
                    while shard := [self.parse(number, line) for number, line in islice(numbered, lines)]:
                        yield Shard(index, shard)
                        index += 1
                changed = survey is not None and found.hexdigest() != survey.sha256
        except UNREADABLE as error:
            raise Stopped(f"cannot read on in {self.path!r}: {reason(error)}") from error
        if changed:
            raise InputChanged(f"{self.path!r} was changed while it was read; nothing is written of it, give the command again")

    def parse(self, number: int, raw: bytes) -> Record:
        """What a line holds."""
        return read_json(number, raw, self.field, self.into) if self.form == "jsonl" else read_line(number, raw)

    def identity(self) -> dict[str, Any]:
        """What matters of it beside its content."""
        named = asdict(self)
        del named["path"]
        return named if self.form != "text" else {"form": "text"}
