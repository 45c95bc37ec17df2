"""Plots of saved rows: how calls grow with the beam, what calls cost in time and bring in BLEU, and where they are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .canvas import CITED, Style, canvas, finish
from .growth import Measurement
from .metrics import Metrics
from .paper import RESULTS
from .row import Row
from .setting import Setting
from .sharpness import binned, pairs_of, tempered
from .summary import by_setting, common, mean, summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = (0, 10, 20, 30, 40, 60)  # lengths of inputs at which a bar begins


class NothingToPlot(ValueError):
    """The rows have nothing of what this plot shows."""


def groups(rows: Iterable[Row]) -> dict[str, dict[Setting, dict[int, Row]]]:
    """Rows by model and text, then by setting and line."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row.model.partition('@')[0]}, {row.text.partition('@')[0]}", []).append(row)
    return {name: by_setting(of_it) for name, of_it in found.items()}


def calls_by_beam(rows: Sequence[Row], metrics: Metrics) -> Figure:
    """Calls a sentence, for each search and beam; on the paper's own test set, its numbers beside."""
    named = {name: found for name, found in groups(rows).items() if _series(found)}
    if not named:
        raise NothingToPlot("no rows of beam search and best-first search, each with several beams")
    most = max(len(_series(found)["best-first"]) for found in named.values())
    named = {name: found for name, found in named.items() if len(_series(found)["best-first"]) > 2 or most == 2}
    figure, axes = canvas(len(named))
    for axis, (name, found) in zip(axes, named.items(), strict=True):
        for search, points in _series(found).items():
            style = Style.of(search)
            axis.plot(list(points), list(points.values()), style.marker + style.line, color=style.colour, label=style.title)
        if name.startswith("ted-de-en, test"):
            for search in ("beam", "es", "best-first"):
                cited = {line.k: line.calls for line in RESULTS["iwslt14"] if line.method == search}
                style = Style.of(search)
                axis.plot(list(cited), list(cited.values()), style.marker, color=style.colour, **CITED)
            axis.plot([], [], "o", color="black", mfc="none", ms=9, label="hollow: the paper's")
        axis.set(xscale="log", yscale="log", xlabel="beam size k", ylabel="calls a sentence", title=name)
        axis.set_xticks(ks := sorted({k for points in _series(found).values() for k in points}), labels=[str(k) for k in ks])
        axis.minorticks_off()
        axis.legend()
    return finish(figure)


def _series(found: Mapping[Setting, Mapping[int, Row]]) -> dict[str, dict[int, float]]:
    """Calls by beam, for each search, with the rules and the score that have the most beams; on the lines common to a beam."""
    families: dict[tuple[str, str, str], dict[str, dict[int, Setting]]] = {}
    for setting in sorted(found, key=lambda s: s.beam):
        if not setting.alone and setting.score == "logprob" and not setting.options and setting.gamma is None:
            family = families.setdefault((setting.scored, setting.finished, setting.limit), {})
            family.setdefault(setting.search, {})[setting.beam] = setting
    family = max(families.values(), key=lambda f: sum(len(beams) for beams in f.values()), default={})
    shown = {search: beams for search, beams in family.items() if len(beams) > 1 and search in ("beam", "es", "best-first")}
    series: dict[str, dict[int, float]] = {}
    for search, beams in shown.items():
        for k, setting in beams.items():
            lines = common(found[others[k]] for others in shown.values() if k in others)
            series.setdefault(search, {})[k] = mean(found[setting][line].calls for line in lines)
    return series if {"beam", "best-first"} <= set(series) else {}


