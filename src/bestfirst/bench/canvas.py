"""Canvas: figures of matplotlib in one style, drawn without a display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CITED: dict[str, Any] = {"mfc": "none", "ms": 9, "label": "_", "zorder": 5}  # what the paper reports: hollow, larger


@dataclass(frozen=True)
class Style:
    """How a search looks in every plot."""

    title: str
    colour: str
    marker: str = "o"
    line: str = "-"

    @staticmethod
    def of(search: str) -> Style:
        """The style of this search; one that has none of its own gets its name and grey."""
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
    """A figure with so many panels, filled row by row."""
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    width = 5.2 if columns < 4 else 4.2
    figure = Figure(figsize=(width * columns, 3.9 * rows), dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes[:panels]


def finish(figure: Figure) -> Figure:
    """What all panels have in common. On a logarithmic axis powers of ten are named, 2 and 5 too if there is room."""
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
    figure.tight_layout()
    return figure
