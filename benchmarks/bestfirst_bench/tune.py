"""Tuning: which setting to use on a model and text. Builds the settings to compare, turns the results of a `Race` into `Point`s
with bootstrap intervals, chooses which to time, gives `Advice`, and draws tables and a plot."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestfirst.models import Model
from bestfirst.settings import Decoding

from .bootstrap import Interval
from .plots import canvas, finish, note
from .race import Race, TimedText, label
from .row import ParallelText
from .setting import TOOLKIT_STOPS, Setting
from .summary import mean
from .tables import Columns, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY = {None: "hf-false", False: "hf-false", True: "hf-true", "never": "hf-never"}
BEAM = 5  # if the model's files name none
FINALISTS = 12  # number of settings that are timed


# -- settings to compare -------------------------------------------------------------------------------------------------


def length_penalty(alpha: float, stop: str, beam: int, **decoding: Any) -> Setting:
    """Scores divided by length ** alpha; "exact" stops when the answer is proven, `hf-*` as Hugging Face does."""
    if alpha == 0 or beam == 1:  # all stops have the same best answer then
        return Setting("best-first", Decoding(beam=beam, **decoding))
    level_by_level = stop not in ("exact", *TOOLKIT_STOPS)
    strategy = "beam" if level_by_level else "best-first"
    stops: dict[str, Any] = {} if stop == "exact" else {"stop": stop}
    search = stop if level_by_level else "best-first"
    return Setting(search, Decoding(strategy=strategy, beam=beam, length_penalty=alpha, **stops, **decoding))


def length_reward(beta: float, ratio: float, beam: int, **decoding: Any) -> Setting:
    """`beta` added for every token, up to `ratio` times the length of the input."""
    options = {"beta": beta, "ratio": ratio}
    return Setting("best-first", Decoding(beam=beam, score="bounded-length-reward", score_options=options, **decoding))


def grid(
    beams: Sequence[int],
    penalties: Sequence[float],
    rewards: Sequence[float],
    stops: Sequence[str],
    ratio: float,
    **decoding: Any,
) -> list[Setting]:
    """Every combination once. A beam of 1 has a single setting, since its answer does not depend on the score."""
    settings = []
    for beam in beams:
        settings += [length_penalty(alpha, stop, beam, **decoding) for alpha in penalties for stop in stops]
        settings += [length_reward(beta, ratio, beam, **decoding) for beta in rewards if beam > 1]
    return list(dict.fromkeys(settings))


def defaults_of(model: Model, **decoding: Any) -> Setting:
    """The settings of `generate` by the model's own files; Hugging Face's defaults where they name none, but a beam of 5."""
    setting = getattr(model, "setting", lambda name: None)
    beam, alpha = setting("num_beams") or 1, setting("length_penalty")
    stop = EARLY.get(setting("early_stopping"), "hf-false")
    return length_penalty(1.0 if alpha is None else alpha, stop, beam if beam > 1 else BEAM, **decoding)


def length_ratio(model: Model, text: ParallelText) -> float:
    """The average ratio of reference tokens to input tokens; 1 without references."""
    pairs = [(model.source_length(pair.source), len(model.target(pair.reference))) for pair in text.pairs if pair.reference]
    return round(sum(b for _, b in pairs) / max(1, sum(a for a, _ in pairs)), 2) if pairs else 1.0


# -- results -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A setting in one dtype, with its costs for a line, and by metric its `quality` and its `gain` over the default.

    `same`: percent of lines with the default's output. `stopped`: why it was not run to the end. `front`: on the Pareto front.
    """

    setting: Setting
    dtype: str
    lines: int
    calls: float
    same: float
    outputs: Sequence[str] = field(repr=False)
    quality: dict[str, Interval] = field(default_factory=dict)
    gain: dict[str, Interval] = field(default_factory=dict)
    timed: TimedText | None = None
    stopped: str | None = None
    front: bool = False

    @property
    def milliseconds(self) -> float | None:
        return None if self.timed is None else 1000 * self.timed.seconds / self.timed.lines

    @property
    def rows(self) -> float | None:
        return None if self.timed is None else self.timed.rows / self.timed.lines

    @property
    def cost(self) -> float:
        """Milliseconds for a line; infinite if it was not timed, so that such points come last."""
        return float("inf") if self.milliseconds is None else self.milliseconds

    def value(self, metric: str | None) -> float:
        """The deciding quality: the metric, or without references the share of outputs that are the default's."""
        return self.same if metric is None else self.quality[metric].value

    def json(self) -> dict[str, Any]:
        quality = {name: vars(interval) for name, interval in self.quality.items()}
        gain = {name: vars(interval) for name, interval in self.gain.items()}
        plain = ("dtype", "lines", "calls", "rows", "milliseconds", "same")
        named = {"setting": self.setting.json(), "flags": flags(self), **{name: getattr(self, name) for name in plain}}
        return {**named, "quality": quality, "gain": gain, "stopped": self.stopped, "front": self.front}


