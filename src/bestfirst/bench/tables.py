"""Tables: how they are written (text, Markdown, LaTeX, CSV), and those of saved rows, the paper's numbers beside."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .paper import DATASETS, TABLES, Experiment, PlannedLine, Published
from .row import Row
from .setting import Setting
from .summary import (
    TITLES,
    Against,
    Found,
    QualityMetrics,
    RowsByLine,
    SettingSummary,
    binned,
    by_setting,
    common,
    compare,
    summarize,
    tempered,
)

Columns = Mapping[str, Callable[[Any], str]]
"""Headings, and what stands under each for one thing of the table."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings. Columns named in `left` are flush left, the others right; `notes` explain below.

    `sections` are the numbers of rows that begin a new part.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = frozenset()
    sections: Collection[int] = frozenset()
    notes: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(
        cls,
        title: str,
        things: Sequence[Any],
        columns: Columns,
        left: Collection[str] = (),
        part: Callable[[Any], Any] = lambda _: None,
        notes: Sequence[str] = (),
    ) -> Table:
        """A row for each thing, and all columns that have something in them; things with another `part` begin a new one."""
        cells = {heading: [show(thing) for thing in things] for heading, show in columns.items()}
        kept = [heading for heading in columns if any(cells[heading])]
        parts = [part(thing) for thing in things]
        sections = {i for i in range(1, len(parts)) if parts[i] != parts[i - 1]}
        return cls(title, kept, list(zip(*(cells[heading] for heading in kept), strict=True)), left, sections, notes)


# -- formats -------------------------------------------------------------------------------------------------------------

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "|": r"$|$", "~": r"\textasciitilde{}",
    "γ": r"$\gamma$", "<": r"$<$", ">": r"$>$", "^": r"\textasciicircum{}", "{": r"\{", "}": r"\}", "$": r"\$",
}  # fmt: skip


def markdown(table: Table) -> str:
    """As Markdown has it, the title in bold."""
    rule = ["---" if name in table.left else "--:" for name in table.headings]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (table.headings, rule, *table.rows)
    ]
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n" + "\n".join(lines) + f"\n{notes}"


