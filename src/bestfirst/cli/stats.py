"""What a run cost, in sum, and whether its results are beam search's."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from ..search import Result


@dataclass
class Stats:
    """Counts over all sentences that were given to the model."""

    sentences: int = 0
    failed: int = 0
    calls: int = 0
    rows: int = 0
    steps: int = 0
    exact: int = 0
    began: float = field(default_factory=perf_counter)

    def add(self, result: Result) -> None:
        self.sentences += 1
        self.failed += result.status == "error"
        self.calls += result.calls
        self.rows += result.rows
        self.steps += result.steps
        self.exact += result.exact

    def table(self, signature: str) -> str:
        """The summary, one figure a line; calls, rows and steps also for each sentence."""
        seconds = perf_counter() - self.began
        each = max(1, self.sentences)
        lines = [
            f"sentences {self.sentences}" + (f" ({self.failed} failed)" if self.failed else ""),
            f"calls     {self.calls} ({self.calls / each:.1f} a sentence): hypotheses that had to be scored",
            f"rows      {self.rows} ({self.rows / each:.1f} a sentence): hypotheses that were scored, ahead of need included",
            f"steps     {self.steps / each:.1f} a sentence: forward passes it took part in",
            f"exact     {self.exact} of {self.sentences}: proven to be beam search's answer",
            f"seconds   {seconds:.2f} ({self.sentences / max(seconds, 1e-9):.1f} sentences a second)",
            f"signature {signature}",
        ]
        return "\n".join(lines)
