"""The options that commands share, each declared once with its parser and help text. Options that belong together are the fields
of a dataclass (a group); `grouped` turns each group among a command's parameters into single options and back."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from ..scoring import LARGEST, SCORES
from ..search import METHODS
from ..strategies import STOPS, STRATEGIES, WITH_FACTOR
from .console import Command, reports, usage

SEARCH, SCORE, MODEL, OUTPUT, CORPUS = "Search", "Score", "Model", "Output", "Corpora"  # panels of the help
DTYPES = ("fp32", "fp16", "bf16", "int8")
FORMATS = ("text", "jsonl", "parquet")
MOST_DIGITS = 15  # of a count: it, and what is computed with it, fits into 64 bits
STEEPEST = 50.0  # largest exponent of a length: a million tokens to this power does not overflow


def option(*flags: str, kind: Any = None, metavar: str | None = None, panel: str | None = None, help: str, **more: Any) -> Any:  # noqa: A002
    """An option, for `Annotated`. Without `flags` it is named after its parameter; `kind` parses its value."""
    return typer.Option(*flags, parser=kind, metavar=metavar, rich_help_panel=panel, help=help, **more)


def flag(default: Any, metavar: str | None, kind: Any, help: str, *flags: str) -> Any:  # noqa: A002
    """An option as a field of a group; the help shows it in the group's `panel`."""
    return field(default=default, metadata={"flags": flags, "about": {"metavar": metavar, "kind": kind, "help": help}})


def argument(metavar: str, help: str, kind: Any = None) -> Any:  # noqa: A002
    return typer.Argument(metavar=metavar, help=help, parser=kind, show_default=False)


def grouped(command: Command) -> Command:
    """Decorate a command: a parameter whose type is a dataclass becomes an option for each of its fields, and errors are reported
    in one line (`console.reports`)."""
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
    def run(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        return command(**values)

    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for name, default, kind in parameters]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return reports(run)  # type: ignore[return-value]  # inside click, which would take some errors for its own


# -- parsers of option values: each raises BadParameter ------------------------------------------------------------------


def count(value: object) -> int:
    """A whole number from 1 up."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise typer.BadParameter(f"{text!r} is not a whole number from 1 up")
    if len(text) > MOST_DIGITS:
        raise typer.BadParameter(f"a number of {len(text)} digits is out of range; use {MOST_DIGITS} at most")
    return int(text)


def whole_number(value: object) -> int:
    """A whole number from 0 up."""
    return 0 if str(value) == "0" else count(value)


def length(value: object) -> int | str:
    """A number of tokens, or a multiple of the input's length such as "2x"."""
    text = str(value)
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)x", text, re.ASCII) and 0 < float(text[:-1]) <= LARGEST:
        return text
    try:
        return count(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}, or a multiple of the input's length such as 2x") from None


def thread_count(value: object) -> int:
    """A number of threads, at most 16 for each CPU."""
    threads, cores = count(value), os.cpu_count() or 1
    if threads > 16 * cores:
        raise typer.BadParameter(f"'{threads}' is too many for this machine, which has {cores} CPUs; use that number or fewer")
    return threads


def number(value: object, largest: float = LARGEST) -> float:
    """A number with a limited magnitude. The score checks its own parameters further."""
    try:
        parsed = float(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number") from None
    if not abs(parsed) <= largest:
        raise typer.BadParameter(f"{value!r} is out of range; use a number from {-largest:g} to {largest:g}")
    return parsed


def exponent(value: object) -> float:
    """An exponent for lengths."""
    return number(value, STEEPEST)


def utf8(value: object) -> str:
    """A text in valid UTF-8, which a shell does not guarantee."""
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!r} is not valid UTF-8; check the encoding of your terminal or script") from None
    return text


