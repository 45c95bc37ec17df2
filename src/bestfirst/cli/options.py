"""The options that commands share, each declared once: what may stand after it, and what the help says of it; and groups of
options, as dataclasses, which `grouped` makes options of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from ..scoring import SCORES
from ..search import METHODS
from ..strategies import STOPS, STRATEGIES, WITH_FACTOR
from .console import Command, reports, usage

SEARCH, SCORE, MODEL, OUTPUT, CORPUS = "Search", "Score", "Model", "Output", "Corpora"  # the help's panels
DTYPES = ("fp32", "fp16", "bf16", "int8")
FORMATS = ("text", "jsonl", "parquet")
LARGEST = 1e9  # of a parameter of a score; far beyond any use, and far from where numbers end
STEEPEST = 50.0  # exponent of a length: a million tokens to this power is still a number


def option(*flags: str, kind: Any = None, metavar: str | None = None, panel: str | None = None, help: str, **more: Any) -> Any:  # noqa: A002
    """An option, for `Annotated`. Without `flags` it is named as its parameter; `kind` turns its text into a value."""
    return typer.Option(*flags, parser=kind, metavar=metavar, rich_help_panel=panel, help=help, **more)


def asked(default: Any, metavar: str | None, kind: Any, help: str, *flags: str) -> Any:  # noqa: A002
    """An option as a field of a group, whose `panel` it belongs to in the help."""
    return field(default=default, metadata={"flags": flags, "about": {"metavar": metavar, "kind": kind, "help": help}})


def argument(metavar: str, help: str, kind: Any = None) -> Any:  # noqa: A002
    return typer.Argument(metavar=metavar, help=help, parser=kind, show_default=False)


def grouped(command: Command) -> Command:
    """A command that reports what ended it. A parameter whose type is a dataclass becomes an option for each of its fields; the
    function is given the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            for each in fields(groups[name]):
                hint = types[each.name]
                if each.metadata:
                    hint = Annotated[hint, option(*each.metadata["flags"], panel=groups[name].panel, **each.metadata["about"])]
                parameters.append((each.name, each.default, hint))
        else:
            parameters.append((name, parameter.default, hints[name]))

    @wraps(command)
    def run(**given: Any) -> int:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        return command(**given)

    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for name, default, kind in parameters]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return reports(run)  # type: ignore[return-value]  # here: click would take some errors for its own


# -- what may stand after an option --------------------------------------------------------------------------------------


def count(value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise typer.BadParameter(f"{text!r} is not a whole number from 1 up")
    return int(text)


def whole(value: object) -> int:
    return 0 if str(value) == "0" else count(value)


def length(value: object) -> int | str:
    text = str(value)
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)x", text, re.ASCII) and 0 < float(text[:-1]) <= LARGEST:
        return text
    try:
        return count(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}, or a multiple of the input's length such as 2x") from None


def thread_count(value: object) -> int:
    """As many threads as can be of use on this machine, or a few more."""
    found, cores = count(value), os.cpu_count() or 1
    if found > 16 * cores:
        raise typer.BadParameter(f"'{found}' is too many for this machine, which has {cores} CPUs; use that number or fewer")
    return found


def number(value: object, largest: float = LARGEST) -> float:
    """A number. What else it must be, the score knows."""
    try:
        found = float(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number") from None
    if not abs(found) <= largest:
        raise typer.BadParameter(f"{value!r} is out of range; use a number from {-largest:g} to {largest:g}")
    return found


def exponent(value: object) -> float:
    """A power that lengths can be raised to."""
    return number(value, STEEPEST)


def words(value: object) -> str:
    """A text that is one: what a shell hands on need not be."""
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!r} is not valid UTF-8; check the encoding of your terminal or script") from None
    return text


