"""The options that the commands of `bench` share, and groups of them (`bestfirst.cli.options.grouped`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bestfirst.cli.console import say, usage, usage_errors
from bestfirst.cli.options import DTYPES, MODEL, ModelName, count, one_of, option

from ..bootstrap import LIBRARIES, TITLES, LineMetric, line_metrics
from ..paper import DATASETS
from ..summary import QualityMetrics
from ..tables import FORMATS

TEXT, RUN, OUT = "Text", "Run", "Output"  # panels of the help


# fmt: off

Source = Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="SOURCE")]
SomeSource = Annotated[Path | None, typer.Argument(help="Text to translate, a sentence a line.", metavar="[SOURCE]")]
Reference = Annotated[Path | None, typer.Argument(metavar="[REFERENCE]",
    help="Its translation, line by line, for BLEU and chrF.")]
RowFiles = Annotated[list[Path], typer.Argument(help="Files of rows, as run and paper save them.", metavar="ROWS...")]
Beams = Annotated[str, option("--beam", "-k", metavar="K,...", panel=RUN, help="Beam sizes.")]
SomeBeams = Annotated[str | None, option("--beam", "-k", metavar="K,...", panel=RUN, help="Only these beam sizes.")]
TextName = Annotated[str | None, option("--text", metavar="NAME", help="Only rows of this text, by its file's name.")]
Repeat = Annotated[int, option(kind=count, metavar="N", panel=RUN, help="Turns; the best time of each way counts.")]
AsJson = Annotated[bool, option("--json", panel=OUT, help="Print JSON, not a table.")]
Format = Annotated[str, option("--format", kind=one_of(*FORMATS), metavar="NAME", panel=OUT, help=f"{', '.join(FORMATS)}.")]
Rows = Annotated[Path | None, option("--rows", metavar="FILE", panel=OUT,
    help="File in which each result is saved when it is done, a JSON object a line. Saved results are not made again. By default "
    "bench-MODEL.jsonl (growth-MODEL.jsonl).")]
Tokenize = Annotated[str, option(metavar="NAME", panel=OUT,
    help="sacrebleu's tokenizer for BLEU: none for text that is tokenized already, 13a for text that is not.")]
Dataset = Annotated[str | None, option(kind=one_of(*DATASETS), metavar="NAME", panel=RUN,
    help=f"The paper's data set to take numbers and parameters of: {', '.join(DATASETS)}. By default iwslt14.")]
LanguageModel = Annotated[str | None, option("--lm", metavar="FOLDER", panel=MODEL,
    help="A language model's folder, for mutual information.")]


@dataclass(frozen=True)
class BenchModelOptions:
    """Which model, on which device and in which dtype."""

    model: ModelName = None
    device: Annotated[str | None, option(metavar="NAME", panel=MODEL, help="Where to run: cpu (the default), cuda, mps.")] = None
    dtype: Annotated[str | None, option(kind=one_of(*DTYPES), metavar="NAME", panel=MODEL,
        help=f"{', '.join(DTYPES)}. By default fp32.")] = None
    threads: Annotated[int, option(kind=count, metavar="N", panel=MODEL, help="CPU threads.")] = 1


@dataclass(frozen=True)
class SampleOptions:
    """Which lines of a text, in the order of the text."""

    limit: Annotated[int | None, option(kind=count, metavar="N", panel=TEXT, help="Only the first N lines.")] = None
    sample: Annotated[int | None, option(kind=count, metavar="N", panel=TEXT,
        help="N lines at random; a larger sample of the same seed contains a smaller one.")] = None
    seed: Annotated[int, option(metavar="N", panel=TEXT, help="For --sample.")] = 0


@dataclass(frozen=True)
class ShuffleOptions:
    """Which lines of a text, in the order of the text or shuffled."""

    limit: Annotated[int | None, option(kind=count, metavar="N", panel=TEXT, help="Only the first N lines.")] = None
    shuffle: Annotated[int | None, option(metavar="SEED", panel=TEXT, help="Take lines at random, with this seed.")] = None


@dataclass(frozen=True)
class TableOptions:
    """How to show a table of rows."""

    form: Format = "text"
    as_json: AsJson = False
    metrics: Annotated[str, option(metavar="NAME,...", panel=OUT,
        help=f"Of {', '.join(TITLES)}. They need sacrebleu and rouge-score.")] = "bleu,chrf"

    def quality(self, tokenize: str) -> QualityMetrics:
        return QualityMetrics(named_metrics(self.metrics, tokenize, TITLES))


# fmt: on


def named_metrics(names: str, tokenize: str, known: Iterable[str] = LIBRARIES) -> list[LineMetric]:
    """The metrics of these names; prints which are left out because their library is not installed."""
    with usage_errors():
        metrics, missing = line_metrics([name for name in names.split(",") if name], tokenize, known)
    for line in missing:
        say(line)
    return metrics


def numbers(text: str, option: str = "--beam") -> list[int]:
    """Whole numbers from 1 up, separated by commas; duplicates are dropped."""
    try:
        parsed = [int(part) for part in text.split(",")]
    except ValueError:
        raise usage(f"{option} takes numbers separated by commas, got {text!r}") from None
    if min(parsed) < 1:
        raise usage(f"{option} must be at least 1, got {min(parsed)}")
    return list(dict.fromkeys(parsed))
