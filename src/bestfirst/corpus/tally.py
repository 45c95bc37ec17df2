"""Tally: what lines cost, in sum, and what is certain of beam search's cost for the same answers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..engine import Stats
from ..search import Result


@dataclass
class Tally:
    """Sums over lines. `sentences` are those that were given to the model, `beam_calls` what beam search makes at least."""

    lines: int = 0
    sentences: int = 0
    failed: int = 0
    calls: int = 0
    beam_calls: int = 0
    rows: int = 0
    steps: int = 0
    exact: int = 0
    model_seconds: float = 0.0

    def add(self, result: Result, beam: int) -> None:
        """A sentence is done."""
        self.sentences += 1
        self.calls += result.calls
        self.beam_calls += beam_calls(result, beam)
        self.rows += result.rows
        self.exact += result.exact

    def add_batch(self, stats: Stats) -> None:
        """Sentences that shared their forward passes are done."""
        self.steps += stats.steps
        self.model_seconds += stats.model_seconds

    def include(self, other: Tally) -> None:
        """These lines too."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def saved(self) -> float:
        """The share of beam search's calls that was not made, at least."""
        return max(0.0, 1 - self.calls / self.beam_calls) if self.beam_calls else 0.0


def beam_calls(result: Result, beam: int) -> int:
    """How many calls beam search makes at least for the same answers, where finished hypotheses leave the beam.

    To find an answer of n tokens it scores the empty hypothesis and then a full beam of each length from 1 to n - 1, however
    well it is stopped (`tests/corpus/test_tally.py`).
    """
    longest = max((len(answer.tokens) for answer in result.hypotheses), default=0)
    return 1 + beam * (longest - 1) if longest else 0
