"""Records: one input each, with its number and whatever it came with, from plain text, JSON lines or Parquet, compressed or not.

A file (`Input`) is read as it is used and never whole.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import FileIO
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from ..errors import InputChanged, Stopped, Unusable, reason
from ..journal import digest
from ..models.reader import is_conversation

try:
    import zstandard
except ImportError:  # where it cannot be installed, all other files can still be read
    zstandard = None  # type: ignore[assignment]

BLOCK = 1 << 18  # bytes to read at most at a time, some thousand lines: enough to keep a model busy
DEEPEST = 800  # levels of JSON: it is read and written again, and Python's own limit is not much higher
LONGEST = 1 << 20  # bytes of a line: no sentence is longer, and what is no text at all may have no line ends
ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
UNREADABLE = (OSError, EOFError, zlib.error, *([] if zstandard is None else [zstandard.ZstdError]))
"""What a damaged file raises."""


@dataclass(frozen=True)
class Record:
    """One line or row of the input: its number, from 1, and its text; or why it has none."""

    number: int
    text: str  # empty where there is none
    error: str | None = None
    row: Mapping[str, Any] | str | None = None  # all of its fields, where it has more than its text; JSON as it was read

    @property
    def blank(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()

    @property
    def fields(self) -> Mapping[str, Any] | None:
        return json.loads(self.row) if isinstance(self.row, str) else self.row


@dataclass(frozen=True)
class Shard:
    """Records that are decoded and kept together; `index` counts from 0. `table`: the rows they stand for, of a Parquet file."""

    index: int
    records: Sequence[Record]
    table: Any = None

    @property
    def digest(self) -> str:
        """By which it is known again that a result is of these records."""
        content = repr([(record.text, record.error, record.row) for record in self.records])
        return sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def blocks(stream: Any, digest: Any = None) -> Iterator[bytes]:
    """The content of a stream, as much at a time as there is; `digest`, a hash, is fed with it."""
    while block := stream.read(BLOCK):
        if digest is not None:
            digest.update(block)
        yield block


def whole_lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut blocks into lines at line feeds alone: other line breaks of Unicode do not end a line of a text file.

    Of a line that is longer than `LONGEST`, only a start that is longer too is kept.
    """
    begun: list[bytes] = []  # pieces of a line whose end has not come yet
    held = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        if held <= LONGEST:
            begun.append(first)
            held += len(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun, held = [others[-1]], len(others[-1])
    if held:
        yield [b"".join(begun)]


def read_line(number: int, raw: bytes) -> Record:
    """Decode one line, without its line end (a carriage return is part of that) and without a byte order mark."""
    if len(raw) > LONGEST:
        return Record(number, "", f"longer than {LONGEST} bytes; split it")
    try:
        text = raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Record(number, "", f"invalid UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1} ({error.reason})")
    return Record(number, text.removeprefix("\ufeff") if number == 1 else text)


def batches(stream: Any, parse: Callable[[int, bytes], Record] = read_line) -> Iterator[list[Record]]:
    """All lines, as many at a time as are there: a file comes in large batches, a terminal line by line."""
    number = 0
    for chunk in whole_lines(blocks(stream)):
        batch = [parse(number + i, raw) for i, raw in enumerate(chunk, 1)]
        number += len(batch)
        yield batch


def read_json(number: int, raw: bytes, field: str, into: str) -> Record:
    """One JSON object: its text is in `field`; `into` is where the translation will go. An empty line stays one."""
    line = read_line(number, raw)
    if line.error is not None or line.blank:
        return line
    try:
        fields = json.loads(line.text, parse_constant=_refuse)
        if line.text.count("[") + line.text.count("{") > DEEPEST and _depth(fields) > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
    except (ValueError, RecursionError) as error:
        return Record(number, "", f"invalid JSON: {error}")
    if not isinstance(fields, dict):
        return Record(number, "", f"an object is expected, with a field {field!r}; this is {_kind(fields)}")
    row, text = line.text.strip(), fields.get(field)
    if field not in fields:
        names = ", ".join(map(repr, fields)) or "none"
        return Record(number, "", f"no field {field!r} among {names}; name the input field", row)
    if is_conversation(text):
        text = to_json(text)
    if text is not None and not isinstance(text, str):
        return Record(number, "", f"field {field!r} is {_kind(text)}, not a text", row)
    if into in fields:
        others = to_json({name: value for name, value in fields.items() if name != into})
        return Record(number, "", f"there is a field {into!r} already; name another output field", others)
    return Record(number, text or "", None, row)


def to_json(value: Any) -> str:
    """JSON and nothing else: null for what is not finite, an escape for half a character (a lone surrogate)."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace").decode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _depth(value: Any) -> int:
    """How deep lists and objects are nested."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is none of its values")


def _kind(value: Any) -> str:
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value)) or json.dumps(value)


# -- files -----------------------------------------------------------------------------------------------------------------


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
