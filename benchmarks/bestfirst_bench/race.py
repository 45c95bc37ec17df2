"""Race: settings decode a text in ever larger parts, and those that others clearly outdo are stopped on the way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from time import perf_counter
from typing import Any

from bestfirst.decoding import decode
from bestfirst.engine import Stats

from .bootstrap import Bootstrap, LineMetric
from .row import Benchmark, Pair, ParallelText, Saved, Store, device_name
from .setting import Setting, read_setting
from .shared import decode_shared
from .summary import mean

FIRST = 10  # lines of the first part; each is about twice the one before
SAME = 40  # lines with the outputs of a cheaper setting, and no others, after which a setting is stopped
DEAR = 5  # times the calls of the defaults


class TuneResult(Saved):
    """What a race saves: a line's output, or what a setting took on the whole text."""

    kind = "tune result"
    writer = "bestfirst tune"

    @classmethod
    def read(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "setting": read_setting(json.dumps(fields["setting"]))}

    def json(self) -> dict[str, Any]:
        return {**vars(self), "setting": self.setting.json()}  # type: ignore[attr-defined]

    @classmethod
    def load(cls, text: str | bytes) -> Any:
        if cls is not TuneResult:
            return super().load(text)
        try:
            return TunedLine.load(text)
        except ValueError:
            return TimedText.load(text)


@dataclass(frozen=True)
class TunedLine(TuneResult):
    """One line under one setting. `output` is None where nothing finished within n_max."""

    kind = "tuned line"

    signature: str
    model: str
    setting: Setting
    line: int
    output: str | None
    calls: int
    exact: bool

    @property
    def key(self) -> Hashable:
        return self.signature, self.line


@dataclass(frozen=True)
class TimedText(TuneResult):
    """A whole text under one setting, by itself: the best of several turns."""

    kind = "timed text"

    signature: str
    model: str
    setting: Setting
    lines: int
    seconds: float
    rows: int
    steps: int
    device: str
    date: str

    @property
    def key(self) -> Hashable:
        return self.signature, "timed", self.lines


