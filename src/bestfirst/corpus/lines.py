"""Lines of bytes, and the records they hold: plain text, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from .record import Record

BLOCK = 1 << 18  # bytes to read at most at a time, some thousand lines: enough to keep a model busy
LONGEST = 1 << 20  # bytes of a line: no sentence is longer, and what is no text at all may have no line ends

Parse = Callable[[int, bytes], Record]


class Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def blocks(stream: Readable) -> Iterator[bytes]:
    """The content of a stream, as much at a time as there is."""
    while block := stream.read(BLOCK):
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
    last = b"".join(begun)
    if last:
        yield [last]


def batches(stream: Readable, parse: Parse | None = None) -> Iterator[list[Record]]:
    """All lines, as many at a time as are there: a file comes in large batches, a terminal line by line.

    What they hold is plain text, if `parse` does not say otherwise.
    """
    parse = parse or read_line
    number = 0
    for chunk in whole_lines(blocks(stream)):
        batch = [parse(number + i, raw) for i, raw in enumerate(chunk, 1)]
        number += len(batch)
        yield batch


def read_line(number: int, raw: bytes) -> Record:
    """Decode one line, without its line end (a carriage return is part of that) and without a byte order mark."""
    if len(raw) > LONGEST:
        return Record(number, "", f"longer than {LONGEST} bytes; split it")
    try:
        text = raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Record(number, "", f"invalid UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1} ({error.reason})")
    return Record(number, text.removeprefix("\ufeff") if number == 1 else text)


def read_json(number: int, raw: bytes, field: str, into: str) -> Record:
    """One JSON object: its text is in `field`; `into` is where the translation will go. An empty line stays one."""
    line = read_line(number, raw)
    if line.error is not None or line.blank:
        return line
    try:
        fields = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        return Record(number, "", f"invalid JSON: {error}")
    if not isinstance(fields, dict):
        return Record(number, "", f"an object is expected, with a field {field!r}; this is {kind(fields)}")
    trouble = None
    text = fields.get(field)
    if field not in fields:
        trouble = f"no field {field!r} among {', '.join(map(repr, fields)) or 'none'}; name it with --input-field"
    elif text is not None and not isinstance(text, str):
        trouble = f"field {field!r} is {kind(text)}, not a text"
    elif into in fields:
        trouble = f"there is a field {into!r} already; name another with --output-field"
    return Record(number, "" if trouble else text or "", trouble, fields)


def kind(value: Any) -> str:
    """What a JSON value is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
