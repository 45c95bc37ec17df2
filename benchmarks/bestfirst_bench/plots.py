"""Plots of saved rows and measurements: calls by beam size, time and BLEU by calls, and where calls are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .growth import Measurement
from .paper import TABLES
from .row import Row
from .setting import Setting
from .summary import (
    QualityMetrics,
    RowsBySetting,
    binned,
    by_model_and_text,
    by_setting,
    common,
    increase,
    mean,
    pairs_of,
    summarize,
    tempered,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = (0, 10, 20, 30, 40, 60)  # lower limits of the input lengths of a bar
CITED: dict[str, Any] = {"mfc": "none", "ms": 9, "label": "_", "zorder": 5, "linestyle": ""}  # the paper's: hollow and larger


class NothingToPlot(ValueError):
    """None of the rows are of the kind that this plot shows."""


# -- one style for all ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """The look of a search in all plots."""

    title: str
    colour: str
    marker: str = "o"
    line: str = "-"

    @staticmethod
    def of(search: str) -> Style:
        """The style of this search; grey for one without an own style."""
        return STYLES.get(search, Style(search, "#7f7f7f", "x", ""))


STYLES = {
    "best-first": Style("best-first", "#0969da", "o"),
    "beam": Style("beam search", "#8c959f", "s"),
    "es": Style("beam search, early stopping", "#bf8700", "^"),
    "early": Style("beam search, early (Huang)", "#8250df", "v", ""),
    "shrinking": Style("beam search, shrinking", "#cf222e", "D", ""),
    "gamma=2": Style("best-first, gamma = 2", "#1a7f37", "P", ""),
    "gamma=5": Style("best-first, gamma = 5", "#57ab5a", "X", ""),
}


def canvas(panels: int, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels, filled row by row. It needs no display."""
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=((5.2 if columns < 4 else 4.2) * columns, 3.9 * rows), dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes[:panels]


def curve(axis: Axes, search: str, points: Iterable[tuple[float, float]], **style: Any) -> None:
    """Plot (x, y) points in the style of a search."""
    own = Style.of(search)
    look = {"marker": own.marker, "linestyle": own.line, "color": own.colour, "label": own.title, **style}
    axis.plot(*zip(*points, strict=True), **look)


def note(axis: Axes, text: str, at: tuple[float, float], beside: tuple[int, int] = (0, 5), **style: Any) -> None:
    """Write a few words beside a point."""
    axis.annotate(text, at, textcoords="offset points", xytext=beside, fontsize=8, **style)


def name_ticks(axis: Axes, ticks: Iterable[int], **style: Any) -> None:
    """Label a logarithmic x axis with exactly these numbers."""
    chosen = sorted(set(ticks))
    axis.set_xticks(chosen, labels=[str(tick) for tick in chosen], **style)
    axis.minorticks_off()


def finish(figure: Figure, **legend: Any) -> Figure:
    """Apply the common style to all panels. Logarithmic axes have labels at powers of ten, and if there is room at 2 and 5."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, StrMethodFormatter

    for axis in figure.axes:
        for side, scale in ((axis.xaxis, axis.get_xscale()), (axis.yaxis, axis.get_yscale())):
            if scale == "log" and not isinstance(side.get_major_locator(), FixedLocator):
                low, high = side.get_view_interval()
                side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
                side.set_major_formatter(StrMethodFormatter("{x:,g}"))
                side.set_minor_formatter(NullFormatter())
        axis.grid(True, which="major", color="#d0d7de", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(**legend)
    figure.tight_layout()
    return figure


# -- of rows -------------------------------------------------------------------------------------------------------------


def groups(rows: Iterable[Row]) -> dict[str, RowsBySetting]:
    """Rows by model and text, then by setting and line."""
    rows_of = by_model_and_text(rows).items()
    return {f"{model.partition('@')[0]}, {text.partition('@')[0]}": by_setting(group) for (model, text), group in rows_of}


def calls_by_beam(rows: Sequence[Row], metrics: QualityMetrics) -> Figure:
    """Calls a sentence, for each search and beam size; on the paper's own test set, with its numbers."""
    named = {name: series for name, rows_of in groups(rows).items() if (series := _series(rows_of))}
    if not named:
        raise NothingToPlot("no rows of beam search and best-first search, each with several beams")
    most = max(len(series["best-first"]) for series in named.values())
    named = {name: series for name, series in named.items() if len(series["best-first"]) > 2 or most == 2}
    figure, axes = canvas(len(named))
    for axis, (name, series) in zip(axes, named.items(), strict=True):
        for search, points in series.items():
            curve(axis, search, points.items())
        if name.startswith("ted-de-en, test"):
            for search in ("beam", "es", "best-first"):
                cited = [(line.k, line.calls) for line in TABLES["results"]["iwslt14"] if line.method == search]
                curve(axis, search, cited, **CITED)
            axis.plot([], [], "o", color="black", mfc="none", ms=9, label="hollow: the paper's")
        axis.set(xscale="log", yscale="log", xlabel="beam size k", ylabel="calls a sentence", title=name)
        name_ticks(axis, [k for points in series.values() for k in points])
    return finish(figure)


