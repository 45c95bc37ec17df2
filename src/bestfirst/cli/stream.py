"""Stream: lines are translated as they come and written at once, in order: pipes, terminals, and runs with a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..corpus import Record, Worker
from ..search import HEADER, Result, Trace
from .failure import say
from .output import InOrder, Output
from .progress import Bar
from .stats import Summary


class Stream:
    """Batches of records go in, results are written in the order of the records."""

    def __init__(self, worker: Worker, output: Output, events: Output | None, bar: Bar) -> None:
        self.worker = worker
        self.output = output
        self.events = events
        self.bar = bar
        self.summary = Summary()
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
        """Translate these records."""

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
        trouble = self.worker.trouble(result)
        if trouble is not None:
            self.summary.tally.failed += 1
            say(f"line {record.number}: {trouble}")
        self.bar.advance()
