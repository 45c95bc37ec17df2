"""`bestfirst view`: a search as a page, or drawn in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..page import Recording, read, render
from ..page.reading import Events, split
from ..page.text import draw
from ..search import HEADER
from . import options
from .failure import PARTLY, CommandError, reason, reports, say, usage
from .groups import grouped
from .output import Output
from .settings import Decoding, ModelChoice, Scoring

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


@reports
@grouped
def view(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What to translate.", show_default=False)] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="Write the page to this file.", rich_help_panel=options.OUTPUT),
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--text", help="Draw what survived in the terminal instead.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Write the trace instead, an event a line, for --trace.", rich_help_panel=options.OUTPUT),
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Instead of searching, view what 'bestfirst translate --trace FILE' or 'view --json' recorded.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    line: Annotated[
        int | None,
        typer.Option(
            parser=options.count, metavar="N", help="Of --trace, this input; else the first.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    beam: options.Beam = 5,
    strategy: options.StrategyName = "best-first",
    nbest: Annotated[
        int, typer.Option(parser=options.count, metavar="N", help="Search for the N best.", rich_help_panel=options.SEARCH)
    ] = 1,
    finished: options.FinishedRule = "leave",
    max_length: options.MaxLength = None,
    prefix: options.Prefix = None,
    max_calls: options.MaxCalls = None,
    row_budget: options.RowBudget = 1,
    queue_capacity: options.QueueCapacity = None,
    *,
    scoring: Scoring,
    method: options.Method = "exact",
    choice: ModelChoice,
) -> int:
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
    decoding = Decoding(
        strategy=strategy,
        beam=beam,
        finished=finished,
        nbest=nbest,
        max_length=max_length,
        max_calls=max_calls,
        row_budget=row_budget,
        queue_capacity=queue_capacity,
        prefix=prefix,
        score=scoring.score,
        score_options=scoring.parameters(),
        method=method,
    ).check()
    if not as_text and not as_json and output in (None, "-") and sys.stdout is not None and sys.stdout.isatty():
        raise usage("a page is for a browser: name a file with -o page.html, or draw it here with --text")
    with closing(Output(output)) as out:
        if trace is not None:
            searches, trouble = _read(trace, line)
        else:
            searches, trouble = _record(*choice.check(decoding).load(decoding), str(text)), []
        out.begin()
        for said in trouble:
            say(said)
        if as_json:
            out.write("".join(json.dumps(event) + "\n" for event in [HEADER, *(e for events in searches for e in events)]))
        elif as_text:
            out.write(_drawn(searches, out.file.isatty()))
        else:
            out.write(render(*searches, trouble=trouble))
    return PARTLY if trouble else 0


def _record(model: TransformersModel, decoding: Decoding, text: str) -> list[Events]:
    """The search that was asked for, and beam search with the same settings beside it."""
    if not text.strip():
        raise usage("the text is empty")
    plain = replace(decoding, strategy="beam", method="exact", queue_capacity=None, max_calls=None)
    recorded = []
    for each in [decoding] if decoding.strategy == "beam" else [decoding, plain]:
        try:
            (result,) = each.decode(model, [text], trace=True)
        except ValueError as error:
            raise CommandError(reason(error)) from error
        if result.trace is None:
            raise CommandError(result.message or "the text cannot be decoded")
        recorded += split(result.trace.events)
    return recorded


def _read(path: str, line: int | None) -> tuple[list[Events], list[str]]:
    """The searches of one input of a file, and what is wrong with it."""
    try:
        found = read(path)
    except OSError as error:
        raise usage(f"cannot read {path!r}: {reason(error)}") from error
    except ValueError as error:
        raise usage(reason(error)) from error
    label = found.labels[0] if line is None else line
    if label not in found.labels:
        there = ", ".join(str(each) for each in found.labels[:10] if each is not None) or "no lines are told apart there"
        raise usage(f"there is no search of line {line} in {path!r}; there is: {there}")
    return found.of(label), found.trouble


def _drawn(searches: Sequence[Events], styled: bool) -> str:
    """Trees and a table as rich draws them, in colours only on a terminal."""
    from rich.console import Console

    console = Console(force_terminal=styled, no_color=not styled, width=None if styled else 120, highlight=False)
    with console.capture() as drawn:
        for each in draw([Recording(events) for events in searches]):
            console.print(each)
    return drawn.get()