def time_by_calls(rows: Sequence[Row], metrics: Metrics) -> Figure:
    """The paper's figure: each point is a sentence, decoded alone; left a call a forward pass, right rows together."""
    alone = [row for row in rows if row.setting.alone]
    if not alone:
        raise NothingToPlot("no rows of sentences decoded alone (bench paper --table figure, or bench run --alone)")
    budgets = sorted({row.setting.row_budget for row in alone}, key=lambda budget: budget or 10**9)
    figure, axes = canvas(len(budgets))
    models = sorted({row.model for row in alone})
    for axis, budget in zip(axes, budgets, strict=True):
        for place, model in enumerate(models):
            for search in sorted({row.setting.search for row in alone}):
                chosen = [r for r in alone if (r.model, r.setting.search, r.setting.row_budget) == (model, search, budget)]
                style = Style.of(search)
                points = [row.calls for row in chosen], [1000 * row.seconds for row in chosen]
                label = f"{model.partition('@')[0]}, {style.title}"
                axis.plot(
                    *points,
                    style.marker,
                    ms=4,
                    alpha=0.6,
                    mew=0,
                    color=f"C{place}" if len(models) > 1 else style.colour,
                    label=label,
                )
        title = "a call a forward pass" if budget == 1 else "as many rows together as the engine likes"
        axis.set(xscale="log", yscale="log", xlabel="calls", ylabel="milliseconds", title=title)
        axis.legend()
    return finish(figure)


def bleu_by_calls(rows: Sequence[Row], metrics: Metrics) -> Figure:
    """What calls bring: BLEU of every search and beam over the calls it took."""
    named = {}
    for name, found in groups(rows).items():
        chosen = {
            s: r for s, r in found.items() if s.scored == "logprob" and not s.alone and all(x.reference for x in r.values())
        }
        if chosen and "bleu" in metrics.names:
            named[name] = chosen
    if not named:
        raise NothingToPlot("no rows with references, or no sacrebleu (pip install 'bestfirst[bench]')")
    figure, axes = canvas(len(named))
    for axis, (name, found) in zip(axes, named.items(), strict=True):
        lines = common(found.values())
        points: dict[str, list[tuple[int, float, float]]] = {}
        for setting, of_it in sorted(found.items(), key=lambda pair: pair[0].beam):
            summary = summarize(of_it, lines, metrics)
            points.setdefault(setting.search, []).append((setting.beam, summary.calls, summary.quality["bleu"]))
        for search, at in points.items():
            style = Style.of(search)
            label = style.title
            axis.plot(
                [calls for _, calls, _ in at],
                [bleu for *_, bleu in at],
                style.marker + style.line,
                color=style.colour,
                label=label,
            )
            if search == "best-first":
                for k, calls, bleu in at:
                    axis.annotate(
                        f"k = {k}",
                        (calls, bleu),
                        textcoords="offset points",
                        xytext=(0, 7),
                        ha="center",
                        fontsize=8,
                        color=style.colour,
                    )
        axis.set(xscale="log", xlabel="calls a sentence", ylabel="BLEU", title=f"{name}, {len(lines)} lines")
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, (low + high) / 2 - 1), max(high, (low + high) / 2 + 1))  # a tenth of a point is no difference
        axis.legend()
    return finish(figure)


def saving_by_length(rows: Sequence[Row], metrics: Metrics) -> Figure:
    """Where the saving comes from: calls of beam search that best-first does without, by the length of the input."""
    panels = []
    for name, found in groups(rows).items():
        for setting, baseline, lines in pairs_of(found):
            panels.append((f"{name}, k = {setting.beam}", found[setting], found[baseline], lines))
    if not panels:
        raise NothingToPlot("no rows of beam search and best-first search with the same settings")
    figure, axes = canvas(len(panels))
    for axis, (title, ours, beam, lines) in zip(axes, panels, strict=True):
        bins = [
            [line for line in lines if low < ours[line].source_length <= high]
            for low, high in zip(BINS, [*BINS[1:], 10**9], strict=True)
        ]
        ticks = [f"{low + 1}-{high}" for low, high in pairwise(BINS)] + [f"over {BINS[-1]}"]
        kept = [i for i, chosen in enumerate(bins) if chosen]
        needed = [mean(ours[line].calls for line in bins[i]) for i in kept]
        old = [mean(beam[line].calls for line in bins[i]) for i in kept]
        axis.bar(range(len(kept)), old, color=Style.of("beam").colour, label="beam search")
        axis.bar(range(len(kept)), needed, color=Style.of("best-first").colour, label="best-first")
        for place, i in enumerate(kept):
            share = f"{100 * (old[place] - needed[place]) / needed[place]:+.0f} %\n{len(bins[i])} lines"
            axis.annotate(share, (place, old[place]), textcoords="offset points", xytext=(0, 3), ha="center", fontsize=8)
        axis.set_xticks(range(len(kept)), labels=[ticks[i] for i in kept])
        axis.set(xlabel="tokens of the input", ylabel="calls a sentence", title=title, ylim=(0, 1.2 * max(old)))
        axis.legend(loc="upper left")
    return finish(figure)