def one_of(*names: str) -> Callable[[str], str]:
    def choose(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return choose


def given(**named: Any) -> dict[str, Any]:
    """The options that are on the command line; 0 is an answer."""
    return {name: value for name, value in named.items() if value is not None and value is not False}


# fmt: off

# -- options that stand alone --------------------------------------------------------------------------------------------

FILE = ("in UTF-8; or JSON lines (.jsonl), or Parquet (.parquet). Any of the first two may be compressed (.gz, .zst). "
    "Without it, or for -, standard input.")
InputFile = Annotated[str | None, argument("FILE", f"Text, one sentence a line, {FILE}")]
PromptFile = Annotated[str | None, argument("FILE", f"Prompts, one a line, {FILE}")]
OutputFile = Annotated[str | None, option("--output", "-o", metavar="OUT", panel=OUTPUT,
    help="Write to this file, not to standard output.")]
AsJson = Annotated[bool, option("--json", panel=OUTPUT, help="Print JSON, one object a line.")]
Partial = Annotated[bool, option("--partial", panel=OUTPUT,
    help="Where nothing finished, print the best unfinished hypothesis; where --max-calls did not suffice, take what there is.")]
FinishedRule = Annotated[str, option(kind=one_of("keep", "leave"), metavar="RULE", panel=SEARCH,
    help="Whether finished hypotheses keep their slot on the beam (the paper) or leave it (Hugging Face, fairseq).")]
MaxLength = Annotated[Any, option(kind=length, metavar="N", panel=SEARCH,
    help="Most tokens to generate, end of sentence included; 2x: twice as many as the input has. By default the model's own "
    "limit, else 2 |input| + 10.")]
RowBudget = Annotated[int | None, option(kind=count, metavar="N", panel=SEARCH,
    help="Rows in one forward pass, shared by the lines in flight: more is faster until the machine is full. Changes no result.")]
Draft = Annotated[str | None, option(kind=words, metavar="WHO", panel=SEARCH,
    help="Who guesses how outputs go on, so that a forward pass scores several tokens of one: source (what the input says "
    "there), outputs (what was written before), model:FOLDER (a smaller model), none. Changes no result.")]
Prefix = Annotated[str | None, option(kind=words, metavar="TEXT", panel=SEARCH, help="Make every output start with this text.")]
ModelName = Annotated[str | None, option("--model", "-m", metavar="FOLDER", panel=MODEL,
    help="A Hugging Face model: a folder, or a name for transformers to find. By default the German-English translator that "
    "comes with bestfirst.")]
Chat = Annotated[bool, option("--chat", panel=MODEL,
    help="Prompts are what is said to a chat model: its own chat template makes of it what it goes on with.")]

# -- groups of options ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineOptions:
    """What is written for each line, and what beside."""

    panel: ClassVar = OUTPUT
    nbest: int = asked(1, "N", count,
        "Print the N best of every line (for N > 1), each as 'i ||| text ||| score', i from 0, as Moses and Marian do.")
    as_json: AsJson = False
    stats: bool = asked(False, None, None, "At the end, print what it cost to standard error.", "--stats")
    trace: str | None = asked(None, "OUT", None,
        "Write every event of every search (push, pop, prune, ...) to this file, a JSON object a line, for 'bestfirst view "
        "--trace'. With --row-budget 1 they come in the paper's order.")
    overwrite: bool = asked(False, None, None, "Replace an output that exists and is of another job.", "--overwrite")
    retry_failed: bool = asked(False, None, None, "From file to file: do lines that failed before once more.", "--retry-failed")


@dataclass(frozen=True)
class CorpusOptions:
    """What a corpus looks like, and how a job of it is cut up."""

    panel: ClassVar = CORPUS
    input_format: str | None = asked(None, "NAME", one_of(*FORMATS), "text, jsonl or parquet. By default as FILE is named.")
    output_format: str | None = asked(None, "NAME", one_of(*FORMATS),
        "text, jsonl or parquet: the last two have all fields of the input and the translation. By default as OUT is named.")
    input_field: str = asked("text", "NAME", None, "The field (or column) of a JSON line or Parquet row to translate.")
    output_field: str = asked("translation", "NAME", None, "The field (or column) its translation goes into.")
    shard_lines: int | None = asked(None, "N", count,
        "Lines that are translated and kept together: at most so much work is done again after a crash. By default 500.")
    ray: str | None = asked(None, "[ADDRESS]", None,
        "Let Ray do it: on the cluster at this address (auto, HOST:PORT, ray://HOST:PORT), or without one on this machine.")
    workers: int | None = asked(None, "N", count,
        "With --ray: the workers, each with a model and --threads CPUs (by default 1) or a GPU. By default all that fit.")


@dataclass(frozen=True)
class SearchOptions:
    """How to search: what every command can be asked."""

    panel: ClassVar = SEARCH
    beam: int = asked(5, "K", count, "Hypotheses of each length to keep.", "--beam", "-k")
    finished: FinishedRule = "leave"
    max_length: MaxLength = None

    def settings(self) -> dict[str, Any]:
        """As `Decoding` has them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class AllSearchOptions(SearchOptions):
    """How to search, with whatever strategy."""

    strategy: str = asked("best-first", "NAME", one_of(*STRATEGIES),
        f"What to expand first: {', '.join(STRATEGIES)}. The last three prune nothing: give them --max-calls.")
    prefix: Prefix = None
    allowed: str | None = asked(None, "WHAT", words,
        "Write only what is in this file: a text, one output a line, or a trie saved by bestfirst.Trie; --json tells the "
        "number of the line that was found, from 0. Or only what is of a form: regex:PATTERN, schema:FILE (a JSON schema), "
        "grammar:FILE (context-free, as Lark writes them).")
    must_contain: list[str] | None = asked(None, "WORD", None,  # noqa: RUF009
        "Every output must contain this word; 'a|b': one of these. May be given several times, for words in any order.")
    max_calls: int | None = asked(None, "N", count, "Give up on an input after so many model calls.")
    row_budget: RowBudget = None
    draft: Draft = None
    queue_capacity: int | None = asked(None, "N", count,
        "Memory-reduced search: at most N hypotheses wait. What it must drop costs the guarantee of exactness.")
    stop: str | None = asked(None, "RULE", one_of(*STOPS),
        f"When to stop, if not when the answer is proven: {', '.join(STOPS)}. opennmt, "
        "shrinking and huang go with --strategy beam; so does patience where --finished is keep.")
    patience: float | None = asked(None, "F", number, "For --stop patience and ctranslate2: stop at F * K.")

    def settings(self) -> dict[str, Any]:
        named = super().settings()
        factor = named.pop("patience")
        if factor is not None and self.stop not in WITH_FACTOR:
            raise usage("--patience goes with --stop patience or ctranslate2")
        named["must_contain"] = [words(each).split("|") for each in self.must_contain or ()]
        return {**named, "stop_options": given(factor=factor)}


@dataclass(frozen=True)
class CompletionOptions(SearchOptions):
    """How to search for what a language model writes, and what ends it."""

    max_length: Any = asked(128, "N", length,  # noqa: RUF009
        "Most tokens to write, end of sequence included; 2x: twice as many as the prompt has.")
    min_length: int = asked(0, "N", whole, "Tokens to write before the end of sequence may come.")
    stop: list[str] | None = asked(None, "TEXT", None,  # noqa: RUF009
        "End an output where this text, or special token, comes; it is not printed. May be given several times; "
        "\\n stands for a line break.")
    strategy: str = asked("best-first", "NAME", one_of(*STRATEGIES[:3]), f"What to expand first: {', '.join(STRATEGIES[:3])}.")
    prefix: Prefix = None
    row_budget: RowBudget = None
    draft: Draft = None

    def settings(self) -> dict[str, Any]:
        named = super().settings()
        strings = [words(text).replace("\\n", "\n").replace("\\t", "\t") for text in named.pop("stop") or ()]
        return {**named, "stop_strings": tuple(strings)}


@dataclass(frozen=True)
class CompletionCorpora(CorpusOptions):
    """What a corpus of prompts looks like."""

    output_field: str = asked("completion", "NAME", None, "The field (or column) that what is written goes into.")


@dataclass(frozen=True)
class ScoreOptions:
    """What a hypothesis is worth."""

    panel: ClassVar = SCORE
    score: str = asked("logprob", "NAME", one_of(*SCORES),
        f"What a hypothesis is worth: {', '.join(SCORES)}. Each needs the parameters that name it below.")
    length_penalty: float | None = asked(None, "A", exponent,
        "Short for --score length-normalized --alpha A, as in Hugging Face and CTranslate2; 0: none.")
    temperature: float | None = asked(None, "T", number, "logprob: divide the logits by T.")
    alpha: float | None = asked(None, "A", exponent, "length-normalized: divide by N^A, N tokens. gnmt: by ((5 + N) / 6)^A.")
    beta: float | None = asked(None, "B", number,
        "length-reward: add B for every token. bounded-length-reward: for the first R * |input|.")
    ratio: float | None = asked(None, "R", number, "bounded-length-reward: see --beta.")
    lm: str | None = asked(None, "FOLDER", None,
        "mutual-information: the language model, with the translator's target vocabulary.")
    weight: float | None = asked(None, "W", number, "mutual-information: subtract W times the language model's log-probability.")
    epsilon: float | None = asked(None, "E", number, "mutual-information: the least probability to count with, at every token.")

    def settings(self) -> dict[str, Any]:
        """As `Decoding` has them: all but three are parameters of the score, by the names that it knows them by."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        own: dict[str, Any] = {name: named.pop(name) for name in ("score", "length_penalty", "method") if name in named}
        return {**own, "score_options": given(language_model=named.pop("lm"), **named)}


@dataclass(frozen=True)
class AllScoreOptions(ScoreOptions):
    """What a hypothesis is worth, and how to search where no beam search's answer is promised."""

    method: str = asked("exact", "NAME", one_of(*METHODS),
        "How to search with a score that can rise: exact (beam search's answer, proven), or by the paper's "
        "stopping criterion (stopping) or heuristic (heuristic), which promise nothing.")
    whole_sequence: bool = asked(False, None, None,
        "mutual-information: --epsilon is for the whole output; not exact.", "--whole-sequence")


SETTINGS = (AllSearchOptions, CompletionOptions, AllScoreOptions)