def latex(table: Table) -> str:
    """A `table` with a `tabular` and booktabs' rules."""
    columns = "".join("l" if name in table.left else "r" for name in table.headings)
    rows = [" & ".join(map(_latex, cells)) + r" \\" for cells in (table.headings, *table.rows)]
    lines = [r"\begin{table}", r"\centering", r"\small", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rows[0], r"\midrule"]
    for number, row in enumerate(rows[1:]):
        lines += [r"\midrule", row] if number in table.sections else [row]
    caption = _latex(" ".join([f"{table.title}.", *table.notes]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}", ""])


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

# -- of saved rows: one of the paper's tables, or every setting that a file has ------------------------------------------

LEGEND = (
    "|x|: tokens of an input. calls: a sentence. increase: (old - new) / new of calls, over beam search with the same score. "
    "/ least: calls over the fewest that any exact search can make. differ: best outputs that are not that beam search's; ties: "
    "of these, as good by 1e-4; lower, higher: best scores that are not its. none: inputs of which nothing finished within n_max."
)
GAINS = "In brackets: gain over the first line of this k."
CLIPPED = "differ from 0: best outputs that are not beam search's at epsilon 0, the paper's search error for mutual information."
CITED = "The paper's numbers are cited; its model is another."


@dataclass(frozen=True)
class MeasuredLine:
    """One line of a table: what was measured, and what the paper reports."""

    planned: PlannedLine
    ours: SettingSummary | None = None  # None: there are no rows of it
    gain: Mapping[str, float] = field(default_factory=dict)
    unlike_zero: float | None = None

    def json(self) -> dict[str, Any]:
        published = None if self.planned.published is None else asdict(self.planned.published)
        named = {"score": self.planned.score, "gain": self.gain, "unlike_zero": self.unlike_zero, "published": published}
        return {**(self.ours.json() if self.ours is not None else {}), **named}


def plan_lines(
    rows: Iterable[Row], experiment: Experiment | None, dataset: str, beams: Sequence[int] | None
) -> list[PlannedLine]:
    """Lines for these rows: of an experiment, the beams of which all rows are there, and the paper's others; or every setting."""
    settings = {row.setting for row in rows if beams is None or row.setting.beam in beams}
    if experiment is None:
        return _all_settings(settings)
    known = [k for k in sorted({s.beam for s in settings}) if experiment.every_beam or k in experiment.beams]
    whole = [k for k in known if all(line.setting in settings for line in experiment.plan(dataset, [k]))]
    planned = experiment.plan(dataset, whole)
    if not whole or beams is not None:
        return planned
    others = sorted({line.k for line in TABLES.get(experiment.name, {}).get(dataset, [])} - set(whole))
    return planned + [line for line in experiment.plan(dataset, others) if line.published is not None]


def _all_settings(settings: Collection[Setting]) -> list[PlannedLine]:
    """Each score's beam search first, as the baseline of the others."""
    ordered = sorted(settings, key=lambda s: (s.beam, s.rules, s.alone, s.decoding.row_budget or 0, s.search != "beam", s.search))
    several = len({setting.rules for setting in settings}) > 1
    lines = []
    for setting in ordered:
        beam = setting.using("beam")
        baseline = beam if beam in settings else None
        lines.append(PlannedLine(setting, setting.rules if several else "", baseline if setting != beam else None, baseline))
    return lines


def measure(planned: Sequence[PlannedLine], rows: Iterable[Row], metrics: QualityMetrics | None = None) -> list[MeasuredLine]:
    """Rows of one model and text as the lines of a table. Lines of one k are all of the same sentences."""
    found = by_setting(rows)
    lines = []
    for k in dict.fromkeys(line.setting.beam for line in planned):
        here = [line for line in planned if line.setting.beam == k]
        chosen = common(found[line.setting] for line in here if line.setting in found)
        lines += [_measured(line, found, chosen, metrics) for line in here]
    return lines


def _measured(planned: PlannedLine, found: Found, lines: Sequence[int], metrics: QualityMetrics | None) -> MeasuredLine:
    def rows_of(setting: Setting | None) -> RowsByLine | None:
        return None if setting is None else found.get(setting)

    rows = rows_of(planned.setting)
    if rows is None or not lines:
        return MeasuredLine(planned)
    ours = summarize(rows, lines, metrics, rows_of(planned.baseline))
    zero = rows_of(planned.zero)
    if zero is None or zero is rows:
        return MeasuredLine(planned, ours)
    first = summarize(zero, lines, metrics).quality if ours.quality else {}
    gain = {name: ours.quality[name] - value for name, value in first.items()}
    return MeasuredLine(planned, ours, gain, compare([rows[i] for i in lines], [zero[i] for i in lines]).different)


def rows_table(title: str, lines: Sequence[MeasuredLine], metrics: QualityMetrics, cited: bool) -> Table:
    """These lines, and the paper's numbers at the right where they are asked for."""

    def ours(show: Callable[[SettingSummary], str]) -> Callable[[MeasuredLine], str]:
        return lambda line: "" if line.ours is None else show(line.ours)

    def against(show: Callable[[Against], str]) -> Callable[[MeasuredLine], str]:
        return ours(lambda s: "" if s.against is None else show(s.against))

    def alone(show: Callable[[SettingSummary], str]) -> Callable[[MeasuredLine], str]:
        """Otherwise lines share their passes, on whatever machine rows came from."""
        return ours(lambda s: show(s) if s.setting.alone else "")

    def quality(name: str) -> Callable[[MeasuredLine], str]:
        def show(line: MeasuredLine) -> str:
            gain = f" ({line.gain[name]:+.1f})" if line.gain and line.planned.score else ""
            return number(None if line.ours is None else line.ours.quality.get(name), ".1f") + gain

        return show

    clipped = any(line.planned.setting.needs_language_model for line in lines)
    columns: dict[str, Callable[[MeasuredLine], str]] = {
        "k": lambda line: str(line.planned.setting.beam),
        "score": lambda line: line.planned.score,
        "search": lambda line: line.planned.search or line.planned.setting.search,
        "lines": ours(lambda s: str(s.lines)),
        "|x|": ours(lambda s: f"{s.source_length:.1f}"),
        "calls": ours(lambda s: f"{s.calls:.1f}"),
        "increase": against(lambda a: f"{a.increase:+.0f} %"),
        "/ least": ours(lambda s: number(s.over_least, ".2f")),
        "differ": against(lambda a: f"{a.different:.1f} %"),
        "ties": against(lambda a: str(a.near_ties)),
        "lower": against(lambda a: f"{a.lower:.1f} %"),
        "higher": against(lambda a: f"{a.higher:.1f} %"),
        "ms": alone(lambda s: f"{1000 * s.seconds:.0f}"),
        "ms / call": alone(lambda s: f"{1000 * s.seconds / s.calls:.2f}"),
        "differ from 0": lambda line: number(line.unlike_zero, ".1f", " %") if clipped else "",
        **{TITLES[name]: quality(name) for name in metrics.names},
        "none": ours(lambda s: str(s.unfinished)),
    }
    if cited:
        columns |= {f"paper: {name}": _of_published(show) for name, show in PUBLISHED.items()}
    has_gains = any(line.gain and line.planned.score for line in lines)
    notes = [LEGEND, *([GAINS] if has_gains else []), *([CLIPPED] if clipped else []), *([CITED] if cited else [])]
    left, part = {"score", "search"}, lambda line: line.planned.setting.beam
    return Table.of(title, lines, columns, left, part, [*notes, *metrics.signatures()])


def number(value: float | None, digits: str, unit: str = "") -> str:
    """A cell; an empty one for what is not known."""
    return "" if value is None else f"{value:{digits}}{unit}"


def _of_published(show: Callable[[Published], str]) -> Callable[[MeasuredLine], str]:
    return lambda line: "" if line.planned.published is None else show(line.planned.published)


PUBLISHED: dict[str, Callable[[Published], str]] = {
    "calls": lambda p: f"{p.calls:g}",
    "increase": lambda p: number(p.increase, "+.0f", " %"),
    "error": lambda p: number(p.error, ".1f", " %"),
    "quality": lambda p: number(p.quality, ".1f") + ("" if p.gain is None else f" ({p.gain:+.1f})"),
}


def cited_table(experiment: Experiment, dataset: str) -> Table:
    """The paper's own numbers."""
    columns: dict[str, Callable[[Published], str]] = {
        "k": lambda p: str(p.k),
        "search": lambda p: p.method,
        "parameters": lambda p: ", ".join(f"{name} {value:g}" for name, value in p.parameters.items()),
        **PUBLISHED,
    }
    columns["ROUGE-L" if dataset == "cnn-dm" else "BLEU"] = columns.pop("quality")
    title = f"{experiment.title}, {DATASETS[dataset]}: the paper's numbers"
    return Table.of(title, TABLES[experiment.name][dataset], columns, {"search", "parameters"}, lambda p: p.k)


def sharpness_table(title: str, found: Found) -> Table:
    """Fifths of the sentences, then temperatures, for each beam."""
    points = [(k, "sentences, ", p) for k, series in binned(found).items() for p in series]
    points += [(k, "T = ", p) for k, series in tempered(found).items() for p in series]
    columns: Columns = {
        "k": lambda at: str(at[0]),
        "what": lambda at: at[1] + at[2].label,
        "lines": lambda at: str(at[2].lines),
        "surprise": lambda at: f"{at[2].surprise:.3f}",
        "beam: calls": lambda at: f"{at[2].beam:.1f}",
        "best-first: calls": lambda at: f"{at[2].best_first:.1f}",
        "increase": lambda at: f"{at[2].increase:+.0f} %",
    }
    note = "surprise: minus the log-probability of a token of beam search's output. Fifths: of the sentences, the surest first."
    return Table.of(title, points, columns, {"what"}, lambda at: at[:2], [note])
