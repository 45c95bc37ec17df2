"""The options that commands share: how to search, and which model to ask on what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..scoring import SCORES
from ..strategies import METHODS, STOPS, STRATEGIES

SEARCH, SCORE, MODEL, OUTPUT, CORPUS = "Search", "Score", "Model", "Output", "Corpora"  # the help's panels
DTYPES = ("fp32", "fp16", "bf16")


def count(value: object) -> int:
    """A whole number from 1 up."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise typer.BadParameter(f"{text!r} is not a whole number from 1 up")
    return int(text)


def number(value: object) -> float:
    """A number. What range it must be in, the score knows."""
    try:
        return float(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number") from None


def one_of(*names: str) -> Callable[[str], str]:
    """One of these names."""

    def choose(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return choose


# -- text in, text out ---------------------------------------------------------------------------------------------------

InputFile = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="Text, one sentence a line, in UTF-8; or JSON lines (.jsonl), or Parquet (.parquet). Any of the first two may be "
        "compressed (.gz, .zst). Without it, or for -, standard input.",
        show_default=False,
    ),
]
OutputFile = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="OUT", help="Write to this file, not to standard output.", rich_help_panel=OUTPUT),
]
NBest = Annotated[
    int,
    typer.Option(
        parser=count,
        metavar="N",
        help="Print the N best of every line (for N > 1), each as 'i ||| text ||| score', i from 0, as Moses and Marian do.",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, one object a line.", rich_help_panel=OUTPUT),
]
Partial = Annotated[
    bool,
    typer.Option("--partial", help="Where nothing finished, print the best unfinished hypothesis.", rich_help_panel=OUTPUT),
]
ShowStats = Annotated[
    bool,
    typer.Option("--stats", help="At the end, print what it cost to standard error.", rich_help_panel=OUTPUT),
]
TraceFile = Annotated[
    str | None,
    typer.Option(
        metavar="OUT",
        help="Write every event of every search (push, pop, prune, ...) to this file, a JSON object a line, for 'bestfirst view "
        "--trace'. With --row-budget 1 they come in the paper's order.",
        rich_help_panel=OUTPUT,
    ),
]

Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace an output that exists and is of another job.", rich_help_panel=OUTPUT),
]
RetryFailed = Annotated[
    bool,
    typer.Option("--retry-failed", help="From file to file: do lines that failed before once more.", rich_help_panel=OUTPUT),
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        parser=one_of("text", "jsonl", "parquet"),
        metavar="NAME",
        help="text, jsonl or parquet. By default as FILE is named.",
        rich_help_panel=CORPUS,
    ),
]
OutputFormat = Annotated[
    str | None,
    typer.Option(
        parser=one_of("text", "jsonl", "parquet"),
        metavar="NAME",
        help="text, jsonl or parquet: the last two have all fields of the input and the translation. By default as OUT is named.",
        rich_help_panel=CORPUS,
    ),
]
InputField = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="The field (or column) of a JSON line or Parquet row to translate.", rich_help_panel=CORPUS
    ),
]
OutputField = Annotated[
    str, typer.Option(metavar="NAME", help="The field (or column) its translation goes into.", rich_help_panel=CORPUS)
]
ShardLines = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="Lines that are translated and kept together: at most so much work is done again after a crash. By default 500.",
        rich_help_panel=CORPUS,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Let Ray do it: on the cluster at this address (auto, HOST:PORT, ray://HOST:PORT), or without one on this machine.",
        rich_help_panel=CORPUS,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="With --ray: the workers, each with a model and --threads CPUs (by default 1) or a GPU. By default all that fit.",
        rich_help_panel=CORPUS,
    ),
]

# -- the search ----------------------------------------------------------------------------------------------------------