def one_of(*names: str) -> Callable[[str], str]:
    """A parser for one of these names."""

    def choose(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return choose


def drop_unset(**named: Any) -> dict[str, Any]:
    """The options that were set: neither None nor False. 0 counts as set."""
    return {name: value for name, value in named.items() if value is not None and value is not False}


# fmt: off

# -- single options ------------------------------------------------------------------------------------------------------

FILE = ("in UTF-8; or JSON lines (.jsonl), or Parquet (.parquet). Any of the first two may be compressed (.gz, .zst). "
    "Without it, or for -, standard input.")
InputFile = Annotated[str | None, argument("FILE", f"Text, one sentence a line, {FILE}")]
PromptFile = Annotated[str | None, argument("FILE", f"Prompts, one a line, {FILE}")]
OutputFile = Annotated[str | None, option("--output", "-o", metavar="OUT", panel=OUTPUT,
    help="Write to this file, not to standard output.")]
AsJson = Annotated[bool, option("--json", panel=OUTPUT, help="Print JSON, one object a line.")]
Partial = Annotated[bool, option("--partial", panel=OUTPUT,
    help="If no hypothesis finished, print the best unfinished one; if --max-calls ran out, print the best found so far.")]
FinishedRule = Annotated[str, option(kind=one_of("keep", "leave"), metavar="RULE", panel=SEARCH,
    help="Whether finished hypotheses keep their slot on the beam (the paper) or leave it (Hugging Face, fairseq).")]
MaxLength = Annotated[Any, option(kind=length, metavar="N", panel=SEARCH,
    help="Most tokens to generate, end of sentence included; 2x: twice as many as the input has. By default the model's own "
    "limit, else 2 |input| + 10.")]
RowBudget = Annotated[int | None, option(kind=count, metavar="N", panel=SEARCH,
    help="Rows in one forward pass, shared by the lines in flight: more is faster until the machine is full. Changes no result.")]
Draft = Annotated[str | None, option(kind=utf8, metavar="WHO", panel=SEARCH,
    help="How to draft the next tokens, so that one forward pass scores several of them: source (from the input), outputs (from "
    "earlier outputs), model:FOLDER (by a smaller model), none. Changes no result.")]
Prefix = Annotated[str | None, option(kind=utf8, metavar="TEXT", panel=SEARCH, help="Make every output start with this text.")]
HUGGING_FACE = "A Hugging Face model: a folder, or a name for transformers to find."
ModelName = Annotated[str | None, option("--model", "-m", metavar="FOLDER", panel=MODEL,
    help=f"{HUGGING_FACE} By default the German-English translator that comes with bestfirst.")]
LanguageModelName = Annotated[str | None, option("--model", "-m", metavar="FOLDER", panel=MODEL,
    help=f"{HUGGING_FACE} It must be given.")]
Chat = Annotated[bool, option("--chat", panel=MODEL,
    help="Prompts are messages to a chat model, formatted by its own chat template.")]

# -- groups of options ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineOptions:
    """What is written for each line, and other outputs."""

    panel: ClassVar = OUTPUT
    nbest: int = flag(1, "N", count,
        "Print the N best of every line (for N > 1), each as 'i ||| text ||| score', i from 0, as Moses and Marian do.")
    as_json: AsJson = False
    stats: bool = flag(False, None, None, "At the end, print the costs to standard error.", "--stats")
    trace: str | None = flag(None, "OUT", None,
        "Write every event of every search (push, pop, prune, ...) to this file, a JSON object a line, for 'bestfirst view "
        "--trace'. With --row-budget 1 they come in the paper's order.")
    overwrite: bool = flag(False, None, None, "Replace an existing output of another job.", "--overwrite")
    retry_failed: bool = flag(False, None, None, "From file to file: try lines that failed before again.", "--retry-failed")


@dataclass(frozen=True)
class CorpusOptions:
    """The format of a corpus, and how a job is split into shards and workers."""

    panel: ClassVar = CORPUS
    input_format: str | None = flag(None, "NAME", one_of(*FORMATS), "text, jsonl or parquet. By default as FILE is named.")
    output_format: str | None = flag(None, "NAME", one_of(*FORMATS),
        "text, jsonl or parquet: the last two keep all fields of the input and add the translation. By default as OUT is named.")
    input_field: str = flag("text", "NAME", None, "The field (or column) of a JSON line or Parquet row to translate.")
    output_field: str = flag("translation", "NAME", None, "The field (or column) its translation goes into.")
    shard_lines: int | None = flag(None, "N", count,
        "Lines that are translated and saved together: after a crash, at most this many are done again. By default 500, on a GPU "
        "4,000.")
    ray: str | None = flag(None, "[ADDRESS]", None,
        "Run on Ray: on the cluster at this address (auto, HOST:PORT, ray://HOST:PORT), or without one on this machine.")
    workers: int | None = flag(None, "N", count,
        "With --ray: the workers, each with a model and --threads CPUs (by default 1) or a GPU. By default all that fit.")


@dataclass(frozen=True)
class SearchOptions:
    """How to search: the options of every command."""

    panel: ClassVar = SEARCH
    beam: int = flag(5, "K", count, "Hypotheses of each length to keep.", "--beam", "-k")
    finished: FinishedRule = "leave"
    max_length: MaxLength = None

    def settings(self) -> dict[str, Any]:
        """As arguments of `Decoding`."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class AllSearchOptions(SearchOptions):
    """How to search, with any strategy."""

    strategy: str = flag("best-first", "NAME", one_of(*STRATEGIES),
        f"What to expand first: {', '.join(STRATEGIES)}. The last three prune nothing: give them --max-calls.")
    prefix: Prefix = None
    allowed: str | None = flag(None, "WHAT", utf8,
        "Write only outputs in this file: a text, one output a line, or a trie saved by bestfirst.Trie; --json tells the "
        "number of the output's line, from 0. Or only outputs of a form: regex:PATTERN, schema:FILE (a JSON schema), "
        "grammar:FILE (context-free, as Lark writes them).")
    must_contain: list[str] | None = flag(None, "WORD", None,  # noqa: RUF009
        "Every output must contain this word; 'a|b': one of these. May be given several times, for words in any order.")
    max_calls: int | None = flag(None, "N", count, "Give up on an input after this many model calls.")
    row_budget: RowBudget = None
    draft: Draft = None
    queue_capacity: int | None = flag(None, "N", count,
        "Memory-reduced search: keep at most N hypotheses in the queue. If it has to drop some, exactness is not guaranteed.")
    stop: str | None = flag(None, "RULE", one_of(*STOPS),
        f"When to stop, if not when the answer is proven: {', '.join(STOPS)}. opennmt, "
        "shrinking and huang go with --strategy beam; so does patience where --finished is keep.")
    patience: float | None = flag(None, "F", number, "For --stop patience and ctranslate2: stop at F * K.")

    def settings(self) -> dict[str, Any]:
        named = super().settings()
        factor = named.pop("patience")
        if factor is not None and self.stop not in WITH_FACTOR:
            raise usage("--patience goes with --stop patience or ctranslate2")
        named["must_contain"] = [utf8(each).split("|") for each in self.must_contain or ()]
        return {**named, "stop_options": drop_unset(factor=factor)}


@dataclass(frozen=True)
class CompletionOptions(SearchOptions):
    """How to search for a completion by a language model, and what ends it."""

    max_length: Any = flag(128, "N", length,  # noqa: RUF009
        "Most tokens to write, end of sequence included; 2x: twice as many as the prompt has.")
    min_length: int = flag(0, "N", whole_number, "Tokens to write before the end of sequence may come.")
    stop: list[str] | None = flag(None, "TEXT", None,  # noqa: RUF009
        "End an output at this text or special token, which is not printed. May be given several times; "
        "\\n stands for a line break.")
    strategy: str = flag("best-first", "NAME", one_of(*STRATEGIES[:3]), f"What to expand first: {', '.join(STRATEGIES[:3])}.")
    prefix: Prefix = None
    row_budget: RowBudget = None
    draft: Draft = None

    def settings(self) -> dict[str, Any]:
        named = super().settings()
        strings = [utf8(text).replace("\\n", "\n").replace("\\t", "\t") for text in named.pop("stop") or ()]
        return {**named, "stop_strings": tuple(strings)}


@dataclass(frozen=True)
class CompletionCorpora(CorpusOptions):
    """The format of a corpus of prompts."""

    output_field: str = flag("completion", "NAME", None, "The field (or column) that the completion goes into.")


@dataclass(frozen=True)
class ScoreOptions:
    """The score of a hypothesis."""

    panel: ClassVar = SCORE
    score: str = flag("logprob", "NAME", one_of(*SCORES),
        f"The score of a hypothesis: {', '.join(SCORES)}. Each needs the parameters that name it below.")
    length_penalty: float | None = flag(None, "A", exponent,
        "Short for --score length-normalized --alpha A, as in Hugging Face and CTranslate2; 0: none.")
    temperature: float | None = flag(None, "T", number, "logprob: divide the logits by T.")
    alpha: float | None = flag(None, "A", exponent, "length-normalized: divide by N^A, N tokens. gnmt: by ((5 + N) / 6)^A.")
    beta: float | None = flag(None, "B", number,
        "length-reward: add B for every token. bounded-length-reward: for the first R * |input|.")
    ratio: float | None = flag(None, "R", number, "bounded-length-reward: see --beta.")
    lm: str | None = flag(None, "FOLDER", None,
        "mutual-information: the language model, with the translator's target vocabulary.")
    weight: float | None = flag(None, "W", number, "mutual-information: subtract W times the language model's log-probability.")
    epsilon: float | None = flag(None, "E", number, "mutual-information: the least probability to count with, at every token.")

    def settings(self) -> dict[str, Any]:
        """As arguments of `Decoding`: all but three are parameters of the score, under its own names for them."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        own: dict[str, Any] = {name: named.pop(name) for name in ("score", "length_penalty", "method") if name in named}
        return {**own, "score_options": drop_unset(language_model=named.pop("lm"), **named)}


@dataclass(frozen=True)
class AllScoreOptions(ScoreOptions):
    """The score of a hypothesis, and the paper's search methods without a guarantee."""

    method: str = flag("exact", "NAME", one_of(*METHODS),
        "How to search with a score that can rise: exact (beam search's answer, proven), or by the paper's "
        "stopping criterion (stopping) or heuristic (heuristic), which promise nothing.")
    whole_sequence: bool = flag(False, None, None,
        "mutual-information: --epsilon is for the whole output; not exact.", "--whole-sequence")


SETTINGS = (AllSearchOptions, CompletionOptions, AllScoreOptions)
