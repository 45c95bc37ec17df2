"""Tables of saved rows: one of the paper's, its numbers beside ours, or every setting that a file has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .experiments import Entry, Experiment
from .metrics import TITLES, Metrics
from .paper import DATASETS, TABLES, Published
from .row import Row
from .setting import Setting
from .summary import Summary, by_setting, common, compare, summarize
from .table import Table

LEGEND = (
    "|x|: tokens of an input. calls: a sentence. increase: (old - new) / new of calls, over beam search with the same score. "
    "/ least: calls over the fewest that any exact search can make. differ: best outputs that are not that beam search's; ties: "
    "of these, as good by 1e-4; lower, higher: best scores that are not its. none: inputs of which nothing finished within n_max."
)
GAINS = "In brackets: gain over the first line of this k."
CLIPPED = "differ from 0: best outputs that are not beam search's at epsilon 0, the paper's search error for mutual information."
CITED = "The paper's numbers are cited; its model is another."


@dataclass(frozen=True)
class Line:
    """One line of a table: what was measured, and what the paper reports."""

    entry: Entry
    ours: Summary | None  # None: there are no rows of it
    gain: Mapping[str, float]
    unlike_zero: float | None = None

    def json(self) -> dict[str, Any]:
        ours = {} if self.ours is None else self.ours.json()
        published = self.entry.published
        named = {"score": self.entry.score, "gain": dict(self.gain), "unlike_zero": self.unlike_zero}
        return {**ours, **named, "published": None if published is None else published.json()}


def measure(entries: Sequence[Entry], rows: Iterable[Row], metrics: Metrics | None = None) -> list[Line]:
    """Rows of one model and text as the lines of a table. Lines of one k are all of the same sentences."""
    found = by_setting(rows)
    lines = []
    for k in dict.fromkeys(entry.setting.beam for entry in entries):
        here = [entry for entry in entries if entry.setting.beam == k]
        chosen = common(found[entry.setting] for entry in here if entry.setting in found)
        lines += [_line(entry, found, chosen, metrics) for entry in here]
    return lines


def _line(entry: Entry, found: Mapping[Setting, Mapping[int, Row]], lines: Sequence[int], metrics: Metrics | None) -> Line:
    if entry.setting not in found or not lines:
        return Line(entry, None, {})
    baseline = found.get(entry.baseline) if entry.baseline is not None else None
    ours = summarize(found[entry.setting], lines, metrics, baseline, least=baseline)
    zero = found.get(entry.zero) if entry.zero is not None and entry.zero != entry.setting else None
    if zero is None:
        return Line(entry, ours, {})
    gain = {}
    if metrics is not None and ours.quality:
        gain = {name: ours.quality[name] - value for name, value in summarize(zero, lines, metrics).quality.items()}
    unlike = compare([found[entry.setting][line] for line in lines], [zero[line] for line in lines]).different
    return Line(entry, ours, gain, unlike)


def table(title: str, lines: Sequence[Line], metrics: Metrics | None = None, cited: bool = True) -> Table:
    """These lines with all columns that have something in them, the paper's at the right."""
    names = [] if metrics is None else metrics.names
    clipped = any(line.entry.setting.score == "mutual-information" for line in lines)
    columns = [_cells(line, names, clipped, cited) for line in lines]
    headings = [name for name in columns[0] if any(cells[name] for cells in columns)]
    beams = [line.entry.setting.beam for line in lines]
    has_gains = any(line.gain and line.entry.score for line in lines)
    notes = [LEGEND, *([GAINS] if has_gains else []), *([CLIPPED] if clipped else []), *([CITED] if cited else [])]
    return Table(
        title,
        headings,
        [[cells[name] for name in headings] for cells in columns],
        frozenset({"score", "search"}),
        frozenset(i for i in range(1, len(beams)) if beams[i] != beams[i - 1]),
        [*notes, *(metrics.signatures() if metrics is not None and lines else [])],
    )


def _cells(line: Line, metrics: Sequence[str], clipped: bool, cited: bool) -> dict[str, str]:
    entry, ours = line.entry, line.ours
    cells = {"k": str(entry.setting.beam), "score": entry.score, "search": entry.search or entry.setting.search}
    cells |= _measured(ours) if ours is not None else dict.fromkeys(_measured_names(), "")
    cells["differ from 0"] = _percent(line.unlike_zero, ".1f") if clipped and ours is not None else ""
    for name in metrics:
        number = "" if ours is None or name not in ours.quality else f"{ours.quality[name]:.1f}"
        cells[TITLES[name]] = number + (f" ({line.gain[name]:+.1f})" if line.gain and entry.score else "")
    cells["none"] = "" if ours is None else str(ours.unfinished)
    return {**cells, **(_published(entry.published) if cited else {})}


