"""`bestfirst compare`: every strategy on the same input, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from time import perf_counter
from typing import Annotated, Any

from ..corpus.formats import one_line
from ..models.text_model import TextModel
from ..settings import Decoding
from ..strategies import STRATEGIES, UNPRUNED
from . import options
from .console import PARTLY, Output, render_rich, say, usage
from .model_choice import ModelChoice, decode_one, decoding_from

NO_ANSWER = {"budget": "out of budget", "incomplete": "nothing finished", "error": "failed"}  # by status, in the table
UNPRUNED_CALLS = f"Model calls after which the strategies that prune nothing ({', '.join(UNPRUNED)}) give up."


@options.grouped
def compare(
    texts: Annotated[list[str], options.argument("TEXT...", "Texts to translate, each with every strategy.", options.utf8)],
    as_json: options.AsJson = False,
    output: options.OutputFile = None,
    *,
    search: options.SearchOptions,
    prefix: options.Prefix = None,
    max_calls: Annotated[int, options.option(kind=options.count, metavar="N", panel=options.SEARCH, help=UNPRUNED_CALLS)] = 100,
    row_budget: options.RowBudget = None,
    scoring: options.ScoreOptions,
    choice: ModelChoice,
) -> int:
    """Compare all strategies: what each finds, and what it costs.

    Prints a table for every text: each strategy's output, its score, model
    calls, milliseconds, and the search whose answer it is proven to equal.

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
    decoding = decoding_from(prefix=prefix, row_budget=row_budget, **search.settings(), **scoring.settings())
    choice.check(decoding)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise usage(f"text {number} is empty")
    with closing(Output(output)) as out:
        model, decoding = choice.load(decoding)
        out.begin()
        failed = 0
        for number, text in enumerate(texts, 1):
            rows = list(_rows(model, decoding, text, max_calls))
            errors = dict.fromkeys(row["message"] for row in rows if row["status"] == "error")
            failed += bool(errors)
            for message in errors:
                say(f"text {number}: {message}")
            fields = {"text": text, "beam": decoding.beam, "finished": decoding.finished, "strategies": rows}
            out.write(json.dumps(fields, ensure_ascii=False) + "\n" if as_json else _table(fields, out.file.isatty()))
    return PARTLY if failed else 0


def _rows(model: TextModel, decoding: Decoding, text: str, max_calls: int) -> Iterator[dict[str, Any]]:
    """One row for each strategy on this text, after an untimed greedy run: the first use of a model includes its set-up."""
    decode_one(model, text, decoding, strategy="greedy")
    for name in STRATEGIES:
        begin = perf_counter()
        result = decode_one(model, text, decoding, strategy=name, max_calls=max_calls if name in UNPRUNED else None)
        yield {
            "strategy": name,
            "output": result.text,
            "score": result.hypotheses[0].score if result.hypotheses else None,
            "calls": result.calls,
            "rows": result.rows,
            "steps": result.steps,
            "milliseconds": round(1000 * (perf_counter() - begin), 3),
            "exact": result.exact,
            "status": result.status,
            **({} if result.message is None else {"message": result.message}),
        }


def _table(fields: dict[str, Any], styled: bool) -> str:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    numbers = [Column(heading, justify="right", no_wrap=True) for heading in ("score", "calls", "ms")]
    columns = (Column("strategy", no_wrap=True), Column("output", overflow="fold"), *numbers, Column("equals", no_wrap=True))
    table = Table(*columns, title=Text(fields["text"]), title_justify="left", box=box.SIMPLE_HEAD)
    for row in fields["strategies"]:
        name, found = row["strategy"], row["status"] == "complete"
        output = Text(one_line(row["output"])) if found else Text(NO_ANSWER[row["status"]], style="dim")
        score = f"{row['score']:.4f}" if found else ""  # an answer found before the budget ran out does not count
        same = "the best of all" if name in UNPRUNED else f"beam search, k = {1 if name == 'greedy' else fields['beam']}"
        times = (str(row["calls"]), f"{row['milliseconds']:.1f}")
        table.add_row(name, output, score, *times, same if row["exact"] else "")
    return render_rich(table, styled=styled)
