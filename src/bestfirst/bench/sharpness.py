"""Sharpness: how sure the model is of its output, against what best-first search saves.

Measured by the surprise of an output, minus its log-probability divided by its tokens: over sentences, and over temperatures that
make the same model sharper or flatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .row import Row
from .setting import Setting
from .summary import Lines, common, mean
from .table import Table

Found = Mapping[Setting, Mapping[int, Row]]
PARTS = 5


@dataclass(frozen=True)
class Point:
    """Some sentences, or one temperature: how sure the model was, and the calls of both searches."""

    label: str
    lines: int
    surprise: float
    beam: float
    best_first: float

    @property
    def increase(self) -> float:
        return 100 * (self.beam - self.best_first) / self.best_first


def pairs_of(found: Found) -> list[tuple[Setting, Setting, list[int]]]:
    """Every best-first setting with its beam search and the lines that both have; plain log-probability, not alone."""
    pairs = []
    for setting in sorted(found, key=lambda s: s.beam):
        beam = replace(setting, search="beam")
        if setting.search == "best-first" and setting.scored == "logprob" and not setting.alone and beam in found:
            pairs.append((setting, beam, common((found[setting], found[beam]))))
    return pairs


def binned(found: Found) -> dict[int, list[Point]]:
    """For each beam, sentences in fifths, those first of which the model is surest."""
    points = {}
    for setting, beam, lines in pairs_of(found):
        sure = sorted((row.surprise, line) for line in lines if (row := found[beam][line]).surprise is not None)
        ordered = [line for _, line in sure]
        fifths = [ordered[i * len(ordered) // PARTS : (i + 1) * len(ordered) // PARTS] for i in range(PARTS)]
        points[setting.beam] = [
            _point(f"fifth {i}", found[beam], found[setting], chosen) for i, chosen in enumerate(fifths, 1) if chosen
        ]
    return points


def tempered(found: Found) -> dict[int, list[Point]]:
    """For each beam, all sentences at each temperature; 1 is the model as it is. On the lines that all temperatures have."""
    by_beam: dict[int, dict[float, tuple[Setting, Setting]]] = {}
    for setting in found:
        beam = replace(setting, search="beam")
        if (setting.search, setting.score, setting.alone) == ("best-first", "logprob", False) and beam in found:
            by_beam.setdefault(setting.beam, {})[setting.options.get("temperature", 1.0)] = (setting, beam)
    points = {}
    for k, pairs in sorted(by_beam.items()):
        lines = common(found[setting] for pair in pairs.values() for setting in pair)
        if len(pairs) > 1 and lines:
            points[k] = [_point(f"{t:g}", found[beam], found[ours], lines) for t, (ours, beam) in sorted(pairs.items())]
    return points


def _point(label: str, beam: Lines, ours: Lines, lines: Sequence[int]) -> Point:
    surprises = [surprise for line in lines if (surprise := beam[line].surprise) is not None]
    calls = [mean(rows[line].calls for line in lines) for rows in (beam, ours)]
    return Point(label, len(lines), mean(surprises), *calls)


def sharpness_table(title: str, found: Found) -> Table:
    """Fifths of the sentences, then temperatures, for each beam."""
    rows: list[list[str]] = []
    sections: list[int] = []
    for kind, points in (("sentences", binned(found)), ("temperature", tempered(found))):
        for k, series in points.items():
            sections.append(len(rows))
            for p in series:
                numbers = [f"{p.surprise:.3f}", f"{p.beam:.1f}", f"{p.best_first:.1f}", f"{p.increase:+.0f} %"]
                rows.append([str(k), f"{kind}, {p.label}" if kind == "sentences" else f"T = {p.label}", str(p.lines), *numbers])
    headings = ["k", "what", "lines", "surprise", "beam: calls", "best-first: calls", "increase"]
    note = "surprise: minus the log-probability of a token of beam search's output. Fifths: of the sentences, the surest first."
    return Table(title, headings, rows, frozenset({"what"}), frozenset(sections[1:]), [note])