@dataclass
class Tuning:
    """All points of one text, the default's first. `metric` is the deciding one, None without references."""

    points: list[Point]
    metric: str | None
    races: list[Race]

    @property
    def default(self) -> Point:
        return self.points[0]

    @property
    def timed(self) -> list[Point]:
        return [point for point in self.points if point.timed is not None]


def point_of(race: Race, dtype: str, setting: Setting, default: Sequence[str] | None = None) -> Point:
    """A setting's results on the lines that it was run on, compared with the outputs of the race's default or with `default`.
    There are intervals only if it was run on all lines."""
    count = race.reached(setting)
    outputs = race.outputs(setting, count)
    baseline = race.outputs(race.default) if default is None else default
    same = mean(100.0 * (one == other) for one, other in zip(outputs, baseline, strict=False))
    point = Point(setting, dtype, count, race.calls(setting, count), same, outputs, stopped=race.stopped.get(setting))
    if count < len(race.pairs):
        return replace(point, quality={b.metric.name: Interval(b.value(outputs), nan, nan) for b in race.bootstraps})
    quality = {b.metric.name: b.interval(outputs) for b in race.bootstraps}
    return replace(point, quality=quality, gain={b.metric.name: b.interval(outputs, baseline) for b in race.bootstraps})


def finalists(points: Sequence[Point], metric: str | None, most: int = FINALISTS) -> list[Point]:
    """The points to time: the default, the Pareto front by calls, then the best of the others."""
    whole = [point for point in points if point.stopped is None]
    front = pareto(whole, metric, lambda point: point.calls)
    others = sorted(whole, key=lambda point: -point.value(metric))
    return list({id(point): point for point in [whole[0], *front, *others]}.values())[:most]


