"""`bestfirst explain`: why beam search did not return an expected output."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from ..page.recorded_tree import printable
from . import options
from .console import CommandError, Output, progress_bar, reason, render_rich, usage
from .model_choice import ModelChoice, decoding_from

if TYPE_CHECKING:
    from ..explaining import ExplainedToken, Explanation

MAX_BEAM = "Look for a beam that keeps it up to this one, or up to --beam."


@options.grouped
def explain(
    text: Annotated[str, options.argument("TEXT", "The text to translate.", options.utf8)],
    want: Annotated[str, options.option(kind=options.utf8, metavar="TEXT", help="The translation that you expected.")],
    as_json: options.AsJson = False,
    output: options.OutputFile = None,
    *,
    search: options.SearchOptions,
    max_beam: Annotated[int, options.option(kind=options.count, metavar="K", panel=options.SEARCH, help=MAX_BEAM)] = 200,
    scoring: options.ScoreOptions,
    choice: ModelChoice,
) -> int:
    """Explain why a translation was not found.

    Forces the wanted output through the model, token by token, and follows it
    through beam search: where it left the beam, at which rank, and the smallest
    beam that would have kept it. Best-first search returns beam search's
    answers, so this holds for both.

    Examples:
      bestfirst explain 'Wo ist der Bahnhof?' --want 'Where is the station, please?'
      bestfirst explain 'Guten Morgen!' --want 'Good day!' --beam 10 --json

    In the table, 'choice' is a token's place among all that the model could
    have written there, and 'rank' the output's place among the hypotheses of
    its length; a beam of K keeps ranks 1 to K.

    With --json, one object: text, want, beam, finished, tokens, steps (token,
    piece, logprob, choice, score, rank), score, logprob, lost (the length at
    which it left the beam, or null), rank and worst (there), place (among the
    answers, if it was kept), smallest, smallest_place, max_beam, answers.

    Exit codes:
      0    explained
      1    the model cannot write the wanted output, or not at this length
      2    usage, a missing model folder
      130  interrupted with Ctrl-C
    """
    for name, value in (("text", text), ("wanted output", want)):
        if not value.strip():
            raise usage(f"the {name} is empty")
    decoding = decoding_from(**search.settings(), **scoring.settings())
    choice.check(decoding)
    with closing(Output(output)) as out:
        model, decoding = choice.load(decoding)
        from ..explaining import explain as explained

        with progress_bar(lambda: max(search.beam, max_beam), what="beams tried", transient=True) as bar:
            try:
                found = explained(model, text, want, decoding, max_beam=max_beam, progress=lambda k: bar(completed=k))
            except ValueError as error:
                raise CommandError(reason(error).replace("max_length", "--max-length")) from error
        out.begin()
        if as_json:
            out.write(json.dumps({**asdict(found), "want": want, "text": text}, ensure_ascii=False) + "\n")
        else:
            out.write(_as_text(text, want, found, out.file.isatty()))
    return 0


def _as_text(text: str, want: str, found: Explanation, styled: bool) -> str:
    """A table of the wanted output's tokens, and `sentences`."""
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    numbers = [Column(heading, justify="right", no_wrap=True) for heading in ("log-prob", "choice", "score", "rank")]
    columns = (Column("token", no_wrap=True), *numbers, Column(f"beam of {found.beam}", no_wrap=True))
    table = Table(*columns, title=Text(printable(text)), title_justify="left", box=box.SIMPLE_HEAD)
    for length, step in enumerate(found.steps, 1):
        rank = "" if step.rank is None else str(step.rank)
        kept = "lost here" if length == found.lost else "" if step.rank is None else "kept"
        style = "bold red" if length == found.lost else "" if step.rank is not None else "dim"
        table.add_row(Text(_name(step)), f"{step.logprob:.4f}", str(step.choice), f"{step.score:.4f}", rank, kept, style=style)
    return render_rich(table, *map(Text, sentences(printable(want), found)), styled=styled)


def _name(step: ExplainedToken) -> str:
    """What stands for a token: its text, or its id if it has none."""
    return printable(str(step.token) if step.piece is None else step.piece).strip() or "␣"


def sentences(want: str, found: Explanation) -> list[str]:
    """The explanation in words: where the output left the beam or how it ranks, and the smallest beam that keeps it."""
    answer = found.answers[0] if found.answers else None
    instead = "nothing finished" if answer is None else f"the answer is {printable(answer.text or '')!r}, {answer.score:.4f}"
    lines = []
    if found.lost is not None:
        token = found.steps[min(found.lost, len(found.steps)) - 1]
        where = f"at length {found.lost}, with {_name(token)!r}"
        if found.lost > len(found.steps):
            where = f"at length {found.lost}, where it was complete and still had to hold a slot"
        slots = "is 1 slot" if found.beam == 1 else f"are {found.beam} slots"
        lines.append(f"{want!r} left the beam {where}: rank {found.rank}, and there {slots}.")
        if found.worst is not None and found.lost <= len(found.steps):
            lines.append(f"There it had {token.score:.4f}, the last that stayed {found.worst:.4f}. In the end {instead}.")
    elif found.place == 1:
        lines.append(f"{want!r} is the answer.")
    else:
        lines.append(f"{want!r} was not lost: it is answer number {found.place}, with {found.score:.4f}; {instead}.")
        lines.append(f"The model prefers {'another' if found.place == 2 else 'others'}; ask for more with --nbest {found.place}.")
    if found.smallest is None:
        lines.append(f"No beam up to {found.max_beam} keeps it; look further with --max-beam.")
    elif found.lost is not None or found.smallest != found.beam:
        k, place = found.smallest, found.smallest_place
        there = "the answer" if place == 1 else f"answer number {place} (--beam {k} --nbest {place})"
        lines.append(f"The smallest beam that keeps it is {k}: there it is {there}.")
    return lines
