"""Text in: lines of a file or of standard input, as they come."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .failure import PARTLY, CommandError, reason, say, usage

BLOCK = 1 << 18  # bytes to read at most at a time, some thousand lines: enough to keep a model busy


@dataclass(frozen=True)
class Line:
    """One line of the input: its number, from 1, and its text; or why it has none."""

    number: int
    text: str
    error: str | None = None

    @property
    def blank(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()


def open_input(path: str | None) -> io.FileIO:
    """The file of this name; standard input without one, or for `-`."""
    if path in (None, "-"):
        if sys.stdin is None:
            raise usage("standard input is closed; name an input file")
        stream = io.FileIO(sys.stdin.fileno(), closefd=False)
        if stream.isatty():
            say("reading from the terminal; end with Ctrl-D")
        return stream
    try:
        return io.FileIO(str(path))
    except OSError as error:
        raise usage(f"cannot read {path!r}: {reason(error)}") from error


def batches(stream: io.FileIO) -> Iterator[list[Line]]:
    """All lines, as many at a time as are there: a file comes in large batches, a terminal line by line."""
    number = 0
    for chunk in _whole_lines(_blocks(stream)):
        batch = [read_line(number + i, raw) for i, raw in enumerate(chunk, 1)]
        number += len(batch)
        yield batch


def read_line(number: int, raw: bytes) -> Line:
    """Decode one line, without its line end (a carriage return is part of that) and without a byte order mark."""
    try:
        text = raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Line(number, "", f"invalid UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1} ({error.reason})")
    return Line(number, text.removeprefix("\ufeff") if number == 1 else text)


def _blocks(stream: io.FileIO) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read(BLOCK)
        except OSError as error:
            raise CommandError(f"cannot read on: {reason(error)}", PARTLY) from error
        if not block:
            return
        yield block


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut blocks into lines at line feeds alone: other line breaks of Unicode do not end a line of a text file."""
    begun: list[bytes] = []  # pieces of a line whose end has not come yet
    for block in blocks:
        first, *others = block.split(b"\n")
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = [others[-1]]
    last = b"".join(begun)
    if last:
        yield [last]
