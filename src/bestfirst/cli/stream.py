"""Stream: lines are translated as they come and written at once, in order: pipes, terminals, and runs with a trace."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ..corpus import Input, Record, Worker
from ..corpus.input import UNREADABLE, decompressed
from ..corpus.records import batches
from ..corpus.worker import BEST_SO_FAR, OUT_OF_CALLS, UNFINISHED
from ..errors import reason
from ..search import HEADER, Result, Trace
from .console import CommandError, say, usage
from .output import Output
from .progress import Bar, CostSummary

ROWS = 500  # of a Parquet file at a time
REMEDIES = {
    UNFINISHED: "raise --max-length, or see what there is with --partial",
    OUT_OF_CALLS: "raise --max-calls, or see what there is with --partial",
    BEST_SO_FAR: "raise --max-calls, or be content with it by --partial",
}
Item = TypeVar("Item")


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
        text = isinstance(error, FileNotFoundError) and " " in str(path)
        hint = "; a text itself comes by standard input: echo TEXT | bestfirst translate" if text else ""
        raise usage(f"cannot read {path!r}: {reason(error)}{hint}") from error


def records(source: Input, stream: io.FileIO) -> Iterator[Sequence[Record]]:
    """All records, as many at a time as are there."""
    if source.form == "parquet":
        yield from (shard.records for shard in source.shards(ROWS))
        return
    try:
        yield from batches(decompressed(stream, source.path), source.parse)
    except UNREADABLE as error:
        raise CommandError(f"cannot read on: {reason(error)}") from error


def say_failure(number: int, why: str) -> None:
    """Name a line that has no output, and what may help."""
    say(f"line {number}: {why}" + (f"; {REMEDIES[why]}" if why in REMEDIES else ""))


class InOrder(Generic[Item]):
    """Takes numbered items in any order and hands them on in order, each as soon as all before it are there."""

    def __init__(self, emit: Callable[[int, Item], None], first: int = 1) -> None:
        self._emit = emit
        self._next = first
        self._waiting: dict[int, Item] = {}

    def put(self, number: int, item: Item) -> None:
        self._waiting[number] = item
        while self._next in self._waiting:
            item = self._waiting.pop(self._next)
            self._next += 1
            self._emit(self._next - 1, item)


class Stream:
    """Batches of records go in, results are written in the order of the records."""

    def __init__(self, worker: Worker, output: Output, events: Output | None, bar: Bar) -> None:
        self.worker = worker
        self.output = output
        self.events = events
        self.bar = bar
        self.summary = CostSummary()
        self._results: InOrder[tuple[Record, Result]] = InOrder(lambda _, item: self._write(*item))
        self._traces: dict[int, Trace] = {}
        for target in filter(None, (output, events)):
            target.begin()
        if events is not None:
            events.write(json.dumps(HEADER) + "\n")
        bar.begin()

    @property
    def failed(self) -> int:
        return self.summary.tally.failed

    def translate(self, records: Sequence[Record]) -> None:
        def done(record: Record, result: Result) -> None:
            self._results.put(record.number, (record, result))

        cost = self.worker.decode(records, done, None if self.events is None else self._trace)
        self.summary.tally.include(cost)
        self.bar.saved(self.summary.tally)

    def _trace(self, record: Record) -> Trace:
        trace = self._traces[record.number] = Trace(line=record.number)
        return trace

    def _write(self, record: Record, result: Result) -> None:
        self.output.write(self.worker.target.line(record, result))
        trace = self._traces.pop(record.number, None)
        if self.events is not None and trace is not None:
            self.events.write("".join(json.dumps(event) + "\n" for event in trace.events))
        why = self.worker.failure(result)
        if why is not None:
            self.summary.tally.failed += 1
            say_failure(record.number, why)
        self.bar.advance()
