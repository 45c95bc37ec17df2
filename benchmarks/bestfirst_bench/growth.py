"""Growth: the costs of a whole decode, as the beam grows and as the text grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from bestfirst.decoding import decode
from bestfirst.engine import Stats

from .costs import peak_memory
from .row import ParallelText, Saved, device_name, identity
from .tables import Columns, Table

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel

    from .row import Store

STATS = ("calls", "rows", "steps", "seconds", "model_seconds", "in_flight", "cache_tokens")


@dataclass(frozen=True)
class Measurement(Saved):
    """The costs of decoding this many lines together. `cache_tokens`: the most in the KV cache; `peak_mib`: rise of memory."""

    kind, keys = "measurement", ("series", "text", "search", "beam", "lines")
    writer = "bestfirst bench growth"

    series: str  # "beam" or "lines": what grows
    model: str
    text: str
    search: str
    beam: int
    lines: int
    calls: int
    rows: int
    steps: int
    seconds: float
    model_seconds: float
    in_flight: int
    cache_tokens: int
    peak_mib: float
    device: str
    date: str


Point = tuple[str, str, int, int]
"""What to measure: series, search, beam size, number of lines."""


def growth_points(beams: Sequence[int], beam_lines: int, lines: Sequence[int], beam: int) -> list[Point]:
    """All beam sizes on `beam_lines` lines, with both searches; then all numbers of lines with `beam`, best-first only."""
    of_beam = [("beam", search, k, beam_lines) for k in beams for search in ("beam", "best-first")]
    return of_beam + [("lines", "best-first", beam, count) for count in lines]


def measure_growth(
    model: TransformersModel,
    text: ParallelText,
    points: Sequence[Point],
    store: Store[Measurement],
    progress: Callable[[str], None],
) -> None:
    """Make the measurements that are missing from the store."""
    sources = [pair.source for pair in text.pairs]
    decode(model, sources[:4])  # warm-up: one-time work is not timed
    for series, search, beam, lines in points:
        if (series, text.name, search, beam, lines) in store:
            continue
        progress(f"{search}, k = {beam}, {lines} lines")
        stats = Stats()
        with peak_memory() as memory:
            decode(model, sources[:lines], strategy=search, beam=beam, stats=stats)
        store.add(
            Measurement(
                series=series,
                model=identity(model),
                text=text.name,
                search=search,
                beam=beam,
                lines=lines,
                **{name: getattr(stats, name) for name in STATS},
                peak_mib=memory.mib,
                device=device_name(model),
                date=date.today().isoformat(),
            )
        )


def growth_table(title: str, measured: Sequence[Measurement]) -> Table:
    """A table of these measurements."""
    columns: Columns = {
        "what grows": "series",
        "search": "search",
        "k": "beam",
        "lines": "lines",
        "calls": lambda m: f"{m.calls / m.lines:.1f}",
        "rows": lambda m: f"{m.rows / m.lines:.1f}",
        "steps": lambda m: f"{m.steps / m.lines:.2f}",
        "ms": lambda m: f"{1000 * m.seconds / m.lines:.1f}",
        "ms in the model": lambda m: f"{1000 * m.model_seconds / m.lines:.1f}",
        "cache tokens": "cache_tokens",
        "peak MiB": "peak_mib:.0f",
    }
    note = "calls, rows, steps and ms: a sentence. cache tokens: the most held at a time, for all sentences in flight together."
    return Table.of(title, measured, columns, {"what grows", "search"}, lambda m: m.series, [note])
