"""What a run cost, in sum, and whether its results are beam search's."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import perf_counter

from ..corpus import Tally


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
