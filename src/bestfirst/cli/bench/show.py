"""Rows as tables on standard output, in the format that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ...bench.experiments import Entry, Experiment
from ...bench.metrics import Metrics
from ...bench.row import Row
from ...bench.table import FORMATS, Table
from ...bench.tables import all_entries, measure, paper_lines, table
from ..failure import reason, say, usage


def metrics(names: str, tokenize: str) -> Metrics:
    """The metrics of these names; what is not installed is said and left out."""
    try:
        chosen = Metrics([name for name in names.split(",") if name], tokenize)
    except ValueError as error:
        raise usage(reason(error)) from error
    for line in chosen.left_out:
        say(line)
    return chosen


def show(found: Table, form: str) -> None:
    """Print a table; a blank line comes after each but those that a program reads."""
    print(FORMATS[form](found), end="" if form == "csv" else "\n")


def show_rows(
    rows: Iterable[Row], experiment: Experiment | None, dataset: str, beams: Sequence[int] | None, metrics: Metrics, form: str
) -> int:
    """One table for each model and text: of an experiment of the paper, or of all settings. Returns how many there were."""
    shown = 0
    for (model, text), group in by_model_and_text(rows).items():
        entries = _entries(group, experiment, dataset, beams)
        lines = measure(entries, group, metrics)
        if all(line.ours is None for line in lines):
            continue
        shown += 1
        if form == "json":
            for line in lines:
                about = {"table": experiment.name if experiment else "all", "model": model, "text": text}
                print(json.dumps({**about, **line.json(), "metrics": metrics.signatures()}), flush=True)
        else:
            title = f"{experiment.title if experiment else 'All settings'}: {model}, {text}"
            show(table(title, lines, metrics, cited=experiment is not None), form)
    return shown


def by_model_and_text(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """What can be compared with each other."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.text), []).append(row)
    return groups


def _entries(rows: Sequence[Row], experiment: Experiment | None, dataset: str, beams: Sequence[int] | None) -> list[Entry]:
    if experiment is None:
        return [entry for entry in all_entries(rows) if beams is None or entry.setting.beam in beams]
    found = {row.setting for row in rows}
    there = sorted({setting.beam for setting in found if beams is None or setting.beam in beams})
    known = [k for k in there if experiment.every_beam or k in experiment.beams]
    whole = [k for k in known if all(entry.setting in found for entry in experiment.plan(dataset, [k]))]
    if not whole or beams is not None:
        return experiment.plan(dataset, whole)
    return paper_lines(experiment, dataset, whole)
