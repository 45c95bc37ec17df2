"""File formats of corpus jobs: `Input` streams records from text, JSON lines or Parquet, compressed or not; `Target` encodes
results, such that shards encoded separately can be joined to one file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from ..durable_files import digest
from ..errors import InputChanged, Stopped, Unusable, reason
from ..search import Answer, Result
from .records import Record, Shard, blocks, read_json, read_line, to_json, whole_lines

try:
    import zstandard
except ImportError:  # optional: all other files can still be read
    zstandard = None  # type: ignore[assignment]

ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
RECORDS = ("jsonl", "parquet")  # formats in which the output is a field of its record
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
FOREIGN = (".bz2", ".xz", ".lzma", ".lz4", ".br", ".z", ".zip", ".7z")  # compressions that are neither read nor written
COMPRESSED_BLOCK = 1 << 10  # bytes of a .zst file to decompress at a time: few, as they may stand for 30,000 times as many
UNREADABLE = (OSError, EOFError, zlib.error, *([] if zstandard is None else [zstandard.ZstdError]))
"""Exceptions that reading a damaged file raises."""


def format_of(name: str | None) -> str:
    """The format (jsonl, parquet or text) that a file name stands for, with or without a compression suffix."""
    path = Path((name or "").lower())
    bare = path.stem if path.suffix in COMPRESSIONS else path.name
    return next((form for ending, form in ENDINGS.items() if bare.endswith(ending)), "text")


def compression_of(name: str) -> str | None:
    return COMPRESSIONS.get(Path(name).suffix.lower())


def check_ending(name: str, form: str) -> None:
    """Unusable if the name of a file in this format promises a compression that it would not have."""
    suffix = Path(name).suffix
    if suffix.lower() in FOREIGN:
        raise Unusable(f"{name!r}: {suffix} is not among the compressions; there are {', '.join(COMPRESSIONS)}, and none")
    if form == "parquet" and compression_of(name):
        raise Unusable(f"{name!r}: Parquet is compressed inside; name a .parquet file")


def decompressed(stream: BinaryIO | FileIO, name: str) -> BinaryIO:
    """A stream of the decompressed content of a file with this name."""
    kind = compression_of(name)
    if kind == "gzip":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if kind == "zstd":
        return ZstdReader(stream)  # type: ignore[return-value]
    return stream


class ZstdReader:
    """A decompressed .zst file. EOFError if its end is missing; zstandard's own reader ends there silently."""

    def __init__(self, stream: BinaryIO | FileIO) -> None:
        self._stream = stream
        self._decompressor = zstd().ZstdDecompressor()
        self._frame: Any = None  # begun, and its end not reached yet
        self._compressed = memoryview(b"")  # what was read of the stream and is not decompressed yet

    def read(self, size: int) -> bytes:
        """What is available, of about `size` bytes; none at the end."""
        pieces, length = [], 0
        while length < size:
            if not self._compressed and length:
                break
            self._compressed = self._compressed or memoryview(self._stream.read(size) or b"")
            if not self._compressed:
                break
            frame = self._frame or self._decompressor.decompressobj()
            few = self._compressed[:COMPRESSED_BLOCK]
            pieces.append(frame.decompress(few))
            length += len(pieces[-1])
            self._compressed = self._compressed[len(few) - len(frame.unused_data) :]
            self._frame = None if frame.eof else frame
        if not length and self._frame is not None:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        return b"".join(pieces)


def compress(data: bytes, kind: str | None) -> bytes:
    """Compress data deterministically. Compressed pieces can be concatenated: both formats allow that."""
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
    """The module `parquet`, imported on demand because it needs pyarrow."""
    from . import parquet

    return parquet


