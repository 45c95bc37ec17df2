"""What a run cost, in sum, and whether its results are beam search's."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from ..scheduler import Stats
from ..search import Result


@dataclass
class Summary:
    """Sums over all sentences that were given to the model."""

    sentences: int = 0
    failed: int = 0
    calls: int = 0
    rows: int = 0
    steps: int = 0
    exact: int = 0
    model_seconds: float = 0.0
    began: float = field(default_factory=perf_counter)

    def add(self, result: Result) -> None:
        """A sentence is done."""
        self.sentences += 1
        self.failed += result.status == "error"
        self.calls += result.calls
        self.rows += result.rows
        self.exact += result.exact

    def add_batch(self, stats: Stats) -> None:
        """Sentences that shared their forward passes are done."""
        self.steps += stats.steps
        self.model_seconds += stats.model_seconds

    def table(self, signature: str) -> str:
        """One figure a line."""
        seconds = perf_counter() - self.began
        each = max(1, self.sentences)
        lines = [
            f"sentences {self.sentences}" + (f" ({self.failed} failed)" if self.failed else ""),
            f"calls     {self.calls} ({self.calls / each:.1f} a sentence): hypotheses that had to be scored",
            f"rows      {self.rows} ({self.rows / each:.1f} a sentence): hypotheses that were scored, ahead of need included",
            f"steps     {self.steps} ({self.rows / max(1, self.steps):.1f} rows each): forward passes",
            f"exact     {self.exact} of {self.sentences}: proven to be beam search's answer",
            f"seconds   {seconds:.2f} ({self.model_seconds:.2f} in the model): {self.sentences / seconds:.1f} sentences a second",
            f"signature {signature}",
        ]
        return "\n".join(lines)
