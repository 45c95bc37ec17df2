"""What `bestfirst tune` shows: a table, a plot, and three command lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .plots import canvas, finish, note
from .race import label
from .tables import Columns, Table
from .tune import Advice, Point, Tuning, flags

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND = (
    "*: on the front, no other is both as fast and as good. calls, ms: a line; rows: what the model was run on, speculation "
    "included. same: outputs that are the defaults'. In brackets: where the number lies for 95 of 100 draws of the lines (paired "
    "bootstrap); gain: over the defaults, noise where its interval holds 0."
)


def tune_table(title: str, tuning: Tuning, shown: Sequence[Point], signatures: Sequence[str]) -> Table:
    """These points, the fastest first."""

    def gain(point: Point) -> str | None:
        found = point.gain.get(tuning.metric or "")
        return None if found is None or point is tuning.default else found.signed + (" noise" if found.noise else "")

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
    return Table.of(title, ordered, columns, {"", "setting", "dtype"}, notes=[LEGEND, *signatures])


def stopped_table(tuning: Tuning) -> Table:
    """What was not run to the end, and why."""
    stopped = [point for point in tuning.points if point.stopped is not None]
    metric = tuning.metric
    quality: Columns = {} if metric is None else {"quality": lambda point: f"{point.value(metric):.1f}"}
    columns: Columns = {"setting": lambda point: label(point.setting), "lines": "lines", "calls": "calls:.1f", **quality}
    ordered = sorted(stopped, key=lambda point: (point.lines, -point.calls))
    return Table.of("Stopped on the way", ordered, {**columns, "why": "stopped"}, {"setting", "why"})


def tune_plot(title: str, tuning: Tuning) -> Figure:
    """Quality against time, the front as a line."""
    figure, (axis,) = canvas(1)
    figure.set_size_inches(8, 5)
    metric = tuning.metric
    for point in tuning.timed:
        value = point.value(metric)
        spread: Any = None
        if metric is not None and point is not tuning.default:
            gain = point.gain[metric]  # of the difference: what the lines have in common is no reason for doubt
            spread = [[gain.value - gain.low], [gain.high - gain.value]]
        colour = "#cf222e" if point is tuning.default else "#0969da" if point.front else "#8c959f"
        axis.errorbar([point.cost], [value], spread, fmt="o", color=colour, capsize=2, elinewidth=0.8)
        if point.front or point is tuning.default:
            note(axis, label(point.setting), (point.cost, value), (5, 5))
    front = sorted((point.cost, point.value(metric)) for point in tuning.timed if point.front)
    axis.plot(*zip(*front, strict=True), color="#0969da", linewidth=0.8)
    what = "the defaults' outputs, %" if metric is None else tuning.races[0].bootstraps[0].metric.title
    axis.set(xscale="log", xlabel="ms a line", ylabel=what, title=f"{title}\nred: defaults; bars: 95 % of the difference to them")
    return finish(figure)


def command(advice: Advice, source: str, model: str | None) -> str:
    """A command line that decodes the same text this way."""
    assert advice.point is not None
    named = "" if model is None else f" --model {model}"
    return f"bestfirst translate {source}{named} {flags(advice.point)}"
