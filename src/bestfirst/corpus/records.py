"""`Record`: a numbered input with its other fields, read from a line of text or JSON. `Shard`: consecutive records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..models.reader import is_conversation

BLOCK = 1 << 18  # maximum bytes per read, some thousand lines: enough to keep a model busy
DEEPEST = 800  # nesting levels of JSON, which is parsed and written recursively: Python's recursion limit is not much higher
LONGEST = 1 << 20  # bytes of a line: no sentence is longer, and a binary file may have no line ends


@dataclass(frozen=True)
class Record:
    """One line or row of the input: its number, counted from 1, and its text; or the reason why it has none (`error`)."""

    number: int
    text: str  # empty if there is none
    error: str | None = None
    row: Mapping[str, Any] | str | None = None  # all fields, if it has more than its text; JSON is kept as it was read

    @property
    def blank(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """All fields, parsed; None for a line of text."""
        return json.loads(self.row) if isinstance(self.row, str) else self.row


@dataclass(frozen=True)
class Shard:
    """Consecutive records that are decoded and stored together; `index` counts from 0. `table`: their rows in a Parquet input."""

    index: int
    records: Sequence[Record]
    table: Any = None

    @property
    def digest(self) -> str:
        """Identifies the records, so that a stored result is not used for other ones."""
        content = repr([(record.text, record.error, record.row) for record in self.records])
        return sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def blocks(stream: Any, digest: Any = None) -> Iterator[bytes]:
    """The content of a stream in blocks of at most `BLOCK` bytes, as they become available; also fed to the hash `digest`."""
    while block := stream.read(BLOCK):
        if digest is not None:
            digest.update(block)
        yield block


def whole_lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split blocks into lines, at line feeds only: Unicode's other line breaks do not end a line of a text file. A line longer
    than `LONGEST` is truncated, but to more than `LONGEST` bytes, so that it is still recognized as too long."""
    unfinished: list[bytes] = []  # pieces of a line whose end has not been read yet
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        if size <= LONGEST:
            unfinished.append(first)
            size += len(first)
        if others:
            yield [b"".join(unfinished), *others[:-1]]
            unfinished, size = [others[-1]], len(others[-1])
    if size:
        yield [b"".join(unfinished)]


def read_line(number: int, raw: bytes) -> Record:
    """A line of text as a record, without a carriage return at its end or a byte order mark at the start of the file."""
    if len(raw) > LONGEST:
        return Record(number, "", f"longer than {LONGEST} bytes; split it")
    try:
        text = raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Record(number, "", f"invalid UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1} ({error.reason})")
    return Record(number, text.removeprefix("\ufeff") if number == 1 else text)


def batches(stream: Any, parse: Callable[[int, bytes], Record] = read_line) -> Iterator[list[Record]]:
    """The records of a stream, in batches of the lines available: large ones from a file, single lines from a terminal."""
    number = 0
    for chunk in whole_lines(blocks(stream)):
        batch = [parse(number + i, raw) for i, raw in enumerate(chunk, 1)]
        number += len(batch)
        yield batch


def read_json(number: int, raw: bytes, field: str, into: str | None, chat: bool = False) -> Record:
    """A JSON object with its text in `field`, or for `chat` a conversation; an error if it has a field `into`. An empty line
    gives a blank record."""
    line = read_line(number, raw)
    if line.error is not None or line.blank:
        return line
    try:
        fields = json.loads(line.text, parse_constant=_reject_constant)
        if line.text.count("[") + line.text.count("{") > DEEPEST and _depth(fields) > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
    except (ValueError, RecursionError) as error:
        return Record(number, "", f"invalid JSON: {error}")
    if not isinstance(fields, dict):
        return Record(number, "", f"an object is expected, with a field {field!r}; this is {_kind(fields)}")
    row, text = line.text.strip(), fields.get(field)
    if field not in fields:
        names = ", ".join(map(repr, fields)) or "none"
        return Record(number, "", f"no field {field!r} among {names}; name another input field", row)
    if chat and is_conversation(text):
        text = to_json(text)
    if text is not None and not isinstance(text, str):
        return Record(number, "", f"field {field!r} is {_kind(text)}, not a text", row)
    if into in fields:
        others = to_json({name: value for name, value in fields.items() if name != into})
        return Record(number, "", f"there is a field {into!r} already; name another output field", others)
    return Record(number, text or "", None, row)


def to_json(value: Any) -> str:
    """Strictly valid JSON: null for NaN and infinities, an escape for a lone surrogate."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(value, default=str), parse_constant=lambda constant: None)
        text = json.dumps(finite, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _depth(value: Any) -> int:
    """The nesting depth of lists and objects, computed without recursion."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is none of its values")


def _kind(value: Any) -> str:
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value)) or json.dumps(value)