def _series(rows_of: RowsBySetting) -> dict[str, dict[int, float]]:
    """For each search, calls by beam size, on the lines that all searches have with it; of the rules with the most beam sizes."""
    families: dict[str, dict[str, dict[int, Setting]]] = {}
    for setting in sorted(rows_of, key=lambda s: s.beam):
        if not setting.alone and setting.scored == "logprob" and setting.search in ("beam", "es", "best-first"):
            families.setdefault(setting.rules, {}).setdefault(setting.search, {})[setting.beam] = setting
    family = max(families.values(), key=lambda f: sum(len(beams) for beams in f.values()), default={})
    shown = {search: beams for search, beams in family.items() if len(beams) > 1}
    series: dict[str, dict[int, float]] = {}
    for search, beams in shown.items():
        for k, setting in beams.items():
            lines = common(rows_of[others[k]] for others in shown.values() if k in others)
            series.setdefault(search, {})[k] = mean(rows_of[setting][line].calls for line in lines)
    return series if {"beam", "best-first"} <= set(series) else {}


def time_by_calls(rows: Sequence[Row], metrics: QualityMetrics) -> Figure:
    """The paper's figure: each point is a sentence decoded alone; left with one row a forward pass, right with many."""
    points: dict[Any, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    for row in rows:
        if row.setting.alone:
            panel = points.setdefault(row.setting.decoding.row_budget, {})
            panel.setdefault((row.model, row.setting.search), []).append((row.calls, 1000 * row.seconds))
    if not points:
        raise NothingToPlot("no rows of sentences decoded alone; the paper's table figure has them")
    figure, axes = canvas(len(points))
    models = sorted({model for panel in points.values() for model, _ in panel})
    for axis, budget in zip(axes, sorted(points, key=lambda budget: budget or 10**9), strict=True):
        for (model, search), cloud in sorted(points[budget].items()):
            colour = {"color": f"C{models.index(model)}"} if len(models) > 1 else {}
            label = f"{model.partition('@')[0]}, {Style.of(search).title}"
            curve(axis, search, cloud, linestyle="", ms=4, alpha=0.6, mew=0, label=label, **colour)
        title = "a call a forward pass" if budget == 1 else "as many rows together as the engine likes"
        axis.set(xscale="log", yscale="log", xlabel="calls", ylabel="milliseconds", title=title)
    return finish(figure)


def bleu_by_calls(rows: Sequence[Row], metrics: QualityMetrics) -> Figure:
    """BLEU by calls, for every search and beam size."""
    named: dict[str, RowsBySetting] = {}
    for name, rows_of in groups(rows).items():
        plain = {s: r for s, r in rows_of.items() if s.scored == "logprob" and not s.alone}
        chosen = {s: r for s, r in plain.items() if all(row.reference for row in r.values())}
        if chosen and "bleu" in metrics.names:
            named[name] = chosen
    if not named:
        raise NothingToPlot("no rows with references, or no sacrebleu (pip install 'bestfirst[bench]')")
    figure, axes = canvas(len(named))
    for axis, (name, rows_of) in zip(axes, named.items(), strict=True):
        lines = common(rows_of.values())
        points: dict[str, list[tuple[float, float]]] = {}
        for setting in sorted(rows_of, key=lambda s: s.beam):
            summary = summarize(rows_of[setting], lines, metrics)
            points.setdefault(setting.search, []).append((summary.calls, summary.quality["bleu"]))
            if setting.search == "best-first":
                colour = Style.of("best-first").colour
                note(axis, f"k = {setting.beam}", points["best-first"][-1], (0, 7), ha="center", color=colour)
        for search, at in points.items():
            curve(axis, search, at)
        axis.set(xscale="log", xlabel="calls a sentence", ylabel="BLEU", title=f"{name}, {len(lines)} lines")
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, (low + high) / 2 - 1), max(high, (low + high) / 2 + 1))  # so that a tenth of a point looks small
    return finish(figure)


