"""bestfirst bench plot: saved rows as pictures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ...bench.growth import Measurement
from ...bench.store import read
from ..failure import PARTLY, CommandError, reason, say, usage
from . import options
from .show import metrics as chosen_metrics
from .table import read_rows

NAMES = ("calls", "time", "bleu", "length", "sharpness", "growth")
SUFFIXES = (".png", ".svg", ".pdf")

Name = Annotated[str, typer.Option("--plot", "-p", metavar="NAME", help=f"One of {', '.join(NAMES)}.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="A .png, .svg or .pdf file. By default NAME.png.", show_default=False),
]


Beams = Annotated[
    str | None, typer.Option("--beam", "-k", metavar="K,...", help="Only rows with these beam sizes.", show_default=False)
]


def plot(
    files: options.RowFiles,
    name: Name,
    output: Output = None,
    beam: Beams = None,
    text: options.TextName = None,
    tokenize: options.Tokenize = "none",
) -> None:
    """Draw saved rows.

    calls      calls a sentence by beam size
    time       time by calls, each point a sentence decoded alone
    bleu       BLEU by calls
    length     where the saving comes from: calls by length of the input
    sharpness  the saving by how sure the model is
    growth     what bench growth measured

    Examples:
      bestfirst bench plot bench-tatoeba-de-en.jsonl --plot calls
      bestfirst bench plot rows.jsonl more.jsonl --plot length --beam 5,10 \\
        -o length.svg
    """
    if name not in NAMES:
        raise usage(f"there is no plot {name!r}; choose from {', '.join(NAMES)}")
    out = Path(f"{name}.png") if output is None else output
    if out.suffix not in SUFFIXES:
        raise usage(f"a plot is written to a file that ends in {', '.join(SUFFIXES)}, not {str(out)!r}")
    if find_spec("matplotlib") is None:
        raise usage("plots need matplotlib: pip install 'bestfirst[bench]'")

    from ...bench.plots import PLOTS, NothingToPlot, growth

    try:
        if name == "growth":
            measured = read(Measurement, files)
            figure = growth(measured)
        else:
            beams = None if beam is None else options.numbers(beam)
            figure = PLOTS[name](read_rows(files, beams, text), chosen_metrics("bleu" if name == "bleu" else "", tokenize))
    except NothingToPlot as error:
        raise usage(f"nothing to plot: {error}") from error
    except ValueError as error:
        raise usage(str(error)) from error
    except OSError as error:
        raise usage(f"cannot read {error.filename!r}: {reason(error)}") from error
    try:
        figure.savefig(out)
    except OSError as error:
        raise CommandError(f"cannot write to {str(out)!r}: {reason(error)}", PARTLY) from error
    say(f"drawn in {str(out)!r}")
