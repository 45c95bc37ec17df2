"""Race: compares settings on ever larger parts of a text, and stops those that are clearly outdone by cheaper ones on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from time import perf_counter
from typing import Any

from bestfirst.decoding import decode
from bestfirst.engine import Stats

from .bootstrap import Bootstrap, LineMetric
from .row import Benchmark, Pair, ParallelText, Saved, Store, device_name
from .setting import Setting
from .shared import decode_shared
from .summary import mean

FIRST_LINES = 10  # in the first part; each further part is about twice as large
SAME_OUTPUT_LINES = 40  # a setting whose outputs equal a cheaper one's on all of this many lines is stopped
MAX_CALLS_RATIO = 5  # a setting with more than this many times the calls of the defaults is stopped


class TuneResult(Saved):
    """A saved result of a race: one line's output, or the time of a setting on the whole text."""

    kind = "tune result"
    writer = "bestfirst tune"


@dataclass(frozen=True)
class TunedLine(TuneResult):
    """One line decoded with one setting. `output` is None if nothing finished within n_max."""

    kind, keys = "tuned line", ("signature", "line")

    signature: str
    model: str
    setting: Setting
    line: int
    output: str | None
    calls: int
    exact: bool


@dataclass(frozen=True)
class TimedText(TuneResult):
    """A whole text decoded with one setting alone: the best of several turns."""

    kind, keys = "timed text", ("signature", "kind", "lines")

    signature: str
    model: str
    setting: Setting
    lines: int
    seconds: float
    rows: int
    steps: int
    device: str
    date: str


class Race:
    """Settings compared on one model and text. The first is the default, the baseline of all others; it is never stopped.

    Lines are shuffled, so that every part is a random sample. `stopped`: reasons by setting; `failures`: errors by line.
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
        self._store = store
        self._tell = tell
        self._pairs = list(text.pairs)
        random.Random(0).shuffle(self._pairs)
        self._metrics = metrics
        self.bootstraps: list[Bootstrap] = []

    @property
    def pairs(self) -> list[Pair]:
        """The lines without an error, in the order of the race."""
        return [pair for pair in self._pairs if pair.line not in self.failures]

    def run(self) -> None:
        """Decode all parts of the text, stopping settings after each."""
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
        """Decode what is not in the store yet, for each line all settings on one tree (`shared`)."""
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
                output = result.text if result.hypotheses else None
                identity = signatures[setting], self._store.model, setting, line
                self._store.add(TunedLine(*identity, output, result.calls, result.exact))

    def lines(self, setting: Setting, count: int | None = None) -> list[TunedLine]:
        """The results of this setting for the first `count` lines, by default all, in the order of the race."""
        signature = self.benchmark.signature(setting, self.text)
        return [self._store.records[signature, pair.line] for pair in self.pairs[:count]]

    def outputs(self, setting: Setting, count: int | None = None) -> list[str]:
        return [line.output or "" for line in self.lines(setting, count)]

    def calls(self, setting: Setting, count: int | None = None) -> float:
        """Model calls for a line, on average."""
        return mean(line.calls for line in self.lines(setting, count))

    def reached(self, setting: Setting) -> int:
        """The number of lines that this setting was run on."""
        signature = self.benchmark.signature(setting, self.text)
        return next((i for i, pair in enumerate(self.pairs) if (signature, pair.line) not in self._store), len(self.pairs))

    # -- stopping --------------------------------------------------------------------------------------------------------

    def _stop(self, count: int) -> None:
        """Stop settings that are clearly outdone on the lines so far, going from the cheapest to the dearest."""
        count = sum(pair.line not in self.failures for pair in self._pairs[:count])
        if not count:
            return
        calls = {setting: self.calls(setting, count) for setting in self.running}
        outputs = {setting: self.outputs(setting, count) for setting in self.running}
        better: Any = None  # [i, j]: whether setting i is clearly better than j
        if self.bootstraps and count >= 2 * FIRST_LINES:
            better = self.bootstraps[0].clear_gains([outputs[setting] for setting in self.running])
        place = {setting: i for i, setting in enumerate(self.running)}
        kept: list[Setting] = []
        for setting in sorted(self.running, key=lambda s: (calls[s], s is not self.default)):
            why = None
            if setting is not self.default:
                if calls[setting] > MAX_CALLS_RATIO * calls[self.default]:
                    why = f"more than {MAX_CALLS_RATIO} times the calls of the defaults"
                elif better is not None and any(better[place[other], place[setting]] for other in kept):
                    why = "worse than a cheaper one, 99 in 100"
                elif count >= SAME_OUTPUT_LINES and any(outputs[other] == outputs[setting] for other in kept):
                    why = "same outputs as a cheaper one"
            if why is None:
                kept.append(setting)
            else:
                self.stopped[setting] = f"{why}, after {count} lines"
        self.running = [setting for setting in self.running if setting in kept]

    # -- timing ----------------------------------------------------------------------------------------------------------

    def time(self, settings: Sequence[Setting], turns: int) -> dict[Setting, TimedText]:
        """The time of each setting alone on the whole text: they take turns, and the best turn of each counts."""
        keys = {s: (self.benchmark.signature(s, self.text), TimedText.kind, len(self.pairs)) for s in settings}
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
    """The sizes of the parts: 10, 20, 40, ... lines, then all."""
    count = FIRST_LINES
    while 2 * count <= lines:
        yield count
        count *= 2
    yield lines


def label(setting: Setting) -> str:
    """A short name of a setting for tables and plots."""
    decoding = setting.decoding
    words = [f"k {decoding.beam}"]
    if decoding.length_penalty is not None:
        words.append(f"α {decoding.length_penalty:g}")
    elif decoding.score_options:
        words.append(f"reward {decoding.score_options['beta']:g}")
    return ", ".join(words + ([decoding.stop] if isinstance(decoding.stop, str) else []))
