"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import io
import os
import stat
import sys
from types import TracebackType
from typing import Any


class Bar:
    """Counts lines as they are written. Shows nothing where stderr is no terminal, or the lines themselves appear there."""

    def __init__(self, source: io.FileIO, hidden: bool) -> None:
        self._progress: Any = None
        if hidden or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), redirect_stdout=False)
        self._task = self._progress.add_task("loading the model", total=_count_lines(source))

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self) -> None:
        """The model is there."""
        if self._progress is not None:
            self._progress.update(self._task, description="translating")

    def advance(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._task)


def _count_lines(source: io.FileIO) -> int | None:
    """How many lines a file has; None for what cannot be read twice."""
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        return None
    begin = source.tell()
    lines, last = 0, b"\n"
    while block := source.read(1 << 20):
        lines += block.count(b"\n")
        last = block[-1:]
    source.seek(begin)
    return lines + (last != b"\n")