def pareto(points: Sequence[Point], metric: str | None, cost: Any) -> list[Point]:
    """The Pareto front: the points for which no other is both as cheap and as good, cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (cost(point), -point.value(metric))):
        if not front or point.value(metric) > front[-1].value(metric):
            front.append(point)
    return front


# -- advice --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostLimit:
    """A limit on the cost of a line, in milliseconds or calls."""

    most: float
    unit: str  # "ms" or "calls"

    def cost(self, point: Point) -> float:
        return point.cost if self.unit == "ms" else point.calls

    def __str__(self) -> str:
        return f"{self.most:g} {self.unit}"


@dataclass(frozen=True)
class Advice:
    """One recommendation: the question, the setting that answers it, and why."""

    question: str
    point: Point | None
    why: str


def advise(tuning: Tuning, margin: float, budget: CostLimit) -> list[Advice]:
    """Of the timed settings: the cheapest that loses at most `margin`, the best, and the best within the budget."""
    metric, points, default = tuning.metric, tuning.timed, tuning.default
    kept = [point for point in points if (point.same == 100 if metric is None else point.gain[metric].low >= -margin)]
    cheapest = min(kept, key=lambda point: point.cost)
    if metric is None:
        loss = "the same output on every line"
    else:
        loss = f"at most {margin:g} lost, 95 in 100: {cheapest.gain[metric].signed}"
    advice = [Advice("cheapest at no loss", cheapest, f"{cheapest.cost / default.cost:.2f} of the defaults' time; {loss}")]
    if metric is not None:
        best = max(points, key=lambda point: (point.value(metric), -point.cost))
        advice.append(Advice("best quality", best, _how_sure(tuning, best, metric)))
    within = [point for point in points if budget.cost(point) <= budget.most]
    if not within:
        least = min(map(budget.cost, points))
        advice.append(Advice(f"best within {budget} a line", None, f"none; the cheapest takes {least:.1f}"))
    else:
        best = max(within, key=lambda point: (point.value(metric), -point.cost))
        text = f"{best.same:.0f} % of the defaults' outputs" if metric is None else f"{best.gain[metric].signed}"
        advice.append(Advice(f"best within {budget} a line", best, text))
    return advice


def _how_sure(tuning: Tuning, best: Point, metric: str) -> str:
    """The gain, the gain on lines that were not used for the choice, and how many settings cannot be told from the best."""
    bootstrap = next(b for b in tuning.races[0].bootstraps if b.metric.name == metric)
    gain = best.gain[metric]
    alike = [p for p in tuning.timed if p is not best and bootstrap.interval(best.outputs, p.outputs).noise]
    elsewhere = bootstrap.picked([point.outputs for point in tuning.timed], tuning.default.outputs)
    text = f"{gain.signed}; picked on some lines and judged on others {elsewhere.signed}"
    if elsewhere.noise:
        text += ": no gain over the defaults that is more than noise"
    return text + f"; {len(alike)} of the other {len(tuning.timed) - 1} cannot be told from it"


def flags(point: Point) -> str:
    """The options of `bestfirst translate` that mean this setting."""
    decoding, words = point.setting.decoding, ["--beam", str(point.setting.decoding.beam)]
    if decoding.length_penalty is not None:
        words += ["--length-penalty", f"{decoding.length_penalty:g}"]
    if decoding.score_options:
        words += ["--score", str(decoding.score)]
        words += [word for name, value in decoding.score_options.items() for word in (f"--{name}", f"{value:g}")]
    for name in ("strategy", "stop", "max_length"):
        value = getattr(decoding, name)
        if value != getattr(Decoding, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words + ([] if point.dtype == "fp32" else ["--dtype", point.dtype]))


# -- tables, a plot, and command lines -------------------------------------------------------------------------------------

LEGEND = (
    "*: on the front, no other is both as fast and as good. calls, ms: a line; rows: what the model was run on, speculation "
    "included. same: outputs that are the defaults'."
)
OF_QUALITY = (
    " In brackets: where the number lies for 95 of 100 draws of the lines (paired bootstrap); gain: over the defaults, noise "
    "where its interval holds 0."
)


def tune_table(title: str, tuning: Tuning, shown: Sequence[Point], signatures: Sequence[str]) -> Table:
    """A table of these points, the fastest first."""

    def gain(point: Point) -> str | None:
        interval = point.gain.get(tuning.metric or "")
        return None if interval is None or point is tuning.default else interval.signed + (" noise" if interval.noise else "")

    def quality(name: str) -> Callable[[Point], str | None]:
        return lambda point: str(point.quality[name]) if name in point.quality else None

    names = list(tuning.default.quality)
    titles = {b.metric.name: b.metric.title for b in tuning.races[0].bootstraps}
    several = len({point.dtype for point in tuning.points}) > 1
    columns: Columns = {
        "": lambda point: "*" if point.front else "",
        "setting": lambda point: label(point.setting) + (" (defaults)" if point is tuning.default else ""),
        **({"dtype": "dtype"} if several else {}),
        "calls": "calls:.1f",
        "rows": "rows:.1f",
        "ms": "milliseconds:.2f",
        "same": "same:.0f %",
        **{titles[name]: quality(name) for name in names},
        f"gain, {titles[names[0]]}" if names else "gain": gain,
    }
    ordered = sorted(shown, key=lambda point: (point.cost, point.calls))
    legend = LEGEND + OF_QUALITY if names else LEGEND
    return Table.of(title, ordered, columns, {"", "setting", "dtype"}, notes=[legend, *signatures])


def stopped_table(tuning: Tuning) -> Table:
    """A table of the settings that were stopped, and why."""
    stopped = [point for point in tuning.points if point.stopped is not None]
    metric = tuning.metric
    quality: Columns = {} if metric is None else {"quality": lambda point: f"{point.value(metric):.1f}"}
    columns: Columns = {"setting": lambda point: label(point.setting), "lines": "lines", "calls": "calls:.1f", **quality}
    ordered = sorted(stopped, key=lambda point: (point.lines, -point.calls))
    return Table.of("Stopped on the way", ordered, {**columns, "why": "stopped"}, {"setting", "why"})


def tune_plot(title: str, tuning: Tuning) -> Figure:
    """A plot of quality against time, the front as a line."""
    figure, (axis,) = canvas(1)
    figure.set_size_inches(8, 5)
    metric = tuning.metric
    for point in tuning.timed:
        value = point.value(metric)
        spread: Any = None
        if metric is not None and point is not tuning.default:
            gain = point.gain[metric]
            spread = [[gain.value - gain.low], [gain.high - gain.value]]  # of the paired difference to the default
        colour = "#cf222e" if point is tuning.default else "#0969da" if point.front else "#8c959f"
        axis.errorbar([point.cost], [value], spread, fmt="o", color=colour, capsize=2, elinewidth=0.8)
        if point.front or point is tuning.default:
            note(axis, label(point.setting), (point.cost, value), (5, 5))
    front = sorted((point.cost, point.value(metric)) for point in tuning.timed if point.front)
    axis.plot(*zip(*front, strict=True), color="#0969da", linewidth=0.8)
    what = "the defaults' outputs, %" if metric is None else tuning.races[0].bootstraps[0].metric.title
    axis.set(xscale="log", xlabel="ms a line", ylabel=what, title=f"{title}\nred: defaults; bars: 95 % of the difference to them")
    return finish(figure)


def command(advice: Advice, source: Path, model: str | None) -> str:
    """The command line that decodes `source` with the recommended setting."""
    assert advice.point is not None
    words = ["bestfirst", "translate", str(source), *([] if model is None else ["--model", model])]
    return f"{shlex.join(words)} {flags(advice.point)}"
