"""`bestfirst view`: a search as a page, or drawn in the terminal."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from typing import Annotated, Any

from ..page import RecordedTree, read, render
from ..page.recorded_tree import draw
from ..page.trace_file import Events, split
from ..search import HEADER
from ..settings import Decoding
from . import options
from .console import PARTLY, CommandError, Output, open_file, render_rich, say, usage, usage_errors
from .model_choice import ModelChoice, decode_one, decoding_from
from .options import OUTPUT, SEARCH, argument, count, option, utf8

DRAFT_ROWS = 32  # row budget of a search with drafts


@dataclass(frozen=True)
class StepByStep(options.AllSearchOptions):
    """How to search: by default one row a forward pass and nothing scored ahead, so that pops come in the paper's order."""

    row_budget: options.RowBudget = 1


@options.grouped
def view(
    text: Annotated[str | None, argument("[TEXT]", "The text to translate.", utf8)] = None,
    output: Annotated[str | None, option("--output", "-o", metavar="OUT", panel=OUTPUT,
        help="Write the page to this file.")] = None,
    as_text: Annotated[bool, option("--text", panel=OUTPUT, help="Draw surviving hypotheses in the terminal instead.")] = False,
    as_json: Annotated[bool, option("--json", panel=OUTPUT,
        help="Write the trace instead, an event a line, for --trace.")] = False,
    trace: Annotated[str | None, option(metavar="FILE", panel=OUTPUT,
        help="Instead of searching, view what 'bestfirst translate --trace FILE' or 'view --json' recorded.")] = None,
    line: Annotated[int | None, option(kind=count, metavar="N", panel=OUTPUT,
        help="View this input of --trace; by default the first.")] = None,
    *,
    search: StepByStep,
    nbest: Annotated[int, option(kind=count, metavar="N", panel=SEARCH, help="Search for the N best.")] = 1,
    scoring: options.AllScoreOptions,
    choice: ModelChoice,
) -> int:  # fmt: skip
    """See a search: every hypothesis, in the order of the pops.

    Writes one HTML file that needs no network: the prefix tree by length, the
    agenda beside it, a slider that replays the search, and why each hypothesis
    lives or died; beam search with the same settings stands beside it.

    Examples:
      bestfirst view 'Wie melkt man eine Kuh?' -o page.html
      bestfirst view --beam 10 --text 'Guten Morgen!'
      bestfirst view --strategy beam --nbest 3 'Guten Morgen!' -o page.html
      bestfirst translate news.de -o news.en --trace trace.jsonl
      bestfirst view --trace trace.jsonl --line 7 -o page.html

    A trace that is damaged or of another version is shown as far as it can be
    read; what is wrong with it is said here and on the page.

    Exit codes:
      0    the page is written
      1    the text could not be decoded, or the trace is damaged
      2    usage, a missing trace or model folder: nothing is written
      130  interrupted with Ctrl-C
    """
    if (text is None) == (trace is None):
        raise usage("give a text to translate, or a file with --trace; one of them")
    if line is not None and trace is None:
        raise usage("--line chooses an input of a --trace")
    if as_text and as_json:
        raise usage("--text and --json are two ways to write a search; choose one of them")
    groups: tuple[Any, ...] = (search, scoring, choice)
    set_here = [each.name for group in groups for each in fields(group) if getattr(group, each.name) not in (each.default, [])]
    if trace is not None and (set_here or nbest != 1):
        flag = "--" + (set_here or ["nbest"])[0].replace("_", "-")
        raise usage(f"{flag} is for a search, and what is in a --trace was searched already; leave it out")
    if text is not None and not text.strip():
        raise usage("the text is empty")
    settings = {**search.settings(), **scoring.settings()}
    if search.draft not in (None, "none") and search.row_budget == 1:
        settings["row_budget"] = DRAFT_ROWS  # a drafted token needs a row of its own
    decoding = decoding_from(nbest=nbest, **settings)
    if decoding.must_contain:
        raise usage("searches with --must-contain leave no trace to view; leave it out")
    with ExitStack() as stack:
        reads = [] if trace is None else [stack.enter_context(open_file(trace))]
        out = stack.enter_context(closing(Output(output, apart_from=reads)))
        if not as_text and not as_json and output in (None, "-") and out.file.isatty():
            raise usage("a page is for a browser: name a file with -o page.html, or draw it here with --text")
        searches, problems = _read(trace, line) if trace is not None else (_record(choice, decoding, str(text)), [])
        out.begin()
        for said in problems:
            say(said)
        if as_json:
            out.write("".join(json.dumps(event) + "\n" for event in [HEADER, *(e for events in searches for e in events)]))
        elif as_text:
            out.write(render_rich(*draw([RecordedTree(events) for events in searches]), styled=out.file.isatty()))
        else:
            out.write(render(*searches, problems=problems))
    return PARTLY if problems else 0


def _record(choice: ModelChoice, decoding: Decoding, text: str) -> list[Events]:
    """Run the search, and beam search with the same settings for comparison; returns the events of both."""
    model, decoding = choice.check(decoding).load(decoding)
    beam = decoding.using(strategy="beam", method="exact", queue_capacity=None, max_calls=None)
    recorded = []
    for each in [decoding] if decoding.strategy == "beam" else [decoding, beam]:
        result = decode_one(model, text, each, trace=True)
        if result.trace is None:
            raise CommandError(result.message or "the text cannot be decoded")
        recorded += split(result.trace.events)
    return recorded


def _read(path: str, line: int | None) -> tuple[list[Events], list[str]]:
    """The searches of one input in a trace file, and messages about damage."""
    with usage_errors():
        searches, problems = read(path)
    label = next(iter(searches)) if line is None else line
    if label not in searches:
        present = ", ".join(str(each) for each in list(searches)[:10] if each is not None)
        instead = f"there is: {present}" if present else "it is of a text, not of lines; leave out --line"
        raise usage(f"there is no search of line {line} in {path!r}; {instead}")
    return searches[label], problems
