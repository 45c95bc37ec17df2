"""Tables: output as text, Markdown, LaTeX or CSV, and the tables of saved rows, with the paper's numbers for comparison."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .bootstrap import TITLES
from .paper import DATASETS, TABLES, Experiment, PlannedLine
from .row import Row
from .setting import Setting
from .summary import (
    QualityMetrics,
    RowsByLine,
    RowsBySetting,
    SettingSummary,
    binned,
    by_setting,
    common,
    compare,
    summarize,
    tempered,
)

Columns = Mapping[str, str | Callable[[Any], Any]]
"""By heading, how to make a cell from an object: the path of an attribute with a format and a unit, as in
`"ours.against.increase:+.0f %"`, or a function. None gives an empty cell."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings. Columns in `left` are flush left, the others right; `notes` are printed below the table.

    `sections` are the numbers of the rows that begin a new section.
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
        items: Sequence[Any],
        columns: Columns,
        left: Collection[str] = (),
        part: Callable[[Any], Any] = lambda _: None,
        notes: Sequence[str] = (),
    ) -> Table:
        """A row for each of `items`, without columns that are empty in all rows. A new value of `part` begins a new section."""
        cells = {heading: [cell(item, content) for item in items] for heading, content in columns.items()}
        kept = [heading for heading in columns if any(cells[heading])]
        parts = [part(item) for item in items]
        sections = {i for i in range(1, len(parts)) if parts[i] != parts[i - 1]}
        return cls(title, kept, list(zip(*(cells[heading] for heading in kept), strict=True)), left, sections, notes)


def cell(item: Any, content: str | Callable[[Any], Any]) -> str:
    """The text of a cell (see `Columns`)."""
    if callable(content):
        item, form = content(item), ""
    else:
        path, _, form = content.partition(":")
        for name in path.split("."):
            item = None if item is None else getattr(item, name)
    spec, space, unit = form.partition(" ")
    return "" if item is None else f"{item:{spec}}{space}{unit}"


# -- formats -------------------------------------------------------------------------------------------------------------

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "|": r"$|$", "~": r"\textasciitilde{}",
    "γ": r"$\gamma$", "<": r"$<$", ">": r"$>$", "^": r"\textasciicircum{}", "{": r"\{", "}": r"\}", "$": r"\$",
}  # fmt: skip


def markdown(table: Table) -> str:
    """The table in Markdown, its title in bold."""
    rule = ["---" if name in table.left else "--:" for name in table.headings]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (table.headings, rule, *table.rows)
    ]
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n" + "\n".join(lines) + f"\n{notes}"


def latex(table: Table) -> str:
    """The table in LaTeX, with the rules of booktabs."""
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
    """Headings and cells as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.headings, *table.rows])
    return out.getvalue()


def text(table: Table) -> str:
    """The table as plain text for a terminal."""
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

# -- tables of saved rows: one of the paper's tables, or all settings in a file ------------------------------------------

LEGEND = (
    "|x|: tokens of an input. calls: a sentence. increase: (old - new) / new of calls, over beam search with the same score. "
    "/ least: calls over the fewest that any exact search can make. differ: best outputs that are not that beam search's; ties: "
    "of these, as good by 1e-4; lower, higher: best scores that are not its. none: inputs of which nothing finished within n_max."
)
BOUNDED = (
    "least: the fewest calls with which any search can be certain of what beam search returns with this stop. >=, <=: a bound is "
    "known, and not the number; there may be no search that meets it."
)
GAINS = "In brackets: gain over the first line of this k."
CLIPPED = "differ from 0: best outputs that are not beam search's at epsilon 0, the paper's search error for mutual information."
CITED = "The paper's numbers are cited; its model is another."


@dataclass(frozen=True)
class MeasuredLine:
    """One line of a table: the plan with the paper's numbers, and the measured ones."""

    planned: PlannedLine
    ours: SettingSummary | None = None  # None: there are no such rows
    gain: Mapping[str, float] = field(default_factory=dict)
    unlike_zero: float | None = None

    def json(self) -> dict[str, Any]:
        published = None if self.planned.published is None else asdict(self.planned.published)
        named = {"score": self.planned.score, "gain": self.gain, "unlike_zero": self.unlike_zero, "published": published}
        return {**(self.ours.json() if self.ours is not None else {}), **named}


def plan_lines(
    rows: Iterable[Row], experiment: Experiment | None, dataset: str, beams: Sequence[int] | None
) -> list[PlannedLine]:
    """The lines of a table of these rows: for an experiment, beam sizes with all rows and the paper's others; else all."""
    settings = {row.setting for row in rows if beams is None or row.setting.beam in beams}
    if experiment is None:
        return _all_settings(settings)
    known = [k for k in sorted({s.beam for s in settings}) if experiment.every_beam or k in experiment.beams]
    complete = [k for k in known if all(line.setting in settings for line in experiment.plan(dataset, [k]))]
    planned = experiment.plan(dataset, complete)
    if not complete or beams is not None:
        return planned
    others = sorted({line.k for line in TABLES.get(experiment.name, {}).get(dataset, [])} - set(complete))
    return planned + [line for line in experiment.plan(dataset, others) if line.published is not None]


def _all_settings(settings: Collection[Setting]) -> list[PlannedLine]:
    """A line for each setting, the beam search of each score first, which is the baseline of the others."""
    ordered = sorted(settings, key=lambda s: (s.beam, s.rules, s.alone, s.decoding.row_budget or 0, s.search != "beam", s.search))
    several = len({setting.rules for setting in settings}) > 1
    lines = []
    for setting in ordered:
        beam = setting.using("beam")
        same = setting.baseline if setting.baseline in settings else beam
        baseline = same if same in settings and setting != beam else None
        zero = beam if beam in settings else None
        lines.append(PlannedLine(setting, setting.rules if several else "", baseline, zero))
    return lines


