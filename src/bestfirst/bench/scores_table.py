"""The lines of `bench scores` as a table to read, the paper's numbers at its right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .scores import Line

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = """\
calls: a sentence. increase: (old - new) / new of calls, over beam search with the same score. differ: best outputs that are not
that beam search's; lower, higher: best scores that are not its, by 1e-4 or more. differ from 0: best outputs that are not beam
search's at epsilon 0, which is the paper's search error for mutual information. BLEU in brackets: gain over the first line of
this k. none: sentences of which nothing finished within 2|x|. The paper's numbers are cited; its BLEU is of another model."""


def scores_table(title: str, lines: Sequence[Line]) -> Table:
    """One table, a section for each beam size."""
    from rich import box
    from rich.table import Table

    against_zero = any(line.unlike_baseline is not None for line in lines)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    left = ("score", "method")
    ours = ("calls", "increase", "differ", "lower", "higher", *(["differ from 0"] if against_zero else []), "BLEU", "none")
    for name in ("k", *left, *ours, "paper: calls", "increase", "error", "BLEU"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        table.add_row(
            str(line.beam),
            line.score,
            line.method,
            f"{line.calls:.1f}",
            _percent(line.increase, "+.0f"),
            *(_percent(number, ".1f") for number in (line.different, line.lower, line.higher)),
            *([_percent(line.unlike_baseline, ".1f")] if against_zero else []),
            f"{line.bleu:.1f}" + (f" ({line.gain:+.1f})" if line.increase is not None or line.gain else ""),
            str(line.unfinished),
            *_published(line),
            end_section=following is not None and following.beam != line.beam,
        )
    return table


def _percent(number: float | None, digits: str) -> str:
    return "" if number is None else f"{number:{digits}} %"


def _published(line: Line) -> list[str]:
    paper = line.published
    if paper is None:
        return [""] * 4
    gain = "" if paper.gain is None else f" ({paper.gain:+.1f})"
    error = "-" if paper.error is None else _percent(paper.error, ".1f")
    return [str(paper.calls), _percent(paper.increase, "+.0f"), error, f"{paper.bleu:.1f}{gain}"]