def _measured_names() -> list[str]:
    return ["lines", "|x|", "calls", "increase", "/ least", "differ", "ties", "lower", "higher", "ms", "ms / call"]


def _measured(ours: Summary) -> dict[str, str]:
    against = ours.against
    alone = ours.setting.alone  # otherwise lines share their passes, on whatever machine rows came from
    cells = [
        str(ours.lines),
        f"{ours.source_length:.1f}",
        f"{ours.calls:.1f}",
        "" if against is None else _percent(against.increase, "+.0f"),
        "" if ours.over_least is None else f"{ours.over_least:.2f}",
        *(["", "", "", ""] if against is None else [
            _percent(against.different, ".1f"),
            str(against.near_ties),
            _percent(against.lower, ".1f"),
            _percent(against.higher, ".1f"),
        ]),
        f"{1000 * ours.seconds:.0f}" if alone else "",
        f"{1000 * ours.seconds / ours.calls:.2f}" if alone else "",
    ]  # fmt: skip
    return dict(zip(_measured_names(), cells, strict=True))


def _published(published: Published | None) -> dict[str, str]:
    names = ("paper: calls", "paper: increase", "paper: error", "paper: quality")
    if published is None:
        return dict.fromkeys(names, "")
    quality = "" if published.quality is None else f"{published.quality:.1f}"
    gain = "" if published.gain is None else f" ({published.gain:+.1f})"
    error = "" if published.error is None else _percent(published.error, ".1f")
    cells = (f"{published.calls:g}", _percent(published.increase, "+.0f"), error, quality + gain)
    return dict(zip(names, cells, strict=True))


def _percent(number: float | None, digits: str) -> str:
    return "" if number is None else f"{number:{digits}} %"


def paper_lines(experiment: Experiment, dataset: str, beams: Sequence[int]) -> list[Entry]:
    """The lines of an experiment; the paper's other beams come along without a run."""
    entries = experiment.plan(dataset, beams)
    there = {(entry.setting.beam, entry.setting.search, entry.setting.scored) for entry in entries}
    others = sorted({line.k for line in TABLES.get(experiment.name, {}).get(dataset, [])} - set(beams))
    more = [entry for entry in experiment.plan(dataset, others) if entry.published is not None]
    return entries + [e for e in more if (e.setting.beam, e.setting.search, e.setting.scored) not in there]


def cited_table(experiment: Experiment, dataset: str) -> Table:
    """The paper's own numbers."""
    lines = TABLES[experiment.name][dataset]
    rows = []
    for line in lines:
        parameters = ", ".join(f"{name} {value:g}" for name, value in line.parameters.items())
        rows.append([str(line.k), line.method, parameters, *(cell.replace("paper: ", "") for cell in _published(line).values())])
    metric = "ROUGE-L" if dataset == "cnn-dm" else "BLEU"
    headings = ["k", "search", "parameters", "calls", "increase", "error", metric]
    kept = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    beams = [line.k for line in lines]
    return Table(
        f"{experiment.title}, {DATASETS[dataset]}: the paper's numbers",
        [headings[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        frozenset({"search", "parameters"}),
        frozenset(i for i in range(1, len(beams)) if beams[i] != beams[i - 1]),
    )


def all_entries(rows: Iterable[Row]) -> list[Entry]:
    """Every setting that has rows, each score's beam search first, as the baseline of the others."""
    settings = list(by_setting(rows))
    settings.sort(key=lambda s: (s.beam, s.scored, s.finished, s.limit, s.alone, s.row_budget or 0, s.search != "beam", s.search))
    several = len({(s.scored, s.finished, s.limit) for s in settings}) > 1
    entries = []
    for setting in settings:
        beam = replace(setting, search="beam")
        baseline = beam if beam in settings and setting != beam else None
        title = f"{setting.scored}, {setting.finished}, n_max {setting.limit}" if several else ""
        entries.append(Entry(setting, title, baseline, beam if beam in settings else None))
    return entries