def saving_by_sharpness(rows: Sequence[Row], metrics: Metrics) -> Figure:
    """The sharper the model, the more is saved: over sentences, and over temperatures that make it sharper or flatter."""
    found = groups(rows)
    lines = [(name, points) for name, of_it in found.items() for points in binned(of_it).items()]
    temperatures = [(name, points) for name, of_it in found.items() for points in tempered(of_it).items() if len(points[1]) > 1]
    if not lines:
        raise NothingToPlot("no rows of beam search and best-first search with the same settings")
    figure, axes = canvas(2 if temperatures else 1)
    for axis, series, title in zip(
        axes, (lines, temperatures), ("sentences, in fifths", "temperature of the logits"), strict=False
    ):
        for place, (name, (k, points)) in enumerate(series):
            xs, ys = [p.surprise for p in points], [p.increase for p in points]
            axis.plot(xs, ys, "o-", color=f"C{place % 10}", label=f"{name}, k = {k}")
            for point in points if series is temperatures else ():
                axis.annotate(
                    f"T = {point.label}", (point.surprise, point.increase), textcoords="offset points", xytext=(5, 5), fontsize=8
                )
        axis.set(
            yscale="log",
            xlabel="minus log-probability of a token of the output",
            ylabel="increase over beam search, %",
            title=title,
        )
        axis.legend(fontsize=8)
    return finish(figure)


def growth(measured: Sequence[Measurement]) -> Figure:
    """Calls, steps, time and memory a sentence as the beam grows, and as the text grows."""
    figure, axes = canvas(8, columns=4)
    for column, (series, xlabel) in enumerate((("beam", "beam size k"), ("lines", "sentences"))):
        chosen = [m for m in measured if m.series == series]
        quantities: list[tuple[str, Callable[[Measurement], float]]] = [
            ("calls a sentence", lambda m: m.calls / m.lines),
            ("forward passes a sentence", lambda m: m.steps / m.lines),
            ("milliseconds a sentence", lambda m: 1000 * m.seconds / m.lines),
            ("cache tokens held at a time", lambda m: float(m.cache_tokens)),
        ]
        for row, (ylabel, quantity) in enumerate(quantities):
            axis = axes[4 * column + row]
            for search in dict.fromkeys(m.search for m in chosen):
                points = sorted((m.beam if series == "beam" else m.lines, quantity(m)) for m in chosen if m.search == search)
                style = Style.of(search)
                axis.plot(*zip(*points, strict=True), style.marker + style.line, color=style.colour, label=style.title)
            axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log")
            if series == "beam":
                axis.set(yscale="log")
            else:
                axis.set_ylim(bottom=0)
            if chosen:
                ticks = sorted({m.beam if series == "beam" else m.lines for m in chosen})
                axis.set_xticks(ticks, labels=[str(tick) for tick in ticks], fontsize=7)
                axis.minorticks_off()
                axis.legend(fontsize=8)
    return finish(figure)


PLOTS: dict[str, Callable[[Sequence[Row], Metrics], Figure]] = {
    "calls": calls_by_beam,
    "time": time_by_calls,
    "bleu": bleu_by_calls,
    "length": saving_by_length,
    "sharpness": saving_by_sharpness,
}