@dataclass(frozen=True)
class Survey:
    """The size of an input in lines and bytes (decompressed), and the digest that identifies its content."""

    lines: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Input:
    """An input file. `field` is the field with a record's text (or, for `chat`, a conversation), `into` that for its translation,
    which must not exist yet."""

    path: str
    form: str = "text"
    field: str = "text"
    into: str | None = "translation"
    chat: bool = False

    def survey(self) -> Survey:
        """Read the file once, a block at a time, to measure and identify it. Unusable if it cannot be read."""
        try:
            if self.form == "parquet":
                path = Path(self.path)
                return Survey(parquet().count(self.path, self.field, self.into), path.stat().st_size, digest(path))
            with FileIO(self.path) as raw:
                hasher, size, lines, last = sha256(), 0, 0, b"\n"
                for block in blocks(decompressed(raw, self.path), hasher):
                    size += len(block)
                    lines += block.count(b"\n")
                    last = block[-1:]
                return Survey(lines + (last != b"\n"), size, hasher.hexdigest())
        except UNREADABLE as error:
            raise Unusable(f"cannot read {self.path!r}: {reason(error)}") from error

    def shards(self, lines: int, survey: Survey | None = None) -> Iterator[Shard]:
        """The input in shards of `lines` lines. InputChanged, after the last shard, if the content is not that of `survey`."""
        try:
            if self.form == "parquet":
                yield from parquet().shards(self.path, self.field, lines)
                changed = survey is not None and self.survey() != survey
            else:
                with FileIO(self.path) as raw:
                    hasher = sha256()
                    numbered = enumerate(chain.from_iterable(whole_lines(blocks(decompressed(raw, self.path), hasher))), 1)
                    index = 0
                    while shard := [self.parse(number, line) for number, line in islice(numbered, lines)]:
                        yield Shard(index, shard)
                        index += 1
                changed = survey is not None and hasher.hexdigest() != survey.sha256
        except UNREADABLE as error:
            raise Stopped(f"cannot read on in {self.path!r}: {reason(error)}") from error
        if changed:
            raise InputChanged(f"{self.path!r} was changed while it was read; nothing is written of it, give the command again")

    def parse(self, number: int, raw: bytes) -> Record:
        return read_json(number, raw, self.field, self.into, self.chat) if self.form == "jsonl" else read_line(number, raw)

    def identity(self) -> dict[str, Any]:
        """The settings that, with the content, determine the records: part of the job's identity in its manifest."""
        named = asdict(self)
        del named["path"], named["chat"]
        return named if self.form != "text" else {"form": "text"}


