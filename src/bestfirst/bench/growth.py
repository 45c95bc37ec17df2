"""Growth: what a decode costs as a whole, as the beam grows and as the text grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from ..decoding import decode
from ..engine import Stats
from .corpus import Corpus
from .memory import peak_above
from .runner import device_name, identity
from .setting import Setting

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel
    from .store import Store

KIND = "bestfirst bench measurement"


class Key(NamedTuple):
    """What a measurement is of."""

    series: str
    text: str
    search: str
    beam: int
    lines: int


@dataclass(frozen=True)
class Measurement:
    """One decode of so many lines together. `cache_tokens` is the most held at a time, `peak_mib` what memory rose by."""

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

    @property
    def key(self) -> Key:
        return Key(self.series, self.text, self.search, self.beam, self.lines)

    def dump(self) -> str:
        """As a line of JSON."""
        return json.dumps({"kind": KIND, **asdict(self)}) + "\n"

    @classmethod
    def load(cls, text: str | bytes) -> Measurement:
        """The measurement of this line. ValueError if it is none."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("kind") != KIND:
                raise KeyError("kind")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a measurement that bestfirst bench growth wrote") from error


@dataclass(frozen=True)
class Plan:
    """What is measured: every beam on `beam_lines` lines, both searches; then every number of lines with `beam`, best-first."""

    beams: Sequence[int]
    beam_lines: int
    lines: Sequence[int]
    beam: int

    def points(self) -> list[tuple[str, Setting, int]]:
        """Each decode: its series, its setting, its number of lines."""
        of_beam = [("beam", Setting(search, k), self.beam_lines) for k in self.beams for search in ("beam", "best-first")]
        return of_beam + [("lines", Setting("best-first", self.beam), lines) for lines in self.lines]


def measure(
    model: TransformersModel, corpus: Corpus, plan: Plan, store: Store[Measurement], progress: Callable[[str], None]
) -> None:
    """Make the measurements that are missing."""
    name, device = identity(model), device_name(model)
    sources = [pair.source for pair in corpus.pairs]
    decode(model, sources[:4])  # what is done once is not timed
    for series, setting, lines in plan.points():
        if Key(series, corpus.name, setting.search, setting.beam, lines) in store:
            continue
        progress(f"{setting.search}, k = {setting.beam}, {lines} lines")
        stats = Stats()
        with peak_above() as memory:
            results = decode(model, sources[:lines], **setting.arguments(), stats=stats)
        store.add(
            Measurement(
                series=series,
                model=name,
                text=corpus.name,
                search=setting.search,
                beam=setting.beam,
                lines=lines,
                calls=sum(result.calls for result in results),
                rows=stats.rows,
                steps=stats.steps,
                seconds=stats.seconds,
                model_seconds=stats.model_seconds,
                in_flight=stats.in_flight,
                cache_tokens=stats.cache_tokens,
                peak_mib=memory.mib,
                device=device,
                date=date.today().isoformat(),
            )
        )