def saving_by_length(rows: Sequence[Row], metrics: QualityMetrics) -> Figure:
    """Calls of beam search and best-first search by the length of the input."""
    named = [(name, rows_of, pair) for name, rows_of in groups(rows).items() for pair in pairs_of(rows_of)]
    if not named:
        raise NothingToPlot("no rows of beam search and best-first search with the same settings")
    figure, axes = canvas(len(named))
    for axis, (name, rows_of, (setting, baseline, lines)) in zip(axes, named, strict=True):
        bins: dict[str, list[int]] = {}
        for low, high in pairwise([*BINS, 10**9]):
            title = f"{low + 1}-{high}" if high < 10**9 else f"over {low}"
            if chosen := [line for line in lines if low < rows_of[setting][line].source_length <= high]:
                bins[title] = chosen
        old, new = ([mean(rows_of[s][line].calls for line in chosen) for chosen in bins.values()] for s in (baseline, setting))
        for search, heights in (("beam", old), ("best-first", new)):
            axis.bar(range(len(bins)), heights, color=Style.of(search).colour, label=Style.of(search).title)
        for place, chosen in enumerate(bins.values()):
            saved = f"{increase(old[place], new[place]):+.0f} %\n{len(chosen)} lines"
            note(axis, saved, (place, old[place]), (0, 3), ha="center")
        axis.set_xticks(range(len(bins)), labels=list(bins))
        axis.set(xlabel="tokens of the input", ylabel="calls a sentence", ylim=(0, 1.2 * max(old)))
        axis.set_title(f"{name}, k = {setting.beam}")
    return finish(figure, loc="upper left")


def saving_by_sharpness(rows: Sequence[Row], metrics: QualityMetrics) -> Figure:
    """The saving by how sure the model is: over sentences, and over temperatures that make it sharper or flatter."""
    panels = {"sentences, in fifths": binned, "temperature of the logits": tempered}
    drawn: dict[str, Mapping[str, Any]] = {}
    for title, points_of in panels.items():
        series = {f"{name}, k = {k}": at for name, rows_of in groups(rows).items() for k, at in points_of(rows_of).items()}
        drawn |= {title: series} if series else {}
    if not drawn:
        raise NothingToPlot("no rows of beam search and best-first search with the same settings")
    figure, axes = canvas(len(drawn))
    for axis, (title, curves) in zip(axes, drawn.items(), strict=True):
        for place, (name, points) in enumerate(curves.items()):
            at = [(point.surprise, point.increase) for point in points]
            axis.plot(*zip(*at, strict=True), "o-", color=f"C{place % 10}", label=name)
            for point, where in zip(points if title.startswith("temp") else (), at, strict=False):
                note(axis, point.label, where, (5, 5))
        axis.set(xlabel="minus log-probability of a token of the output", ylabel="increase over beam search, %")
        axis.set(yscale="log", title=title)
    return finish(figure, fontsize=8)


PLOTS: dict[str, Callable[[Sequence[Row], QualityMetrics], Figure]] = {
    "calls": calls_by_beam,
    "time": time_by_calls,
    "bleu": bleu_by_calls,
    "length": saving_by_length,
    "sharpness": saving_by_sharpness,
}

# -- of measurements -----------------------------------------------------------------------------------------------------

QUANTITIES: dict[str, Callable[[Measurement], float]] = {
    "calls a sentence": lambda m: m.calls / m.lines,
    "forward passes a sentence": lambda m: m.steps / m.lines,
    "milliseconds a sentence": lambda m: 1000 * m.seconds / m.lines,
    "cache tokens held at a time": lambda m: float(m.cache_tokens),
}


def growth(measured: Sequence[Measurement]) -> Figure:
    """Calls, steps, time and memory a sentence as the beam grows, and as the text grows."""
    figure, axes = canvas(8, columns=4)
    panels = [(series, *quantity) for series in ("beam", "lines") for quantity in QUANTITIES.items()]
    for axis, (series, ylabel, quantity) in zip(axes, panels, strict=True):
        points: dict[str, list[tuple[float, float]]] = {}
        for m in measured:
            if m.series == series:
                points.setdefault(m.search, []).append((getattr(m, series), quantity(m)))
        for search, at in points.items():
            curve(axis, search, sorted(at))
        axis.set(xlabel="beam size k" if series == "beam" else "sentences", ylabel=ylabel, xscale="log")
        if series == "beam":
            axis.set(yscale="log")
        else:
            axis.set_ylim(bottom=0)
        name_ticks(axis, [int(x) for at in points.values() for x, _ in at], fontsize=7)
    return finish(figure, fontsize=8)
