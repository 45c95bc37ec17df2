"""Formats: in which form inputs are read, as they are used and never whole (`Input`: text, JSON lines or Parquet, compressed or
not), and in which results are written (`Target`: pieces that were written apart can be put together)."""

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


RECORDS = ("jsonl", "parquet")  # forms in which an output goes into a field of its record


@dataclass(frozen=True)
class Input:
    """A file to read. `field`: where a record's text is; `into`: where its translation will go, if so; nothing may be there."""

    path: str
    form: str = "text"
    field: str = "text"
    into: str | None = "translation"

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
        return read_json(number, raw, self.field, self.into) if self.form == "jsonl" else read_line(number, raw)

    def identity(self) -> dict[str, Any]:
        """What matters of it beside its content."""
        named = asdict(self)
        del named["path"]
        return named if self.form != "text" else {"form": "text"}


# -- what is written -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A form (text, nbest, json, jsonl or parquet), and what it depends on. `field` and `into` name the text and its translation
    in a record; `partial`: where nothing finished, the best unfinished hypothesis is written."""

    form: str = "text"
    compression: str | None = None
    nbest: int = 1
    partial: bool = False
    field: str = "text"
    into: str = "translation"

    def identity(self) -> dict[str, Any]:
        """What of it matters to the bytes that are written."""
        named = asdict(self)
        return named if self.form in RECORDS else {k: v for k, v in named.items() if k not in ("field", "into")}

    # -- one record ------------------------------------------------------------------------------------------------------

    def shown(self, result: Result) -> list[Answer]:
        """The hypotheses to write."""
        if not result.hypotheses and self.partial and result.partial is not None:
            return [result.partial]
        return result.hypotheses

    @property
    def line(self) -> Callable[[Record, Result], str]:
        """What is written for one record, with its line end."""
        return {"text": self._text, "nbest": self._nbest, "json": self._json, "jsonl": self._record}[self.form]

    def _text(self, record: Record, result: Result) -> str:
        """The best hypothesis; an empty line where there is none."""
        answers = self.shown(result)
        return one_line(answers[0].text) + "\n" if answers else "\n"

    def _nbest(self, record: Record, result: Result) -> str:
        """`i ||| text ||| score` for every hypothesis, i counted from 0, as Moses and Marian write it.

        An input without hypotheses has one entry without text: an empty line (score 0), or one that failed (score -inf).
        """
        entries = [(one_line(answer.text), answer.score) for answer in self.shown(result)]
        nothing = [("", 0.0 if result.status == "complete" else float("-inf"))]
        return "".join(f"{record.number - 1} ||| {text} ||| {score:.6f}\n" for text, score in entries or nothing)

    def _json(self, record: Record, result: Result) -> str:
        """One object: the printed text, all hypotheses, what the search cost, and how it ended."""
        printed = self.shown(result)
        fields: dict[str, Any] = {
            "line": record.number,
            "text": (printed[0].text or "") if printed else "",
            "hypotheses": [_fields(answer) for answer in result.hypotheses],
            "calls": result.calls,
            "rows": result.rows,
            "steps": result.steps,
            "exact": result.exact,
            "status": result.status,
        }
        if result.message is not None:
            fields["message"] = result.message
        if self.partial and not result.hypotheses and result.partial is not None:
            fields["partial"] = _fields(result.partial)
        return to_json(fields) + "\n"

    def _record(self, record: Record, result: Result) -> str:
        """The record's own fields, as they were read, and its translation."""
        own = record.row if isinstance(record.row, str) else to_json(record.row or {self.field: record.text})
        begun = own[:-1].rstrip()
        comma = "" if begun == "{" else ", "
        return f"{begun}{comma}{to_json(self.into)}: {to_json(self._translation(record, result))}}}\n"

    def _translation(self, record: Record, result: Result) -> Any:
        """What goes into a record's new field: the best text, or with `nbest` the list of them; None where there is none."""
        texts: list[str | None] = [answer.text for answer in self.shown(result)]
        if not texts and result.status == "complete":  # nothing to translate stays what it is
            texts = [record.text if record.fields is None else record.fields[self.field]]
        return texts if self.nbest > 1 else next(iter(texts), None)

    # -- many ------------------------------------------------------------------------------------------------------------

    def admit(self, record: Record) -> Record:
        """The record; one whose fields this form cannot hold has an error, and the fields that can be held."""
        if self.form != "parquet" or not isinstance(record.row, str) or (fields := record.fields) is None:
            return record
        odd = parquet().unfit(fields)
        if not odd:
            return record
        name, why = next(iter(odd.items()))
        row = to_json({name: value for name, value in fields.items() if name not in odd})
        return replace(record, error=f"field {name!r} does not fit into Parquet: {why}; write .jsonl", text="", row=row)

    def encode(self, shard: Shard, results: Sequence[Result]) -> bytes:
        """What is written for these records."""
        each = zip(shard.records, results, strict=True)
        if self.form == "parquet":
            values = [self._translation(record, result) for record, result in each]
            return parquet().encode(shard, values, self.field, self.into, self.nbest > 1)
        write = self.line
        text = "".join([write(record, result) for record, result in each])
        return compress(text.encode("utf-8", "replace"), self.compression)

    def join(self, pieces: Callable[[], Iterator[bytes]], out: BinaryIO) -> None:
        """Put encoded shards together, in this order, a piece at a time."""
        every = pieces()
        first = next(every, None)
        if first is None:
            out.write(self.encode(Shard(0, ()), ()))
        elif self.form == "parquet":
            parquet().join(pieces, out)
        else:
            out.writelines(chain([first], every))

    def split(self, path: Path, sizes: Sequence[int], rows: int) -> Iterator[bytes]:
        """The pieces that `join` made this file of, by their sizes; of a Parquet file, by the rows of each."""
        if self.form == "parquet":
            yield from parquet().split(str(path), rows)
            return
        with open(path, "rb") as stream:
            yield from (stream.read(size) for size in sizes)


def one_line(text: str | None) -> str:
    """A text on one line, whatever line ends the model put into it: output lines belong to input lines."""
    return " ".join((text or "").splitlines())


def _fields(answer: Answer) -> dict[str, Any]:
    """As JSON has it; `item` where outputs are numbered, `truncated` where nothing ended it."""
    left_out = [name for name, usual in (("item", None), ("truncated", False)) if getattr(answer, name) == usual]
    return {name: value for name, value in asdict(answer).items() if name not in left_out}
