"""Progress: a bar on stderr, where that is a terminal, and in the end what a run cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..corpus import Tally
from .console import error_console


class Bar:
    """Counts lines. Shows nothing where stderr is no terminal, or the lines themselves appear there."""

    def __init__(
        self, total: Callable[[], int | None], hidden: bool = False, what: str = "loading the model", transient: bool = False
    ) -> None:
        """`total` tells how many lines there are, and is not asked if there is no bar. `transient`: gone when it is done."""
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


@dataclass
class CostSummary:
    """Sums over all lines, and how fast this run was: of a job that goes on, it did only some of them."""

    tally: Tally = field(default_factory=Tally)
    before: int = 0  # sentences that were done before this run
    began: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    @property
    def rate(self) -> float:
        """Sentences a second."""
        return (self.tally.sentences - self.before) / self.seconds

    def line(self) -> str:
        """The least one wants to know."""
        tally = self.tally
        each = max(1, tally.sentences)
        saved = f"; beam search makes at least {tally.beam_calls / each:.1f}" if tally.beam_calls else ""
        failed = f", {tally.failed} failed" if tally.failed else ""
        calls = f"{tally.calls / each:.1f} calls a sentence{saved}"
        return f"{tally.lines} lines{failed}, {self.seconds:.1f} seconds ({self.rate:.1f} sentences a second), {calls}"

    def table(self, signature: str) -> str:
        """One figure a line."""
        tally, seconds = self.tally, self.seconds
        each = max(1, tally.sentences)
        earlier = f", {self.before} of them before" if self.before else ""
        least = f"{tally.beam_calls / each:.1f} a sentence"
        lines = [
            f"sentences {tally.sentences}" + (f" ({tally.failed} failed)" if tally.failed else "") + earlier,
            f"calls     {tally.calls} ({tally.calls / each:.1f} a sentence): hypotheses that had to be scored",
            f"saved     {tally.saved:.0%} of beam search's calls at least, of {least}"
            if tally.saved
            else f"saved     nothing: beam search needs {least} at least",
            f"rows      {tally.rows} ({tally.rows / each:.1f} a sentence): hypotheses that were scored, ahead of need included",
            f"steps     {tally.steps} ({tally.rows / max(1, tally.steps):.1f} rows each): forward passes",
            f"exact     {tally.exact} of {tally.sentences}: proven to be beam search's answer",
            f"seconds   {seconds:.2f} ({tally.model_seconds:.2f} in the model): {self.rate:.1f} sentences a second",
            *([f"memory    {most} MB at most"] if (most := memory()) is not None else []),
            f"signature {signature}",
        ]
        return "\n".join(line for line in lines if tally.beam_calls or not line.startswith("saved"))


def memory() -> int | None:
    """Most memory this process has held, in MB; None where the system does not say."""
    try:
        import resource
    except ImportError:  # on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1 << 20 if sys.platform == "darwin" else 1 << 10)