def measure(planned: Sequence[PlannedLine], rows: Iterable[Row], metrics: QualityMetrics | None = None) -> list[MeasuredLine]:
    """Rows of one model and text as the lines of a table. All lines of one k use the same sentences."""
    rows_of, lines = by_setting(rows), []
    for k in dict.fromkeys(line.setting.beam for line in planned):
        here = [line for line in planned if line.setting.beam == k]
        chosen = common(rows_of[line.setting] for line in here if line.setting in rows_of)
        lines += [_measured(line, rows_of, chosen, metrics) for line in here]
    return lines


def _measured(planned: PlannedLine, rows_of: RowsBySetting, lines: Sequence[int], metrics: QualityMetrics | None) -> MeasuredLine:
    def lookup(setting: Setting | None) -> RowsByLine | None:
        return None if setting is None else rows_of.get(setting)

    rows = lookup(planned.setting)
    if rows is None or not lines:
        return MeasuredLine(planned)
    ours = summarize(rows, lines, metrics, lookup(planned.baseline))
    zero = lookup(planned.zero)
    if zero is None or zero is rows:
        return MeasuredLine(planned, ours)
    first = summarize(zero, lines, metrics).quality if ours.quality else {}
    gain = {name: ours.quality[name] - value for name, value in first.items()}
    return MeasuredLine(planned, ours, gain, compare([rows[i] for i in lines], [zero[i] for i in lines]).different)


def rows_table(title: str, lines: Sequence[MeasuredLine], metrics: QualityMetrics, cited: bool) -> Table:
    """A table of these lines; `cited`: with the paper's numbers at the right."""

    def quality(name: str) -> Callable[[MeasuredLine], str]:
        def show(line: MeasuredLine) -> str:
            gain = f" ({line.gain[name]:+.1f})" if line.gain and line.planned.score else ""
            return (f"{line.ours.quality[name]:.1f}" if line.ours is not None and line.ours.quality else "") + gain

        return show

    bounded = any(line.ours is not None and not line.ours.least_proven for line in lines)
    clipped = any(line.planned.setting.needs_language_model for line in lines)
    columns: dict[str, str | Callable[[MeasuredLine], Any]] = {
        "k": "planned.setting.beam",
        "score": "planned.score",
        "search": lambda line: line.planned.search or line.planned.setting.search,
        "lines": "ours.lines",
        "|x|": "ours.source_length:.1f",
        "calls": "ours.calls:.1f",
        "increase": "ours.against.increase:+.0f %",
        **({"least": lambda line: _least(line, ":.1f", ">= ", "least")} if bounded else {}),
        "/ least": lambda line: _least(line, ":.2f", "<= ", "over_least"),
        "differ": "ours.against.different:.1f %",
        "ties": "ours.against.near_ties",
        "lower": "ours.against.lower:.1f %",
        "higher": "ours.against.higher:.1f %",
        "ms": "ours.milliseconds:.0f",
        "ms / call": "ours.milliseconds_a_call:.2f",
        **({"differ from 0": "unlike_zero:.1f %"} if clipped else {}),
        **{TITLES[name]: quality(name) for name in metrics.names},
        "none": "ours.unfinished",
        **({f"paper: {name}": f"planned.published.{content}" for name, content in PUBLISHED.items()} if cited else {}),
    }
    has_gains = any(line.gain and line.planned.score for line in lines)
    conditional_notes = {BOUNDED: bounded, GAINS: has_gains, CLIPPED: clipped, CITED: cited}
    notes = [LEGEND, *(note for note, fits in conditional_notes.items() if fits)]
    left, part = {"score", "search"}, lambda line: line.planned.setting.beam
    return Table.of(title, lines, columns, left, part, [*notes, *metrics.signatures()])


def _least(line: MeasuredLine, form: str, sign: str, name: str) -> str | None:
    """The summary's number of this name; with `sign` before it where it is only a bound."""
    number = cell(line, f"ours.{name}{form}")
    return f"{sign}{number}" if number and line.ours is not None and not line.ours.least_proven else number or None


PUBLISHED = {"calls": "calls:g", "increase": "increase:+.0f %", "error": "error:.1f %", "quality": "quality_and_gain"}


def cited_table(experiment: Experiment, dataset: str) -> Table:
    """A table of the paper's own numbers."""
    columns = {"k": "k", "search": "method", "parameters": "named_parameters", **PUBLISHED}
    columns["ROUGE-L" if dataset == "cnn-dm" else "BLEU"] = columns.pop("quality")
    title = f"{experiment.title}, {DATASETS[dataset]}: the paper's numbers"
    return Table.of(title, TABLES[experiment.name][dataset], columns, {"search", "parameters"}, lambda line: line.k)


def sharpness_table(title: str, rows_of: RowsBySetting) -> Table:
    """A table of the saving by sharpness: for each beam, fifths of the sentences, then temperatures."""
    points = [point for points_of in (binned, tempered) for series in points_of(rows_of).values() for point in series]
    columns = {
        "k": "k",
        "what": "label",
        "lines": "lines",
        "surprise": "surprise:.3f",
        "beam: calls": "beam:.1f",
        "best-first: calls": "best_first:.1f",
        "increase": "increase:+.0f %",
    }
    note = "surprise: minus the log-probability of a token of beam search's output. Fifths: of the sentences, the surest first."
    return Table.of(title, points, columns, {"what"}, lambda point: (point.k, point.label[0]), [note])