Beam = Annotated[
    int,
    typer.Option("--beam", "-k", parser=count, metavar="K", help="Hypotheses of each length to keep.", rich_help_panel=SEARCH),
]
StrategyName = Annotated[
    str,
    typer.Option(
        parser=one_of(*STRATEGIES),
        metavar="NAME",
        help=f"What to expand first: {', '.join(STRATEGIES)}. The last three prune nothing: give them --max-calls.",
        rich_help_panel=SEARCH,
    ),
]
FinishedRule = Annotated[
    str,
    typer.Option(
        parser=one_of("keep", "leave"),
        metavar="RULE",
        help="Whether finished hypotheses keep their slot on the beam (the paper, Marian) or leave it (Hugging Face, fairseq).",
        rich_help_panel=SEARCH,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="Most tokens to generate, end of sentence included. By default the model's own limit, else 2 |input| + 10.",
        rich_help_panel=SEARCH,
    ),
]
MaxCalls = Annotated[
    int | None,
    typer.Option(parser=count, metavar="N", help="Give up on an input after so many model calls.", rich_help_panel=SEARCH),
]
RowBudget = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="Rows in one forward pass, shared by the lines in flight: larger is faster until the machine is full. "
        "Changes no result.",
        rich_help_panel=SEARCH,
    ),
]
QueueCapacity = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        help="Memory-reduced search: at most N hypotheses wait. What it must drop costs the guarantee of exactness.",
        rich_help_panel=SEARCH,
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Make every output start with this text.", rich_help_panel=SEARCH),
]
Stop = Annotated[
    str | None,
    typer.Option(
        parser=one_of(*STOPS),
        metavar="RULE",
        help=f"When to stop, if not when the answer is proven: {', '.join(STOPS)}. Those other than hf-false and hf-never go "
        "with --strategy beam.",
        rich_help_panel=SEARCH,
    ),
]
PatienceFactor = Annotated[
    float | None,
    typer.Option("--patience", parser=number, metavar="F", help="For --stop patience: stop at F * K.", rich_help_panel=SEARCH),
]

# -- the score -----------------------------------------------------------------------------------------------------------

ScoreName = Annotated[
    str,
    typer.Option(
        "--score",
        parser=one_of(*SCORES),
        metavar="NAME",
        help=f"What a hypothesis is worth: {', '.join(SCORES)}. Each needs the parameters that name it below.",
        rich_help_panel=SCORE,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        parser=one_of(*METHODS),
        metavar="NAME",
        help="How to search with a score that can rise: exact (beam search's answer, proven), or by the paper's stopping "
        "criterion (stopping) or heuristic (heuristic), which promise nothing.",
        rich_help_panel=SCORE,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="A",
        help="length-normalized: divide by N^A, N tokens. gnmt: by ((5 + N) / 6)^A.",
        rich_help_panel=SCORE,
    ),
]
Beta = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="B",
        help="length-reward: add B for every token. bounded-length-reward: for the first R * |input|.",
        rich_help_panel=SCORE,
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(parser=number, metavar="R", help="bounded-length-reward: see --beta.", rich_help_panel=SCORE),
]
LanguageModel = Annotated[
    str | None,
    typer.Option(
        "--lm",
        metavar="FOLDER",
        help="mutual-information: the language model, with the translator's target vocabulary.",
        rich_help_panel=SCORE,
    ),
]
Weight = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="W",
        help="mutual-information: subtract W times the language model's log-probability.",
        rich_help_panel=SCORE,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="E",
        help="mutual-information: the least probability to count with, at every token.",
        rich_help_panel=SCORE,
    ),
]
WholeSequence = Annotated[
    bool,
    typer.Option(
        "--whole-sequence", help="mutual-information: --epsilon is for the whole output; not exact.", rich_help_panel=SCORE
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(parser=number, metavar="T", help="logprob: divide the logits by T.", rich_help_panel=SCORE),
]

# -- the model -----------------------------------------------------------------------------------------------------------

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER",
        help="A Hugging Face model: a folder, or a name for transformers to find. By default the German-English translator "
        "that comes with bestfirst.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where to run it: cpu (the default), cuda, cuda:1, mps.", rich_help_panel=MODEL),
]
Dtype = Annotated[
    str | None,
    typer.Option(parser=one_of(*DTYPES), metavar="NAME", help=f"{', '.join(DTYPES)}. By default fp32.", rich_help_panel=MODEL),
]
Threads = Annotated[
    int | None,
    typer.Option(parser=count, metavar="N", help="CPU threads. By default torch's own choice.", rich_help_panel=MODEL),
]
SourceLang = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Language of the input, for a multilingual model (deu_Latn).", rich_help_panel=MODEL),
]
TargetLang = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Language of the output, for a multilingual model (eng_Latn).", rich_help_panel=MODEL),
]
