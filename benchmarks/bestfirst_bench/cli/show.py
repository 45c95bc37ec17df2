"""bestfirst bench table and plot: saved rows as tables and plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from bestfirst.cli.console import reason, usage, usage_errors
from bestfirst.cli.options import option

from ..growth import Measurement
from ..paper import EXPERIMENTS, Experiment
from ..row import AnySaved, Row, read
from ..summary import QualityMetrics, by_model_and_text, by_setting
from ..tables import measure, plan_lines, rows_table, sharpness_table
from . import bench_options as options
from .bench_options import TableOptions
from .measured_work import check_plot, save_plot, show

SHARPNESS = "sharpness"
PLOTS = ("calls", "time", "bleu", "length", "sharpness", "growth")

# fmt: off

TableName = Annotated[str | None, option("--table", "-t", metavar="NAME",
    help=f"A table of the paper: {', '.join(EXPERIMENTS)}; or {SHARPNESS}, the saving by how sure the model is. By default all "
    "settings in one.")]
PlotName = Annotated[str, option("--plot", "-p", metavar="NAME", help=f"One of {', '.join(PLOTS)}.")]
Output = Annotated[Path | None, option("--output", "-o", metavar="OUT", help="A .png, .svg or .pdf file. By default NAME.png.")]

# fmt: on


def table(
    files: options.RowFiles,
    shown: TableOptions,
    name: TableName = None,
    dataset: options.Dataset = None,
    beam: options.SomeBeams = None,
    text: options.TextName = None,
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
    metrics = shown.quality(tokenize)
    rows = read_rows(files, beams, text)
    if name == SHARPNESS:
        for (model, of), group in by_model_and_text(rows).items():
            found = sharpness_table(f"Sharpness: {model}, {of}", by_setting(group))
            if found.rows:
                show(found, shown.form)
    elif not show_rows(rows, EXPERIMENTS[name] if name else None, dataset or "iwslt14", beams, metrics, shown):
        of_table = "" if name is None else f" of the table {name}"
        raise usage(f"{', '.join(repr(str(file)) for file in files)}: no rows{of_table}; make some with bench run or bench paper")


def plot(
    files: options.RowFiles,
    name: PlotName,
    output: Output = None,
    beam: options.SomeBeams = None,
    text: options.TextName = None,
    tokenize: options.Tokenize = "none",
) -> None:
    """Draw saved rows.

    calls      calls a sentence by beam size
    time       time by calls, each point a sentence decoded alone
    bleu       BLEU by calls
    length     where the saving comes from: calls by length of the input
    sharpness  the saving by how sure the model is
    growth     what bench growth measured

    Examples:
      bestfirst bench plot bench-tatoeba-de-en.jsonl --plot calls
      bestfirst bench plot rows.jsonl more.jsonl --plot length --beam 5,10 \\
        -o length.svg
    """
    if name not in PLOTS:
        raise usage(f"there is no plot {name!r}; choose from {', '.join(PLOTS)}")
    out = Path(f"{name}.png") if output is None else output
    check_plot(out)

    from .. import plots

    try:
        if name == "growth":
            figure = plots.growth(read_saved(Measurement, files))
        else:
            rows = read_rows(files, None if beam is None else options.numbers(beam), text)
            figure = plots.PLOTS[name](rows, TableOptions(metrics="bleu" if name == "bleu" else "").quality(tokenize))
    except plots.NothingToPlot as error:
        raise usage(f"nothing to plot: {error}") from error
    save_plot(figure, out)


def read_saved(kind: type[AnySaved], files: Sequence[Path]) -> list[AnySaved]:
    """The results of this kind in all files."""
    for file in files:
        if not file.is_file():
            raise usage(f"cannot read {str(file)!r}: no such file")
    try:
        with usage_errors():
            return read(kind, files)
    except OSError as error:
        raise usage(f"cannot read {error.filename!r}: {reason(error)}") from error


def read_rows(files: Sequence[Path], beams: Sequence[int] | None, text: str | None) -> list[Row]:
    """The rows in all files with these beam sizes and of this text; None: all."""
    rows = [row for row in read_saved(Row, files) if beams is None or row.setting.beam in beams]
    return [row for row in rows if text is None or row.text.partition("@")[0] == text]


def show_rows(
    rows: Iterable[Row],
    experiment: Experiment | None,
    dataset: str,
    beams: Sequence[int] | None,
    metrics: QualityMetrics,
    shown: TableOptions,
) -> int:
    """Print a table for each model and text: of an experiment of the paper, or of all settings. Returns the number of tables."""
    count = 0
    for (model, text), group in by_model_and_text(rows).items():
        lines = measure(plan_lines(group, experiment, dataset, beams), group, metrics)
        if all(line.ours is None for line in lines):
            continue
        count += 1
        if shown.as_json:
            about = {"table": experiment.name if experiment else "all", "model": model, "text": text}
            for line in lines:
                print(json.dumps({**about, **line.json(), "metrics": metrics.signatures()}), flush=True)
        else:
            title = f"{experiment.title if experiment else 'All settings'}: {model}, {text}"
            show(rows_table(title, lines, metrics, cited=experiment is not None), shown.form)
    return count
