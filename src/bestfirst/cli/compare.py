"""`bestfirst compare`: every strategy on the same input, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..corpus.target import one_line
from ..search import Result
from ..strategies import STRATEGIES, UNPRUNED
from . import options
from .failure import PARTLY, reason, reports, say, usage
from .groups import grouped
from .output import Output
from .settings import Decoding, ModelChoice, Scoring

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


@reports
@grouped
def compare(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="What to translate, each with every strategy.")],
    as_json: options.AsJson = False,
    output: options.OutputFile = None,
    beam: options.Beam = 5,
    finished: options.FinishedRule = "leave",
    max_length: options.MaxLength = None,
    prefix: options.Prefix = None,
    max_calls: Annotated[
        int,
        typer.Option(
            parser=options.count,
            metavar="N",
            help=f"Model calls after which the strategies that prune nothing ({', '.join(UNPRUNED)}) give up.",
            rich_help_panel=options.SEARCH,
        ),
    ] = 100,
    row_budget: options.RowBudget = None,
    *,
    scoring: Scoring,
    choice: ModelChoice,
) -> int:
    """Compare all strategies: what each finds, and what it costs.

    For every text a table: the output of each strategy, its score, the model
    calls and the milliseconds it took, and whose answer it is proven to equal.

    Examples:
      bestfirst compare 'Guten Morgen!'
      bestfirst compare --beam 50 'Guten Morgen!' 'Wie geht es dir?'
      bestfirst compare --finished keep --max-calls 1000 'Ja.'
      bestfirst compare --json 'Guten Morgen!' | jq '.strategies[].calls'

    With --json, each text is one line of output, an object with text, beam,
    finished, and strategies: a list of objects with strategy, output, score,
    calls, rows, steps, milliseconds, exact and status (complete, incomplete,
    budget or error).

    Exit codes:
      0    every text is decoded; running out of --max-calls is no failure
      1    some texts failed
      2    usage, a missing model folder: nothing is decoded
      130  interrupted with Ctrl-C
    """
    decoding = Decoding(
        beam=beam,
        finished=finished,
        max_length=max_length,
        row_budget=row_budget,
        prefix=prefix,
        score=scoring.score,
        score_options=scoring.parameters(),
    ).check()
    choice.check(decoding)
    _check_texts(texts)
    with closing(Output(output)) as out:
        loaded, decoding = choice.load(decoding)
        out.begin()
        failed = 0
        for i, text in enumerate(texts):
            outcomes = list(_outcomes(decoding, loaded, text, max_calls))
            failed += any(outcome.result.status == "error" for outcome in outcomes)
            _report_trouble(i + 1, outcomes)
            out.write(_as_json(text, decoding, outcomes) if as_json else _as_table(text, beam, outcomes, out.file.isatty()))
    return PARTLY if failed else 0


@dataclass(frozen=True)
class Outcome:
    """What one strategy made of a text, and how long it took."""

    strategy: str
    result: Result
    seconds: float

    @property
    def found(self) -> bool:
        """Whether there is an answer to show; one that was come across before the budget was spent is none."""
        return self.result.status == "complete"

    @property
    def answer(self) -> str:
        if self.found:
            return one_line(self.result.text)
        return {"budget": "out of budget", "incomplete": "nothing finished", "error": "failed"}[self.result.status]

    def equals(self, beam: int) -> str:
        """Whose answer this one is proven to be."""
        if not self.result.exact:
            return ""
        return "the best of all" if self.strategy in UNPRUNED else f"beam search, k = {1 if self.strategy == 'greedy' else beam}"


def _check_texts(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise usage(f"text {number} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise usage(f"text {number} is not valid UTF-8: {text!r}") from None


def _outcomes(decoding: Decoding, model: TransformersModel, text: str, max_calls: int) -> Iterator[Outcome]:
    """Decode with every strategy, after one short run that is not timed: the first use of a model pays for its set-up."""
    _decode(replace(decoding, strategy="greedy"), model, text)
    for name in STRATEGIES:
        asked = replace(decoding, strategy=name, max_calls=max_calls if name in UNPRUNED else None)
        begin = perf_counter()
        result = _decode(asked, model, text)
        yield Outcome(name, result, perf_counter() - begin)


def _decode(decoding: Decoding, model: TransformersModel, text: str) -> Result:
    try:
        return decoding.decode(model, [text])[0]
    except Exception as error:  # of the model's own code
        return Result(status="error", message=reason(error))


def _report_trouble(number: int, outcomes: Sequence[Outcome]) -> None:
    for message in dict.fromkeys(o.result.message for o in outcomes if o.result.status == "error"):
        say(f"text {number}: {message}")


def _as_json(text: str, decoding: Decoding, outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        result = outcome.result
        row: dict[str, Any] = {
            "strategy": outcome.strategy,
            "output": result.text,
            "score": result.hypotheses[0].score if result.hypotheses else None,
            "calls": result.calls,
            "rows": result.rows,
            "steps": result.steps,
            "milliseconds": round(1000 * outcome.seconds, 3),
            "exact": result.exact,
            "status": result.status,
        }
        if result.message is not None:
            row["message"] = result.message
        rows.append(row)
    fields = {"text": text, "beam": decoding.beam, "finished": decoding.finished, "strategies": rows}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _as_table(text: str, beam: int, outcomes: Sequence[Outcome], styled: bool) -> str:
    """A table as rich draws it, in colours only on a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(text), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("strategy", no_wrap=True)
    table.add_column("output", overflow="fold")
    for heading in ("score", "calls", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("equals", no_wrap=True)
    for outcome in outcomes:
        table.add_row(
            outcome.strategy,
            Text(outcome.answer, style="" if outcome.found else "dim"),
            f"{outcome.result.hypotheses[0].score:.4f}" if outcome.found else "",
            str(outcome.result.calls),
            f"{1000 * outcome.seconds:.1f}",
            outcome.equals(beam),
        )
    console = Console(force_terminal=styled, no_color=not styled, width=None if styled else 120)
    with console.capture() as drawn:
        console.print(table)
    return drawn.get()
