"""Table: headings and cells, and how they are written: as text, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "|": r"$|$", "~": r"\textasciitilde{}",
    "γ": r"$\gamma$", "<": r"$<$", ">": r"$>$", "^": r"\textasciicircum{}", "{": r"\{", "}": r"\}", "$": r"\$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings. Columns named in `left` are flush left, the others right; `notes` explain below.

    `sections` are the numbers of rows that begin a new part.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[str] = frozenset()
    sections: frozenset[int] = frozenset()
    notes: Sequence[str] = field(default_factory=tuple)


def markdown(table: Table) -> str:
    """As Markdown has it, the title in bold."""
    lines = [
        _pipes(table.headings),
        _pipes(["---" if name in table.left else "--:" for name in table.headings]),
        *map(_pipes, table.rows),
    ]
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n" + "\n".join(lines) + f"\n{notes}"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(table: Table) -> str:
    """A `table` with a `tabular` and booktabs' rules."""
    columns = "".join("l" if name in table.left else "r" for name in table.headings)
    lines = [r"\begin{table}", r"\centering", r"\small", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [_latex_row(table.headings), r"\midrule"]
    for number, row in enumerate(table.rows):
        lines += [r"\midrule"] if number in table.sections else []
        lines.append(_latex_row(row))
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_latex(' '.join([table.title + '.', *table.notes]))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def comma_separated(table: Table) -> str:
    """Headings and cells only, for a spreadsheet."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.headings, *table.rows])
    return out.getvalue()


def text(table: Table) -> str:
    """To be read in a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in table.headings:
        drawn.add_column(name, justify="left" if name in table.left else "right", no_wrap=True)
    for number, row in enumerate(table.rows, 1):
        drawn.add_row(*row, end_section=number in table.sections)
    console = Console(width=400, highlight=False, markup=False, no_color=True)
    with console.capture() as captured:
        console.print(drawn, soft_wrap=True)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*(line for line in lines if line), *table.notes]) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {"text": text, "markdown": markdown, "latex": latex, "csv": comma_separated}
