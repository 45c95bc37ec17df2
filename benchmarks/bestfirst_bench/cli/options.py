"""The options that bench's commands share, and groups of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bestfirst.cli.console import reason, say, usage
from bestfirst.cli.options import DTYPES, MODEL, ModelName, count, one_of

from ..paper import DATASETS
from ..summary import TITLES, QualityMetrics
from ..tables import FORMATS

TEXT, RUN, OUT = "Text", "Run", "Output"  # the help's panels


def option(help: str, *names: str, panel: str | None = None, **more: Any) -> Any:  # noqa: A002  typer's own word
    """An option of one of the help's panels."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def counted(help: str, *names: str, panel: str | None = None) -> Any:  # noqa: A002
    """An option that takes a whole number from 1 up."""
    return option(help, *names, panel=panel, parser=count, metavar="N")


Source = Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="SOURCE")]
SomeSource = Annotated[Path | None, typer.Argument(help="Text to translate, a sentence a line.", metavar="[SOURCE]")]
Reference = Annotated[
    Path | None, typer.Argument(help="Its translation, line by line, for BLEU and chrF.", metavar="[REFERENCE]")
]
RowFiles = Annotated[list[Path], typer.Argument(help="Files of rows, as run and paper save them.", metavar="ROWS...")]
Beams = Annotated[str, option("Beam sizes.", "--beam", "-k", panel=RUN, metavar="K,...")]
SomeBeams = Annotated[str | None, option("Only these beam sizes.", "--beam", "-k", panel=RUN, metavar="K,...")]
TextName = Annotated[str | None, option("Only rows of this text, by its file's name.", "--text", metavar="NAME")]
Repeat = Annotated[int, counted("Turns; the best time of each way counts.", panel=RUN)]
AsJson = Annotated[bool, option("Print JSON, not a table.", "--json", panel=OUT)]
Format = Annotated[str, option(f"{', '.join(FORMATS)}.", "--format", panel=OUT, parser=one_of(*FORMATS), metavar="NAME")]
Rows = Annotated[
    Path | None,
    option(
        "Where results are saved as they are done, a JSON object a line. What is there is not done again. By default "
        "bench-MODEL.jsonl (growth-MODEL.jsonl).",
        "--rows",
        panel=OUT,
        metavar="FILE",
    ),
]
Tokenize = Annotated[
    str,
    option(
        "sacrebleu's tokenizer for BLEU: none for text that is tokenized already, 13a for text that is not.",
        panel=OUT,
        metavar="NAME",
    ),
]
Dataset = Annotated[
    str | None,
    option(
        f"Whose numbers and parameters of the paper to take: {', '.join(DATASETS)}. By default iwslt14.",
        panel=RUN,
        parser=one_of(*DATASETS),
        metavar="NAME",
    ),
]
LanguageModel = Annotated[
    str | None, option("A language model's folder, for mutual information.", "--lm", panel=MODEL, metavar="FOLDER")
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and on what it runs."""

    model: ModelName = None
    device: Annotated[str | None, option("Where to run: cpu (the default), cuda, mps.", panel=MODEL, metavar="NAME")] = None
    dtype: Annotated[
        str | None, option(f"{', '.join(DTYPES)}. By default fp32.", panel=MODEL, parser=one_of(*DTYPES), metavar="NAME")
    ] = None
    threads: Annotated[int, counted("CPU threads.", panel=MODEL)] = 1


@dataclass(frozen=True)
class SampleOptions:
    """Which lines of a text, in its order."""

    limit: Annotated[int | None, counted("Only the first N lines.", panel=TEXT)] = None
    sample: Annotated[
        int | None, counted("N lines at random; a larger sample of the same seed contains a smaller one.", panel=TEXT)
    ] = None
    seed: Annotated[int, option("For --sample.", panel=TEXT, metavar="N")] = 0


@dataclass(frozen=True)
class ShuffleOptions:
    """Which lines of a text, in any order."""

    limit: Annotated[int | None, counted("Only the first N lines.", panel=TEXT)] = None
    shuffle: Annotated[int | None, option("Take lines at random, with this seed.", panel=TEXT, metavar="SEED")] = None


@dataclass(frozen=True)
class TableOptions:
    """How a table of rows is shown."""

    form: Format = "text"
    as_json: AsJson = False
    metrics: Annotated[
        str, option(f"Of {', '.join(TITLES)}. They need sacrebleu and rouge-score.", panel=OUT, metavar="NAME,...")
    ] = "bleu,chrf"

    def quality(self, tokenize: str) -> QualityMetrics:
        """The metrics; what is not installed is said and left out."""
        try:
            chosen = QualityMetrics([name for name in self.metrics.split(",") if name], tokenize)
        except ValueError as error:
            raise usage(reason(error)) from error
        for line in chosen.left_out:
            say(line)
        return chosen


def numbers(text: str, option: str = "--beam") -> list[int]:
    """Whole numbers from 1 up, separated by commas; each once."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise usage(f"{option} takes numbers separated by commas, got {text!r}") from None
    if min(found) < 1:
        raise usage(f"{option} must be at least 1, got {min(found)}")
    return list(dict.fromkeys(found))
