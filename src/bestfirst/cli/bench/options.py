"""The options that bench's commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...bench.metrics import METRICS
from ...bench.paper import DATASETS
from ..failure import usage
from ..options import DTYPES, MODEL, count, one_of

TEXT, RUN, OUT = "Text", "Run", "Output"  # the help's panels
FORMATS = ("text", "markdown", "latex", "csv")

Source = Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="SOURCE")]
SomeSource = Annotated[
    Path | None, typer.Argument(help="Text to translate, a sentence a line.", metavar="[SOURCE]", show_default=False)
]
Reference = Annotated[
    Path | None,
    typer.Argument(help="Its translation, line by line, for BLEU and chrF.", metavar="[REFERENCE]", show_default=False),
]
Beams = Annotated[str, typer.Option("--beam", "-k", metavar="K,...", help="Beam sizes.", rich_help_panel=RUN)]
Limit = Annotated[int | None, typer.Option(parser=count, metavar="N", help="Only the first N lines.", rich_help_panel=TEXT)]
Sample = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="N lines at random; a larger sample of the same seed contains a smaller one.",
        rich_help_panel=TEXT,
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="For --sample.", rich_help_panel=TEXT)]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        metavar="FILE",
        help="Where rows are saved as they are done, a JSON object a line. What is there is not done again. By default "
        "bench-MODEL.jsonl.",
        rich_help_panel=OUT,
        show_default=False,
    ),
]
RowFiles = Annotated[list[Path], typer.Argument(help="Files of rows, as run and paper save them.", metavar="ROWS...")]
TextName = Annotated[
    str | None, typer.Option("--text", metavar="NAME", help="Only rows of this text, by its file's name.", show_default=False)
]
Format = Annotated[
    str,
    typer.Option("--format", parser=one_of(*FORMATS), metavar="NAME", help=f"{', '.join(FORMATS)}.", rich_help_panel=OUT),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, an object for each line of a table.", rich_help_panel=OUT)]
Metric = Annotated[
    str,
    typer.Option(
        "--metrics", metavar="NAME,...", help=f"Of {', '.join(METRICS)}. They need bestfirst[bench].", rich_help_panel=OUT
    ),
]
Tokenize = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="sacrebleu's tokenizer for BLEU: none for text that is tokenized already, 13a for text that is not.",
        rich_help_panel=OUT,
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        parser=one_of(*DATASETS),
        metavar="NAME",
        help=f"Whose numbers and parameters of the paper to take: {', '.join(DATASETS)}. By default iwslt14.",
        rich_help_panel=RUN,
        show_default=False,
    ),
]
LanguageModel = Annotated[
    str | None,
    typer.Option("--lm", metavar="FOLDER", help="A language model's folder, for mutual information.", rich_help_panel=MODEL),
]
Threads = Annotated[int, typer.Option(parser=count, metavar="N", help="CPU threads.", rich_help_panel=MODEL)]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where to run: cpu (the default), cuda, mps.", rich_help_panel=MODEL)
]
Dtype = Annotated[
    str | None,
    typer.Option(parser=one_of(*DTYPES), metavar="NAME", help=f"{', '.join(DTYPES)}. By default fp32.", rich_help_panel=MODEL),
]


def numbers(text: str, option: str = "--beam") -> list[int]:
    """Whole numbers from 1 up, separated by commas; each once."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise usage(f"{option} takes numbers separated by commas, got {text!r}") from None
    if min(found) < 1:
        raise usage(f"{option} must be at least 1, got {min(found)}")
    return list(dict.fromkeys(found))
