"""bestfirst bench table: saved rows as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...bench.experiments import EXPERIMENTS
from ...bench.row import Row
from ...bench.sharpness import sharpness_table
from ...bench.store import read
from ...bench.summary import by_setting
from ..failure import reason, usage
from . import options
from .paper import Beams
from .show import by_model_and_text, show, show_rows
from .show import metrics as chosen_metrics

SHARPNESS = "sharpness"

Name = Annotated[
    str | None,
    typer.Option(
        "--table",
        "-t",
        metavar="NAME",
        help=f"A table of the paper: {', '.join(EXPERIMENTS)}; or {SHARPNESS}, the saving by how sure the model is. By default "
        "all settings in one.",
        show_default=False,
    ),
]


def table(
    files: options.RowFiles,
    name: Name = None,
    dataset: options.Dataset = None,
    beam: Beams = None,
    text: options.TextName = None,
    form: options.Format = "text",
    as_json: options.AsJson = False,
    metrics: options.Metric = "bleu,chrf",
    tokenize: options.Tokenize = "none",
) -> None:
    """Turn saved rows into tables: text, Markdown, LaTeX, CSV or JSON.

    One table for each model and text that the files have rows of. Settings are
    compared on the lines that all of them with the same beam have.

    Examples:
      bestfirst bench table bench-tatoeba-de-en.jsonl --tokenize 13a
      bestfirst bench table rows.jsonl --table results --format latex
    """
    if name is not None and name not in (*EXPERIMENTS, SHARPNESS):
        raise usage(f"the paper has no table {name!r}; choose from {', '.join(EXPERIMENTS)} and {SHARPNESS}")
    beams = None if beam is None else options.numbers(beam)
    wanted = chosen_metrics(metrics, tokenize)
    rows = read_rows(files, beams, text)
    if name == SHARPNESS:
        _show_sharpness(rows, form)
        return
    experiment = None if name is None else EXPERIMENTS[name]
    if not show_rows(rows, experiment, dataset or "iwslt14", beams, wanted, "json" if as_json else form):
        asked = "" if name is None else f" of the table {name}"
        raise usage(f"{', '.join(repr(str(file)) for file in files)}: no rows{asked}; make some with bench run or bench paper")


def _show_sharpness(rows: Sequence[Row], form: str) -> None:
    for (model, text), group in by_model_and_text(rows).items():
        found = sharpness_table(f"Sharpness: {model}, {text}", by_setting(group))
        if found.rows:
            show(found, form)


def read_rows(files: Sequence[Path], beams: Sequence[int] | None = None, text: str | None = None) -> list[Row]:
    """The rows of all files; only those with these beams and of this text."""
    for file in files:
        if not file.is_file():
            raise usage(f"cannot read {str(file)!r}: no such file")
    try:
        rows = read(Row, files)
    except ValueError as error:
        raise usage(str(error)) from error
    except OSError as error:
        raise usage(f"cannot read {error.filename!r}: {reason(error)}") from error
    rows = [row for row in rows if beams is None or row.setting.beam in beams]
    return [row for row in rows if text is None or row.text.partition("@")[0] == text]
