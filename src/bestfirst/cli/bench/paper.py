"""bestfirst bench paper: the paper's tables, its numbers beside those of any model and text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...bench.corpus import Corpus
from ...bench.experiments import EXPERIMENTS, Experiment
from ...bench.paper import TABLES
from ...bench.setting import Setting
from ...bench.summary import mean
from ...bench.tables import cited_table
from .. import options as common
from ..failure import say, usage
from . import options
from .show import metrics as chosen_metrics
from .show import show, show_rows
from .work import Work, check_settings, load_models, make_rows, read_corpus

if TYPE_CHECKING:
    from ...models.transformers import TransformersModel

Names = Annotated[
    str | None,
    typer.Option(
        "--table",
        "-t",
        metavar="NAME,...",
        help=f"Of {', '.join(EXPERIMENTS)}. By default all that can be run.",
        show_default=False,
    ),
]
Beams = Annotated[
    str | None,
    typer.Option(
        "--beam",
        "-k",
        metavar="K,...",
        help="Beam sizes. By default the paper's, but for its 500, which takes hours on a CPU.",
        rich_help_panel=options.RUN,
        show_default=False,
    ),
]
Validation = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        metavar="SOURCE REFERENCE",
        help="Another text, for the table of memory: the paper's is of a validation set.",
        rich_help_panel=options.TEXT,
        show_default=False,
    ),
]


def paper(
    source: options.SomeSource = None,
    reference: options.Reference = None,
    table: Names = None,
    dataset: options.Dataset = None,
    beam: Beams = None,
    validation: Validation = None,
    limit: options.Limit = None,
    sample: options.Sample = None,
    seed: options.Seed = 0,
    rows: options.Rows = None,
    form: options.Format = "text",
    as_json: options.AsJson = False,
    metrics: options.Metric = "bleu,chrf",
    tokenize: options.Tokenize = "none",
    model: common.ModelName = None,
    lm: options.LanguageModel = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = 1,
) -> int:
    """Repeat the paper's experiments on a model and text of yours, its numbers beside.

    As in the paper, finished hypotheses keep their slots and n_max = 2|x|.
    Without SOURCE the paper's own numbers are printed and nothing is run.

    results             calls of beam search, early stopping (es), best-first
    stopping            beam search with other stopping criteria
    length              length rewards: the paper's two methods, and exact
    mutual-information  likewise; needs --lm
    memory              a queue of at most gamma k hypotheses
    figure              calls against time, one sentence at a time

    Rows are saved as they are done; the same command goes on from there.

    Examples:
      bestfirst bench paper --table results
      bestfirst bench paper test.de test.en --model folder --table results \\
        --limit 300
      bestfirst bench paper test.de test.en --model folder --lm lm-folder \\
        --sample 1000 --seed 1 --validation valid.de valid.en
    """
    chosen = _experiments(table)
    if source is None:
        if given := [name for name, value in (("--model", model), ("--limit", limit), ("--sample", sample)) if value is not None]:
            raise usage(f"{given[0]} needs a text to run on: bestfirst bench paper SOURCE REFERENCE (the paper's is IWSLT'14's)")
        return _cited(chosen, dataset, form)
    if any(experiment.language_model for experiment in chosen) and lm is None:
        if table is not None:
            raise usage("the table mutual-information needs a language model; name its folder with --lm")
        chosen = [experiment for experiment in chosen if not experiment.language_model]
    wanted = chosen_metrics(metrics, tokenize)
    beams = None if beam is None else options.numbers(beam)
    plans = [(experiment, _settings(experiment, dataset or "iwslt14", beams)) for experiment in chosen]
    whole = read_corpus(source, reference)
    corpus = whole.part(limit, sample, seed)
    other = corpus if validation is None else read_corpus(*validation).part(limit, sample, seed)
    loaded, language_model = load_models(model, lm, device, dtype, threads)
    work: Work = [(settings, other if experiment.validation else corpus) for experiment, settings in plans]
    for settings, _ in work:
        check_settings(settings, language_model)
    if validation is None and any(experiment.validation for experiment in chosen):
        say("the paper's table of memory is of a validation set; this one is of the same text as the others (see --validation)")
    made = make_rows(loaded, language_model, work, rows)
    _tell_lengths(loaded, whole, corpus)
    for experiment, settings in plans:
        text = (other if experiment.validation else corpus).name
        there = [row for row in made.rows if row.text == text and row.setting in settings]
        show_rows(there, experiment, dataset or "iwslt14", beams, wanted, "json" if as_json else form)
    return made.code


def scores(
    source: options.Source,
    reference: Annotated[Path, typer.Argument(help="Its translation, line by line, for BLEU.", metavar="REFERENCE")],
    model: common.ModelName = None,
    lm: options.LanguageModel = None,
    beam: options.Beams = "5,10",
    limit: options.Limit = None,
    rows: options.Rows = None,
    as_json: options.AsJson = False,
    device: options.Device = None,
    threads: options.Threads = 1,
) -> int:
    """Measure the paper's length rewards and mutual information: bench paper --table length,mutual-information.

    Each score is searched level by level (beam), by the paper's method
    (heuristic or stopping) and exactly. Without --lm there is the table of
    length normalization only.

    Example: bestfirst bench scores test.de test.en --lm folder --limit 500
    """
    tables = "length" if lm is None else "length,mutual-information"
    same = {"limit": limit, "rows": rows, "as_json": as_json, "model": model, "lm": lm, "device": device, "threads": threads}
    return paper(source, reference, table=tables, beam=beam, **same)  # type: ignore[arg-type]


def _experiments(names: str | None) -> list[Experiment]:
    wanted = list(EXPERIMENTS) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in EXPERIMENTS]:
        raise usage(f"the paper has no table {unknown[0]!r}; choose from {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(wanted)]


def _settings(experiment: Experiment, dataset: str, beams: list[int] | None) -> list[Setting]:
    try:
        return [entry.setting for entry in experiment.plan(dataset, experiment.beams if beams is None else beams)]
    except ValueError as error:
        raise usage(str(error)) from error


def _tell_lengths(model: TransformersModel, whole: Corpus, part: Corpus) -> None:
    """Whether the lines chosen are like the others: the longer an input, the less is saved."""
    if len(part.pairs) < len(whole.pairs):
        chosen, there = (mean(model.source_length(pair.source) for pair in text.pairs) for text in (part, whole))
        say(f"inputs have {chosen:.1f} tokens on average, {there:.1f} in the whole text; the longer they are, the less is saved")


def _cited(experiments: list[Experiment], dataset: str | None, form: str) -> int:
    for experiment in experiments:
        for name in TABLES.get(experiment.name, {}):
            if dataset in (None, name):
                show(cited_table(experiment, name), form)
    return 0
