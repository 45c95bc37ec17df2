"""Summary: means over the rows of a setting, compared with a baseline on the same lines; quality metrics; sharpness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .bootstrap import LineMetric
from .row import Row
from .setting import Setting

NEAR_TIE = 1e-4  # scores this close count as equal: the shape of a batch changes the last bits of logits
FIFTHS = 5

RowsByLine = Mapping[int, Row]
RowsBySetting = Mapping[Setting, RowsByLine]
"""The rows of one model and text, by setting and line."""


@dataclass(frozen=True)
class Against:
    """A setting compared with a baseline, in percent of lines; `increase` is (old - new) / new of calls.

    `different`: outputs with another text. `lower`, `higher`: scores that differ by 1e-4 or more. `near_ties`: the number of
    different outputs whose scores are closer than that.
    """

    increase: float
    different: float
    lower: float
    higher: float
    near_ties: int


@dataclass(frozen=True)
class SettingSummary:
    """Means over lines. `least`: the fewest calls with which any search can be certain of these answers, if known; a lower bound
    unless `least_proven`."""

    setting: Setting
    lines: int
    source_length: float
    calls: float
    lm_calls: float
    rows: float
    steps: float
    seconds: float
    surprise: float | None
    unfinished: int
    exact: int
    quality: Mapping[str, float] = field(default_factory=dict)
    least: float | None = None
    least_proven: bool = True
    against: Against | None = None

    @property
    def over_least(self) -> float | None:
        """Calls divided by the fewest possible."""
        return None if self.least is None else self.calls / self.least

    @property
    def milliseconds(self) -> float | None:
        """The time of a line, if lines were decoded alone; None otherwise, since lines share forward passes then."""
        return 1000 * self.seconds if self.setting.alone else None

    @property
    def milliseconds_a_call(self) -> float | None:
        return None if self.milliseconds is None else self.milliseconds / self.calls

    def json(self) -> dict[str, Any]:
        named: dict[str, Any] = {"setting": self.setting.json(), "search": self.setting.search, "beam": self.setting.beam}
        named["over_least"] = self.over_least
        return {**vars(self), **named, "against": None if self.against is None else asdict(self.against)}


def by_setting(rows: Iterable[Row]) -> dict[Setting, dict[int, Row]]:
    """Rows of one model and text, by setting and line."""
    settings: dict[Setting, dict[int, Row]] = {}
    for row in rows:
        settings.setdefault(row.setting, {})[row.line] = row
    return settings


def by_model_and_text(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Groups of rows that can be compared with each other."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.text), []).append(row)
    return groups


def common(groups: Iterable[RowsByLine]) -> list[int]:
    """The lines that all groups have."""
    sets = [set(group) for group in groups]
    return sorted(set.intersection(*sets)) if sets else []


def summarize(
    rows: RowsByLine, lines: Sequence[int], metrics: QualityMetrics | None = None, baseline: RowsByLine | None = None
) -> SettingSummary:
    """The summary of a setting's rows on these lines, with a comparison to a baseline, which may also supply the certificate."""
    chosen = [rows[line] for line in lines]
    references = [row.reference for row in chosen if row.reference is not None]
    scored = metrics is not None and len(references) == len(chosen)
    surprises = [row.surprise for row in chosen if row.surprise is not None]
    certified = _certified(chosen, baseline)
    names = ("source_length", "calls", "lm_calls", "rows", "steps", "seconds")
    return SettingSummary(
        setting=chosen[0].setting,
        lines=len(chosen),
        **{name: mean(getattr(row, name) for row in chosen) for name in names},
        surprise=mean(surprises) if surprises else None,
        unfinished=sum(row.output is None for row in chosen),
        exact=sum(row.exact for row in chosen),
        quality=metrics.score([row.output or "" for row in chosen], references) if metrics and scored else {},
        least=_least(certified),
        least_proven=all(row.least_proven for row in certified),
        against=None if baseline is None else compare(chosen, [baseline[line] for line in lines]),
    )


def compare(rows: Sequence[Row], baseline: Sequence[Row]) -> Against:
    """Compare rows with a baseline's rows of the same lines."""
    pairs = list(zip(rows, baseline, strict=True))
    gaps = {a.line: a.score - b.score for a, b in pairs if a.score is not None and b.score is not None}
    different = [a.line for a, b in pairs if a.output != b.output]
    return Against(
        increase=increase(sum(b.calls for _, b in pairs), sum(a.calls for a, _ in pairs)),
        different=100 * len(different) / len(rows),
        lower=100 * sum(gap <= -NEAR_TIE for gap in gaps.values()) / len(rows),
        higher=100 * sum(gap >= NEAR_TIE for gap in gaps.values()) / len(rows),
        near_ties=sum(line in gaps and abs(gaps[line]) < NEAR_TIE for line in different),
    )


