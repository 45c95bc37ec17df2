"""Record: one input with its number and whatever it came with, from lines of bytes: plain text, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..models.reader import is_conversation

BLOCK = 1 << 18  # bytes to read at most at a time, some thousand lines: enough to keep a model busy
DEEPEST = 800  # levels of JSON: it is read and written again, and Python's own limit is not much higher
LONGEST = 1 << 20  # bytes of a line: no sentence is longer, and what is no text at all may have no line ends


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


def read_json(number: int, raw: bytes, field: str, into: str | None) -> Record:
    """One JSON object: its text is in `field`; `into` is where the translation will go, if it does. An empty line stays one."""
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
        finite = json.loads(json.dumps(value, default=str), parse_constant=lambda constant: None)
        text = json.dumps(finite, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _depth(value: Any) -> int:
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