class Race:
    """Settings on one model and text. The first is the default that others are held against, and is never stopped.

    Lines come in an order of chance, so that a part of them is like the whole. `stopped` says why a setting was stopped.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        text: ParallelText,
        settings: Sequence[Setting],
        metrics: Sequence[LineMetric],
        store: Store[Any],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.benchmark = benchmark
        self.text = text
        self.default = settings[0]
        self.running = list(dict.fromkeys(settings))
        self.stopped: dict[Setting, str] = {}
        self.failures: dict[int, str] = {}
        self.scored = 0
        self._store = store
        self._tell = tell
        self._pairs = list(text.pairs)
        random.Random(0).shuffle(self._pairs)
        self._metrics = metrics
        self.bootstraps: list[Bootstrap] = []

    @property
    def pairs(self) -> list[Pair]:
        """The lines that can be decoded, in the order of the race."""
        return [pair for pair in self._pairs if pair.line not in self.failures]

    def run(self) -> None:
        """All lines with the settings that remain."""
        for count in parts(len(self._pairs)):
            self._tell(f"{count} of {len(self._pairs)} lines, {len(self.running)} settings")
            failed = len(self.failures)
            self._decode(self.running, self._pairs[:count])
            if len(self.failures) > failed or not self.bootstraps:
                self._prepare()
            if count < len(self._pairs):
                self._stop(count)

    def _prepare(self) -> None:
        sources = [pair.source for pair in self.pairs]
        references = [pair.reference for pair in self.pairs if pair.reference is not None]
        if len(references) == len(sources):
            self.bootstraps = [Bootstrap(metric, sources, references) for metric in self._metrics]

    # -- decoding --------------------------------------------------------------------------------------------------------

    def _decode(self, settings: Sequence[Setting], pairs: Sequence[Pair]) -> None:
        """What is not in the store, all settings together on one tree for each line."""
        signatures = {setting: self.benchmark.signature(setting, self.text) for setting in settings}
        lacking = [s for s in settings if any((signatures[s], pair.line) not in self._store for pair in pairs)]
        missing = [
            pair
            for pair in pairs
            if pair.line not in self.failures and any((signatures[s], pair.line) not in self._store for s in lacking)
        ]
        if not missing:
            return
        inputs, decodings = [pair.source for pair in missing], [setting.decoding for setting in lacking]
        for number, place, result in decode_shared(self.benchmark.model, inputs, decodings):
            line, setting = missing[number].line, lacking[place]
            if result.status == "error":
                self.failures[line] = result.message or ""
            elif (signatures[setting], line) not in self._store:
                about = signatures[setting], self._store.model, setting, line
                self._store.add(TunedLine(*about, result.text if result.hypotheses else None, result.calls, result.exact))

    def lines(self, setting: Setting, count: int | None = None) -> list[TunedLine]:
        """What this setting made of the first lines, by default of all, in the order of the race."""
        signature = self.benchmark.signature(setting, self.text)
        return [self._store.records[signature, pair.line] for pair in self.pairs[:count]]

    def outputs(self, setting: Setting, count: int | None = None) -> list[str]:
        return [line.output or "" for line in self.lines(setting, count)]

    def calls(self, setting: Setting, count: int | None = None) -> float:
        """Of a line, on average."""
        return mean(line.calls for line in self.lines(setting, count))

    def reached(self, setting: Setting) -> int:
        """On how many lines it was run."""
        signature = self.benchmark.signature(setting, self.text)
        return next((i for i, pair in enumerate(self.pairs) if (signature, pair.line) not in self._store), len(self.pairs))

    # -- stopping --------------------------------------------------------------------------------------------------------

    def _stop(self, count: int) -> None:
        """Stop what is clearly outdone on the lines so far; the cheapest first, for they outdo others."""
        count = sum(pair.line not in self.failures for pair in self._pairs[:count])
        if not count:
            return
        calls = {setting: self.calls(setting, count) for setting in self.running}
        outputs = {setting: self.outputs(setting, count) for setting in self.running}
        better: Any = None  # [i, j]: whether setting i is clearly better than j
        if self.bootstraps and count >= 2 * FIRST:
            better = self.bootstraps[0].clear_gains([outputs[setting] for setting in self.running])
        place = {setting: i for i, setting in enumerate(self.running)}
        kept: list[Setting] = []
        for setting in sorted(self.running, key=lambda s: (calls[s], s is not self.default)):
            why = None
            if setting is not self.default:
                if calls[setting] > DEAR * calls[self.default]:
                    why = f"more than {DEAR} times the calls of the defaults"
                elif better is not None and any(better[place[other], place[setting]] for other in kept):
                    why = "worse than a cheaper one, 99 in 100"
                elif count >= SAME and any(outputs[other] == outputs[setting] for other in kept):
                    why = "same outputs as a cheaper one"
            if why is None:
                kept.append(setting)
            else:
                self.stopped[setting] = f"{why}, after {count} lines"
        self.running = [setting for setting in self.running if setting in kept]

    # -- timing ----------------------------------------------------------------------------------------------------------

    def time(self, settings: Sequence[Setting], turns: int) -> dict[Setting, TimedText]:
        """What each takes on the whole text by itself, in turns, the best of which counts."""
        keys = {s: (self.benchmark.signature(s, self.text), "timed", len(self.pairs)) for s in settings}
        missing = [setting for setting in settings if keys[setting] not in self._store]
        best: dict[Setting, Stats] = {}
        sources = [pair.source for pair in self.pairs]
        for turn in range(turns if missing else 0):
            for setting in missing:
                self._tell(f"turn {turn + 1} of {turns}: {label(setting)}")
                stats, begun = Stats(), perf_counter()
                decode(self.benchmark.model, sources, setting.decoding, stats=stats)
                stats.seconds = perf_counter() - begun
                if setting not in best or stats.seconds < best[setting].seconds:
                    best[setting] = stats
        for setting, stats in best.items():
            self._store.add(
                TimedText(
                    signature=keys[setting][0],
                    model=self._store.model,
                    setting=setting,
                    lines=len(sources),
                    seconds=round(stats.seconds, 4),
                    rows=stats.rows,
                    steps=stats.steps,
                    device=device_name(self.benchmark.model),
                    date=date.today().isoformat(),
                )
            )
        return {setting: self._store.records[key] for setting, key in keys.items()}


def parts(lines: int) -> Iterator[int]:
    """10, 20, 40, ... lines, then all."""
    count = FIRST
    while 2 * count <= lines:
        yield count
        count *= 2
    yield lines


def label(setting: Setting) -> str:
    """A setting in a few words."""
    decoding = setting.decoding
    words = [f"k {decoding.beam}"]
    if decoding.length_penalty is not None:
        words.append(f"α {decoding.length_penalty:g}")
    elif decoding.score_options:
        words.append(f"reward {decoding.score_options['beta']:g}")
    return ", ".join(words + ([decoding.stop] if isinstance(decoding.stop, str) else []))
