"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..corpus import Tally
from .console import error_console


class Bar:
    """Counts lines. Shows nothing where stderr is no terminal, or the lines themselves appear there."""

    def __init__(
        self, total: Callable[[], int | None], hidden: bool = False, what: str = "loading the model", transient: bool = False
    ) -> None:
        """`total` tells how many lines there are, and is not asked if there is no bar."""
        self._progress: Any = None
        if hidden or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[saved]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=error_console(), transient=transient, redirect_stdout=False)
        self._task = self._progress.add_task(what, total=total(), saved="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, done: int = 0) -> None:
        """The model is there; so many lines were done before."""
        if self._progress is not None:
            self._progress.reset(self._task, completed=done, description="translating")

    def advance(self, lines: int = 1) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, lines)

    def reach(self, count: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=count)

    def saved(self, tally: Tally) -> None:
        """What of beam search's calls was not made so far."""
        if self._progress is not None and tally.beam_calls:
            self._progress.update(self._task, saved=f"{tally.saved:.0%} of calls saved")


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar for work that is counted, gone when it is done: call what this yields with how far it is."""
    with Bar(lambda: total, what=what, transient=True) as bar:
        yield bar.reach
