"""bestfirst bench run: any settings on any model and text."""

from __future__ import annotations

from typing import Annotated

import typer

from ...bench.setting import SEARCHES, Setting, read_score
from .. import options as common
from ..failure import usage
from . import options
from .show import metrics as chosen_metrics
from .show import show_rows
from .work import check_settings, load_models, make_rows, read_corpus

Strategies = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME,...",
        help=f"Searches: {', '.join(SEARCHES)}; gamma=2: memory-reduced, with a queue of 2 K. es, early, shrinking and hf-* "
        "are beam search with other stops; stopping and heuristic the paper's methods for scores that can rise.",
        rich_help_panel=options.RUN,
    ),
]
Scores = Annotated[
    list[str],
    typer.Option(
        "--score",
        metavar="SCORE",
        help="What a hypothesis is worth: a name, with parameters as in length-reward:beta=0.5. May be given several times.",
        rich_help_panel=options.RUN,
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        "--length-ratio",
        parser=common.number,
        metavar="R",
        help="n_max = R |input|; the paper's is 2.",
        rich_help_panel=options.RUN,
    ),
]
Alone = Annotated[
    bool,
    typer.Option("--alone", help="One line at a time, so that each row's time is its own.", rich_help_panel=options.RUN),
]


def run(
    source: options.Source,
    reference: options.Reference = None,
    strategy: Strategies = "beam,best-first",
    score: Scores = ["logprob"],  # noqa: B006  typer reads it, nobody writes it
    beam: options.Beams = "5,10",
    finished: common.FinishedRule = "leave",
    max_length: common.MaxLength = None,
    length_ratio: Ratio = None,
    row_budget: common.RowBudget = None,
    alone: Alone = False,
    limit: options.Limit = None,
    sample: options.Sample = None,
    seed: options.Seed = 0,
    rows: options.Rows = None,
    form: options.Format = "text",
    as_json: options.AsJson = False,
    metrics: options.Metric = "bleu,chrf",
    tokenize: options.Tokenize = "13a",
    model: common.ModelName = None,
    lm: options.LanguageModel = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = 1,
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
    settings = _settings(strategy, score, options.numbers(beam), finished, max_length, length_ratio, row_budget, alone)
    corpus = read_corpus(source, reference).part(limit, sample, seed)
    wanted = chosen_metrics(metrics, tokenize)
    loaded, language_model = load_models(model, lm, device, dtype, threads)
    check_settings(settings, language_model)

    made = make_rows(loaded, language_model, [(settings, corpus)], rows)
    show_rows(made.rows, None, "", None, wanted, "json" if as_json else form)
    return made.code


def _settings(
    strategies: str,
    scores: list[str],
    beams: list[int],
    finished: str,
    max_length: int | None,
    ratio: float | None,
    row_budget: int | None,
    alone: bool,
) -> list[Setting]:
    if max_length is not None and ratio is not None:
        raise usage("--max-length and --length-ratio exclude each other")
    if ratio is not None and not ratio > 0:
        raise usage(f"--length-ratio must be above 0, got {ratio:g}")
    try:
        read = [read_score(score) for score in scores]
        return [
            Setting(search, k, *score, finished, max_length, ratio, row_budget, alone)
            for k in beams
            for score in read
            for search in strategies.split(",")
        ]
    except ValueError as error:
        raise usage(str(error)) from error