# -- writing ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """An output format (text, nbest, json, jsonl or parquet) with its options. `field` and `into` name the fields of the text and
    its translation in a record; with `partial`, the best unfinished hypothesis is written if none finished."""

    form: str = "text"
    compression: str | None = None
    nbest: int = 1
    partial: bool = False
    field: str = "text"
    into: str = "translation"

    def identity(self) -> dict[str, Any]:
        """The options that determine the output's bytes: part of the job's identity in its manifest."""
        named = asdict(self)
        return named if self.form in RECORDS else {k: v for k, v in named.items() if k not in ("field", "into")}

    # -- one record ------------------------------------------------------------------------------------------------------

    def answers_to_write(self, result: Result) -> list[Answer]:
        """The hypotheses to write."""
        if not result.hypotheses and self.partial and result.partial is not None:
            return [result.partial]
        return result.hypotheses

    @property
    def line(self) -> Callable[[Record, Result], str]:
        """The function that formats one record's result, with its line end, in this (line-based) format."""
        return {"text": self._text, "nbest": self._nbest, "json": self._json, "jsonl": self._record}[self.form]

    def _text(self, record: Record, result: Result) -> str:
        """The best hypothesis; an empty line where there is none."""
        answers = self.answers_to_write(result)
        return one_line(answers[0].text) + "\n" if answers else "\n"

    def _nbest(self, record: Record, result: Result) -> str:
        """`i ||| text ||| score` for every hypothesis, i counted from 0, as Moses and Marian write it.

        An input without hypotheses has one entry without text: an empty line (score 0), or one that failed (score -inf)."""
        entries = [(one_line(answer.text), answer.score) for answer in self.answers_to_write(result)]
        nothing = [("", 0.0 if result.status == "complete" else float("-inf"))]
        return "".join(f"{record.number - 1} ||| {text} ||| {score:.6f}\n" for text, score in entries or nothing)

    def _json(self, record: Record, result: Result) -> str:
        """One object: the printed text, all hypotheses, what the search cost, and how it ended."""
        printed = self.answers_to_write(result)
        fields: dict[str, Any] = {
            "line": record.number,
            "text": (printed[0].text or "") if printed else "",
            "hypotheses": [_answer_fields(answer) for answer in result.hypotheses],
            "calls": result.calls,
            "rows": result.rows,
            "steps": result.steps,
            "exact": result.exact,
            "status": result.status,
        }
        if result.message is not None:
            fields["message"] = result.message
        if self.partial and not result.hypotheses and result.partial is not None:
            fields["partial"] = _answer_fields(result.partial)
        return to_json(fields) + "\n"

    def _record(self, record: Record, result: Result) -> str:
        """The record's own fields, as JSON exactly as it was read, and its translation."""
        own = record.row if isinstance(record.row, str) else to_json(record.row or {self.field: record.text})
        opened = own[:-1].rstrip()
        comma = "" if opened == "{" else ", "
        return f"{opened}{comma}{to_json(self.into)}: {to_json(self._translation(record, result))}}}\n"

    def _translation(self, record: Record, result: Result) -> Any:
        """The value of a record's new field: the best text, or the list of texts if `nbest` > 1; None if there is none."""
        texts: list[str | None] = [answer.text for answer in self.answers_to_write(result)]
        if not texts and result.status == "complete":  # a blank text is copied
            texts = [record.text if record.fields is None else record.fields[self.field]]
        return texts if self.nbest > 1 else next(iter(texts), None)

    # -- shards ----------------------------------------------------------------------------------------------------------

    def admit(self, record: Record) -> Record:
        """The record; if this format cannot store some of its fields, without these and with an error."""
        if self.form != "parquet" or not isinstance(record.row, str) or (fields := record.fields) is None:
            return record
        unfit = parquet().unfit(fields)
        if not unfit:
            return record
        name, why = next(iter(unfit.items()))
        row = to_json({name: value for name, value in fields.items() if name not in unfit})
        return replace(record, error=f"field {name!r} does not fit into Parquet: {why}; write .jsonl", text="", row=row)

    def encode(self, shard: Shard, results: Sequence[Result]) -> bytes:
        """The bytes of a shard in the output file."""
        pairs = zip(shard.records, results, strict=True)
        if self.form == "parquet":
            values = [self._translation(record, result) for record, result in pairs]
            return parquet().encode(shard, values, self.field, self.into, self.nbest > 1)
        write = self.line
        text = "".join([write(record, result) for record, result in pairs])
        return compress(text.encode("utf-8", "replace"), self.compression)

    def join(self, pieces: Callable[[], Iterator[bytes]], out: BinaryIO) -> None:
        """Write encoded shards, in order, as one file, with one piece in memory at a time. Parquet reads `pieces()` twice."""
        every = pieces()
        first = next(every, None)
        if first is None:
            out.write(self.encode(Shard(0, ()), ()))
        elif self.form == "parquet":
            parquet().join(pieces, out)
        else:
            out.writelines(chain([first], every))

    def split(self, path: Path, sizes: Sequence[int], rows: int) -> Iterator[bytes]:
        """The inverse of `join`: the pieces of a file, by their sizes in bytes; of a Parquet file, by `rows` rows each."""
        if self.form == "parquet":
            yield from parquet().split(str(path), rows)
            return
        with open(path, "rb") as stream:
            yield from (stream.read(size) for size in sizes)


def one_line(text: str | None) -> str:
    """A text with its line breaks replaced by spaces, so that output lines correspond to input lines."""
    return " ".join((text or "").splitlines())


def _answer_fields(answer: Answer) -> dict[str, Any]:
    """An answer as JSON fields, without `item` and `truncated` where these have their default values."""
    left_out = [name for name, usual in (("item", None), ("truncated", False)) if getattr(answer, name) == usual]
    return {name: value for name, value in asdict(answer).items() if name not in left_out}