def _certified(rows: Sequence[Row], baseline: RowsByLine | None) -> list[Row]:
    """The rows that hold the least calls for these answers: these, or the baseline's if its answers are proven the same."""
    if baseline is None or all(row.least is not None for row in rows):
        return list(rows)
    stop = rows[0].setting.decoding.stop
    of_baseline = [baseline[row.line] for row in rows]
    same = all(row.exact for row in rows) or (stop is not None and stop == of_baseline[0].setting.decoding.stop)
    return of_baseline if same else []


def _least(rows: Sequence[Row]) -> float | None:
    counted = [row.least for row in rows if row.least is not None]
    return mean(counted) if counted and len(counted) == len(rows) else None


def increase(old: float, new: float) -> float:
    """The increase of calls in percent, as the paper defines it."""
    return 100 * (old - new) / new


def mean(numbers: Iterable[float]) -> float:
    """The mean; 0 for no numbers."""
    counted = list(numbers)
    return sum(counted) / len(counted) if counted else 0.0


# -- sharpness: the surprise of outputs (minus log-probability, divided by the number of tokens) and the saving ------------


@dataclass(frozen=True)
class SharpnessPoint:
    """How sure the model was on some sentences or at one temperature, and the calls of both searches."""

    k: int
    label: str
    lines: int
    surprise: float
    beam: float
    best_first: float

    @property
    def increase(self) -> float:
        return increase(self.beam, self.best_first)

    @classmethod
    def of(cls, label: str, rows_of: RowsBySetting, ours: Setting, beam: Setting, lines: Sequence[int]) -> SharpnessPoint:
        surprises = [surprise for line in lines if (surprise := rows_of[beam][line].surprise) is not None]
        calls = [mean(rows_of[setting][line].calls for line in lines) for setting in (beam, ours)]
        return cls(ours.beam, label, len(lines), mean(surprises), *calls)


def over_beam_search(rows_of: RowsBySetting) -> Iterator[tuple[Setting, Setting]]:
    """Pairs of best-first search and beam search, by beam size: log-probability at any temperature, lines decoded together."""
    for setting in sorted(rows_of, key=lambda s: s.beam):
        if (setting.search, setting.decoding.score, setting.alone) == ("best-first", "logprob", False):
            beam = setting.using("beam")
            if beam in rows_of:
                yield setting, beam


def pairs_of(rows_of: RowsBySetting) -> list[tuple[Setting, Setting, list[int]]]:
    """The pairs of `over_beam_search` without a temperature, each with the lines that both have."""
    pairs = [pair for pair in over_beam_search(rows_of) if not pair[0].decoding.score_options]
    return [(ours, beam, common((rows_of[ours], rows_of[beam]))) for ours, beam in pairs]


def binned(rows_of: RowsBySetting) -> dict[int, list[SharpnessPoint]]:
    """For each beam size, fifths of the sentences, those of which the model is surest first."""
    points = {}
    for ours, beam, lines in pairs_of(rows_of):
        sure = sorted((row.surprise, line) for line in lines if (row := rows_of[beam][line]).surprise is not None)
        cuts = [i * len(sure) // FIFTHS for i in range(FIFTHS + 1)]
        fifths = [[line for _, line in sure[cuts[i] : cuts[i + 1]]] for i in range(FIFTHS)]
        points[ours.beam] = [
            SharpnessPoint.of(f"sentences, fifth {i}", rows_of, ours, beam, fifth) for i, fifth in enumerate(fifths, 1) if fifth
        ]
    return points


def tempered(rows_of: RowsBySetting) -> dict[int, list[SharpnessPoint]]:
    """For each beam size, a point for each temperature (1: the model as it is), on the lines that all temperatures have."""
    by_beam: dict[int, dict[float, tuple[Setting, Setting]]] = {}
    for ours, beam in over_beam_search(rows_of):
        by_beam.setdefault(ours.beam, {})[ours.decoding.score_options.get("temperature", 1.0)] = (ours, beam)
    points = {}
    for k, pairs in by_beam.items():
        lines = common(rows_of[setting] for pair in pairs.values() for setting in pair)
        if len(pairs) > 1 and lines:
            points[k] = [SharpnessPoint.of(f"T = {t:g}", rows_of, ours, beam, lines) for t, (ours, beam) in sorted(pairs.items())]
    return points


# -- quality -------------------------------------------------------------------------------------------------------------


class QualityMetrics:
    """Scores outputs against references."""

    def __init__(self, metrics: Sequence[LineMetric]) -> None:
        self._metrics = metrics
        self._known: dict[tuple[str, ...], dict[str, float]] = {}

    @property
    def names(self) -> list[str]:
        return [metric.name for metric in self._metrics]

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Each metric of the whole text, in percent; cached, since many searches have the same outputs."""
        key = (*outputs, *references)
        if key not in self._known:
            self._known[key] = {metric.name: metric.of_text(outputs, references) for metric in self._metrics}
        return self._known[key]

    def signatures(self) -> list[str]:
        """How each metric was computed, if any was."""
        return [f"{metric.title}: {metric.signature}" for metric in self._metrics] if self._known else []
