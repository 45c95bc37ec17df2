"""Summary: the rows of one setting as numbers, beside those of another setting on the same lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .metrics import Metrics
from .row import Row
from .setting import Setting

NEAR_TIE = 1e-4  # two scores this close are one: batch shape changes logits in the last bits

Lines = Mapping[int, Row]
"""The rows of one setting, by line."""


@dataclass(frozen=True)
class Against:
    """A setting beside a baseline. In percent; of lines, but for `increase`, which is (old - new) / new of calls.

    `different` outputs are not the baseline's text. `lower` and `higher` scores differ from its by 1e-4 or more, `near_ties` are
    different outputs of which neither scores better.
    """

    increase: float
    different: float
    lower: float
    higher: float
    near_ties: int


@dataclass(frozen=True)
class Summary:
    """Means over lines. `over_least`: of an exact search, calls over the fewest that any can make, where that is known."""

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
    over_least: float | None = None
    against: Against | None = None

    def json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields, "setting": self.setting.json(), "search": self.setting.search, "beam": self.setting.beam}


def by_setting(rows: Iterable[Row]) -> dict[Setting, dict[int, Row]]:
    """Rows of one model and text, by setting and line."""
    found: dict[str, tuple[Setting, dict[int, Row]]] = {}
    for row in rows:
        found.setdefault(row.setting.label, (row.setting, {}))[1][row.line] = row
    return dict(found.values())


def common(groups: Iterable[Lines]) -> list[int]:
    """The lines that all of them have."""
    sets = [set(group) for group in groups]
    return sorted(set.intersection(*sets)) if sets else []


def summarize(
    rows: Lines, lines: Sequence[int], metrics: Metrics | None = None, baseline: Lines | None = None, least: Lines | None = None
) -> Summary:
    """What these rows come to on these lines, beside a baseline's; `least` are the rows that know the certificate."""
    chosen = [rows[line] for line in lines]
    references = [row.reference for row in chosen if row.reference is not None]
    scored = metrics is not None and len(references) == len(chosen)
    surprises = [row.surprise for row in chosen if row.surprise is not None]
    return Summary(
        setting=chosen[0].setting,
        lines=len(chosen),
        source_length=mean(row.source_length for row in chosen),
        calls=mean(row.calls for row in chosen),
        lm_calls=mean(row.lm_calls for row in chosen),
        rows=mean(row.rows for row in chosen),
        steps=mean(row.steps for row in chosen),
        seconds=mean(row.seconds for row in chosen),
        surprise=mean(surprises) if surprises else None,
        unfinished=sum(row.output is None for row in chosen),
        exact=sum(row.exact for row in chosen),
        quality=metrics.score([row.output or "" for row in chosen], references) if metrics and scored else {},
        over_least=_over_least(chosen, least),
        against=None if baseline is None else compare(chosen, [baseline[line] for line in lines]),
    )


def compare(rows: Sequence[Row], baseline: Sequence[Row]) -> Against:
    """Rows beside a baseline's of the same lines."""
    new, old = sum(row.calls for row in rows), sum(row.calls for row in baseline)
    different = [(a, b) for a, b in zip(rows, baseline, strict=True) if a.output != b.output]
    gaps = [a.score - b.score for a, b in zip(rows, baseline, strict=True) if a.score is not None and b.score is not None]
    ties = sum(a.score is not None and b.score is not None and abs(a.score - b.score) < NEAR_TIE for a, b in different)
    return Against(
        increase=100 * (old - new) / new,
        different=100 * len(different) / len(rows),
        lower=100 * sum(gap <= -NEAR_TIE for gap in gaps) / len(rows),
        higher=100 * sum(gap >= NEAR_TIE for gap in gaps) / len(rows),
        near_ties=ties,
    )


def _over_least(rows: Sequence[Row], least: Lines | None) -> float | None:
    if least is None or not all(row.exact for row in rows):
        return None
    needed = [found.least for row in rows if (found := least.get(row.line)) and found.least is not None]
    return sum(row.calls for row in rows) / sum(needed) if len(needed) == len(rows) else None


def mean(numbers: Iterable[float]) -> float:
    """The mean; of nothing it is 0."""
    counted = list(numbers)
    return sum(counted) / len(counted) if counted else 0.0
