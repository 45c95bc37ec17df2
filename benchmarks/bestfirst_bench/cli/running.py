"""bestfirst bench run, paper and scores: make rows of any settings, or of the paper's experiments, on any model and text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bestfirst.cli import options as common
from bestfirst.cli.console import say, usage, usage_errors
from bestfirst.cli.options import option

from ..paper import EXPERIMENTS, TABLES, Experiment
from ..setting import SEARCHES, Setting, read_score
from ..summary import mean
from ..tables import cited_table
from . import bench_options as options
from .bench_options import RUN, TEXT, BenchModelOptions, SampleOptions, TableOptions
from .measured_work import load_models, make_rows, read_text, show
from .show import show_rows

# fmt: off

Strategies = Annotated[str, option("--strategy", metavar="NAME,...", panel=RUN,
    help=f"Searches: {', '.join(SEARCHES)}; gamma=2: memory-reduced, a queue of 2 K. es, early, shrinking, hf-*, patience and "
    "ctranslate2 are beam search with other stops, best-first/STOP returns what they return; stopping and heuristic are the "
    "paper's methods for scores that can rise.")]
Scores = Annotated[list[str], option("--score", metavar="SCORE", panel=RUN,
    help="What a hypothesis is worth: a name, with parameters as in length-reward:beta=0.5. May be given several times.")]
Ratio = Annotated[float | None, option(kind=common.number, metavar="R", panel=RUN, help="n_max = R |input|; the paper's is 2.")]
Alone = Annotated[bool, option("--alone", panel=RUN, help="One line at a time, so that each row's time is its own.")]
Names = Annotated[str | None, option("--table", "-t", metavar="NAME,...",
    help=f"Of {', '.join(EXPERIMENTS)}. By default all that can be run.")]
PaperBeams = Annotated[str | None, option("--beam", "-k", metavar="K,...", panel=RUN,
    help="Beam sizes. By default the paper's, but for its 500, which takes hours on a CPU.")]
Validation = Annotated[tuple[Path, Path] | None, option(metavar="SOURCE REFERENCE", panel=TEXT,
    help="Another text, for the table of memory: the paper's is of a validation set.")]

# fmt: on


def run(
    source: options.Source,
    which: SampleOptions,
    shown: TableOptions,
    chosen: BenchModelOptions,
    reference: options.Reference = None,
    strategy: Strategies = "beam,best-first",
    score: Scores = ["logprob"],  # noqa: B006  never modified
    beam: options.Beams = "5,10",
    finished: common.FinishedRule = "leave",
    max_length: common.MaxLength = None,
    length_ratio: Ratio = None,
    row_budget: common.RowBudget = None,
    alone: Alone = False,
    rows: options.Rows = None,
    tokenize: options.Tokenize = "13a",
    lm: options.LanguageModel = None,
) -> int:
    """Decode a text with every combination of strategies, scores and beams, and compare.

    Each row, one line of the text under one setting, is saved as it is done.
    Whatever ends the run, the same command goes on from there.

    Examples:
      bestfirst bench run test.de test.en --beam 5,10 --limit 200
      bestfirst bench run test.de test.en --strategy beam,es,best-first \\
        --finished keep --length-ratio 2 --sample 500 --seed 1
      bestfirst bench run test.de test.en --strategy beam,best-first \\
        --score logprob --score length-normalized:alpha=0.6
    """
    if max_length is not None and length_ratio is not None:
        raise usage("--max-length and --length-ratio exclude each other")
    if length_ratio is not None and not length_ratio > 0:
        raise usage(f"--length-ratio must be above 0, got {length_ratio:g}")
    limit = max_length if length_ratio is None else f"{length_ratio:g}x"
    beams = options.numbers(beam)
    with usage_errors():
        settings = [
            Setting.of(search, k, **each, finished=finished, max_length=limit, row_budget=row_budget, alone=alone)
            for k in beams
            for each in map(read_score, score)
            for search in strategy.split(",")
        ]
    if lm is None and any(setting.needs_language_model for setting in settings):
        raise usage("mutual-information needs a language model; name one with --lm")
    text = read_text(source, reference).part(**vars(which))
    metrics = shown.quality(tokenize)
    loaded, language_model = load_models(chosen, lm)
    made, code = make_rows(loaded, language_model, [(settings, text)], rows)
    show_rows(made, None, "", None, metrics, shown)
    return code


def paper(
    which: SampleOptions,
    shown: TableOptions,
    chosen: BenchModelOptions,
    source: options.SomeSource = None,
    reference: options.Reference = None,
    table: Names = None,
    dataset: options.Dataset = None,
    beam: PaperBeams = None,
    validation: Validation = None,
    rows: options.Rows = None,
    tokenize: options.Tokenize = "none",
    lm: options.LanguageModel = None,
) -> int:
    """Repeat the paper's experiments on a model and text of yours, its numbers beside.

    As in the paper, finished hypotheses keep their slots and n_max = 2|x|.
    Without SOURCE the paper's own numbers are printed and nothing is run.

    results             calls of beam search, early stopping (es), best-first
    stopping            beam search with other stopping criteria
    length              length rewards: the paper's two methods, and exact
    mutual-information  likewise; needs --lm
    memory              a queue of at most gamma k hypotheses
    stops               today's stops, which the paper has not: leave, n_max 2|x|
    figure              calls against time, one sentence at a time

    Rows are saved as they are done; the same command goes on from there.

    Examples:
      bestfirst bench paper --table results
      bestfirst bench paper test.de test.en --model folder --table results \\
        --limit 300
      bestfirst bench paper test.de test.en --model folder --lm lm-folder \\
        --sample 1000 --seed 1 --validation valid.de valid.en
    """
    experiments = _experiments(table)
    if source is None:
        needs_text = {"--model": chosen.model, "--limit": which.limit, "--sample": which.sample}
        for name in (name for name, value in needs_text.items() if value is not None):
            raise usage(f"{name} needs a text to run on: bestfirst bench paper SOURCE REFERENCE (the paper's is IWSLT'14's)")
        for cited, name in ((each, name) for each in experiments for name in TABLES.get(each.name, {})):
            if dataset in (None, name):
                show(cited_table(cited, name), shown.form)
        return 0
    if lm is None and any(experiment.language_model for experiment in experiments):
        if table is not None:
            raise usage("the table mutual-information needs a language model; name its folder with --lm")
        experiments = [experiment for experiment in experiments if not experiment.language_model]
    dataset = dataset or "iwslt14"
    metrics = shown.quality(tokenize)
    beams = None if beam is None else options.numbers(beam)
    with usage_errors():
        plans = [[line.setting for line in each.plan(dataset, each.beams if beams is None else beams)] for each in experiments]
    whole = read_text(source, reference)
    text = whole.part(**vars(which))
    other = text if validation is None else read_text(*validation).part(**vars(which))
    texts = [other if experiment.validation else text for experiment in experiments]
    loaded, language_model = load_models(chosen, lm)
    if validation is None and any(experiment.validation for experiment in experiments):
        say("the paper's table of memory is of a validation set; this one is of the same text as the others (see --validation)")
    made, code = make_rows(loaded, language_model, list(zip(plans, texts, strict=True)), rows)
    if len(text.pairs) < len(whole.pairs):
        here, there = (mean(loaded.source_length(pair.source) for pair in each.pairs) for each in (text, whole))
        say(f"inputs have {here:.1f} tokens on average, {there:.1f} in the whole text; the longer they are, the less is saved")
    for experiment, plan, used in zip(experiments, plans, texts, strict=True):
        of_table = [row for row in made if row.text == used.name and row.setting in plan]
        show_rows(of_table, experiment, dataset, beams, metrics, shown)
    return code


def scores(
    source: options.Source,
    reference: Annotated[Path, typer.Argument(help="Its translation, line by line, for BLEU.", metavar="REFERENCE")],
    which: SampleOptions,
    shown: TableOptions,
    chosen: BenchModelOptions,
    beam: options.Beams = "5,10",
    rows: options.Rows = None,
    lm: options.LanguageModel = None,
) -> int:
    """Measure the paper's length rewards and mutual information: bench paper --table length,mutual-information.

    Each score is searched level by level (beam), by the paper's method
    (heuristic or stopping) and exactly. Without --lm there is the table of
    length normalization only.

    Example: bestfirst bench scores test.de test.en --lm folder --limit 500
    """
    tables = "length" if lm is None else "length,mutual-information"
    return paper(which, shown, chosen, source, reference, tables, beam=beam, rows=rows, lm=lm)


def _experiments(names: str | None) -> list[Experiment]:
    """The experiments of these names, separated by commas; by default all."""
    wanted = list(EXPERIMENTS) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in EXPERIMENTS]:
        raise usage(f"the paper has no table {unknown[0]!r}; choose from {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(wanted)]
