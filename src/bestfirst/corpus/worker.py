"""Worker: decodes records, the good ones together; a failure of the model's own code costs the line at fault only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine import Stats
from ..search import Result, Trace
from ..settings import Budget
from . import formats
from .errors import Stopped, reason
from .record import Record, Shard
from .tally import Tally
from .target import Target

Done = Callable[[Record, Result], None]
Tracer = Callable[[Record], Trace]


@dataclass(frozen=True)
class Finished:
    """A shard that is done: what is written for it, what it cost, and which of its lines failed, why."""

    index: int
    data: bytes
    tally: Tally
    troubles: Sequence[tuple[int, str]] = ()


@dataclass
class Worker:
    """A model with its settings: the keyword arguments of `bestfirst.decode`."""

    model: Any
    settings: dict[str, Any]
    target: Target = field(default_factory=Target)
    signature: str = ""  # what makes its results what they are, in one line

    @property
    def beam(self) -> int:
        """The beam by which calls are compared; 0 where beam search's cost is not known."""
        comparable = self.settings.get("finished", "leave") == "leave" and self.settings.get("strategy") in (None, "best-first")
        return int(self.settings.get("beam", 5)) if comparable else 0

    def work(self, shard: Shard, budget: Budget | None = None, notice: Callable[[], None] | None = None) -> Finished:
        """Decode a shard by itself. With the same budget the bytes are the same, whatever was decoded before and where."""
        if budget is not None:
            self.model.budget = budget
        results: dict[int, Result] = {}

        def done(record: Record, result: Result) -> None:
            results[record.number] = result
            if notice is not None:
                notice()  # of one more line

        tally = self.decode(shard.records, done)
        inorder = [results[record.number] for record in shard.records]
        troubles = [(r.number, why) for r, result in zip(shard.records, inorder, strict=True) if (why := self.trouble(result))]
        tally.failed = len(troubles)
        return Finished(shard.index, self.target.encode(shard, inorder), tally, troubles)

    def decode(self, records: Sequence[Record], done: Done, trace: Tracer | None = None) -> Tally:
        """Decode these records; `done` is told of each. Nothing is asked of the model for those without text."""
        tally = Tally(lines=len(records))
        wanted = []
        for record in records:
            if record.error is not None:
                done(record, Result(status="error", message=record.error))
            elif record.blank:
                done(record, Result(status="complete", exact=True))
            else:
                wanted.append(record)
        if wanted:
            self._together(wanted, done, trace, tally)
        return tally

    def _together(self, records: Sequence[Record], done: Done, trace: Tracer | None, tally: Tally) -> None:
        """Decode these records together. If that fails, do those that are left in halves, until the one at fault is alone."""
        from ..decoding import decode

        left = dict(enumerate(records))
        cost = Stats()

        def finished(index: int, result: Result) -> None:
            tally.add(result, self.beam)
            done(left.pop(index), result)

        tracer = None if trace is None else lambda index: trace(records[index])
        try:
            texts = [record.text for record in records]
            decode(self.model, texts, progress=finished, trace=tracer, stats=cost, **self.settings)
            tally.add_batch(cost)
        except (Stopped, BrokenPipeError):
            raise
        except Exception as error:  # of the model's or a score's own code
            rest = list(left.values())
            if len(records) == 1:
                finished(0, Result(status="error", message=reason(error)))
                return
            middle = (len(rest) + 1) // 2
            for half in (rest[:middle], rest[middle:]):
                if half:
                    self._together(half, done, trace, tally)

    def trouble(self, result: Result) -> str | None:
        """Why a line has no output, if it should have one."""
        if result.status == "error":
            return result.message
        if result.status == "complete" or formats.shown(result, self.target.partial):
            return None
        limit, option = ("--max-calls", "it") if result.status == "budget" else ("the maximum length", "--max-length")
        return f"nothing finished within {limit}; raise {option}, or see what there is with --partial"
