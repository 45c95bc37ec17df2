"""Text in: a file, or standard input, record by record as they come."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from ..corpus import Input, Record
from ..corpus.compression import BROKEN, plain
from ..corpus.lines import batches
from .failure import PARTLY, CommandError, reason, say, usage

__all__ = ["batches", "open_input", "records"]

ROWS = 500  # of a Parquet file at a time


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


def records(source: Input, stream: io.FileIO) -> Iterator[list[Record]]:
    """All records, as many at a time as are there."""
    if source.form == "parquet":
        for shard in source.shards(ROWS):
            yield list(shard.records)
        return
    try:
        yield from batches(plain(stream, source.path), source.parse)
    except (OSError, *BROKEN) as error:
        raise CommandError(f"cannot read on: {reason(error)}", PARTLY) from error
