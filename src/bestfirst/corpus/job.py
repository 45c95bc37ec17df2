"""Job: an input, an output, and whoever does the shards that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..settings import Budget
from .errors import Stopped
from .reader import Input, Survey
from .record import Shard
from .store import Store
from .worker import Finished

SHARD_LINES = 500
"""Lines that are decoded and kept together: a few seconds' work on a CPU. Larger shards are no faster there (docs/corpus.md)."""


def row_budget(device: str | None, rows: int | None = None) -> Budget:
    """The rows of a forward pass: as asked, or what suits most models. It is not measured, as `decode` does, but fixed: then the
    bytes of an output do not depend on how busy the machine was, for the shape of a batch changes the last bits of scores."""
    if rows is not None:
        return Budget(rows, rows)
    return Budget(512, 64) if device is not None and device.startswith("cuda") else Budget(128, 16)


Work = Callable[[Iterator[Shard]], Iterable[Finished]]
"""Does shards, and hands them back in any order. It takes the next one when it has room for it, so that few are in memory."""


@dataclass
class Job:
    """One pass over the input does all that the store has not."""

    source: Input
    survey: Survey
    store: Store
    shard_lines: int = SHARD_LINES

    def run(self, work: Work, notice: Callable[[Finished], None] = lambda finished: None) -> None:
        """Do what is missing, keep every shard as soon as it is done, and make the output when all are there."""
        for finished in work(self._missing()):
            self.store.commit(finished)
            notice(finished)
        if self.store.tally.lines != self.survey.lines:
            raise Stopped(f"{self.source.path!r} was changed while it was read; give the command again")
        self.store.finish()

    def _missing(self) -> Iterator[Shard]:
        return (shard for shard in self.source.shards(self.shard_lines) if shard.index not in self.store.done)
