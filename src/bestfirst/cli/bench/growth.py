"""bestfirst bench growth: what a decode costs as the beam and the text grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...bench.growth import Measurement, Plan
from ...bench.table import Table
from .. import options as common
from ..failure import INTERRUPTED, CommandError, reason, say, usage
from . import options
from .show import show
from .work import load_models, read_corpus

Lines = Annotated[
    str, typer.Option("--lines", metavar="N,...", help="How many lines, with the beam of --at.", rich_help_panel=options.RUN)
]
BeamLines = Annotated[
    int, typer.Option(parser=common.count, metavar="N", help="How many lines for each beam.", rich_help_panel=options.RUN)
]
At = Annotated[
    int, typer.Option("--at", parser=common.count, metavar="K", help="The beam while lines grow.", rich_help_panel=options.RUN)
]


def growth(
    source: options.Source,
    beam: options.Beams = "1,2,5,10,20,50,100,200,500",
    beam_lines: BeamLines = 100,
    lines: Lines = "100,200,500,1000,2000",
    at: At = 10,
    rows: options.Rows = None,
    form: options.Format = "text",
    model: common.ModelName = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = 1,
) -> None:
    """Measure calls, steps, time and memory as the beam grows, and as the text grows.

    All lines of a measurement are decoded together, as bestfirst translate
    does. Measurements are saved as they are done, by default in
    growth-MODEL.jsonl, and not repeated; bench plot draws them.

    Example:
      bestfirst bench growth test.de --rows growth.jsonl
      bestfirst bench plot growth.jsonl --plot growth
    """
    beams, sizes = options.numbers(beam), options.numbers(lines, "--lines")
    corpus = read_corpus(source)
    if max(*sizes, beam_lines) > len(corpus.pairs):
        raise usage(
            f"{str(source)!r} has {len(corpus.pairs)} lines of text, {max(*sizes, beam_lines)} were asked for; see --lines"
        )
    loaded, _ = load_models(model, None, device, dtype, threads)

    from ...bench.growth import measure
    from ...bench.runner import identity
    from ...bench.store import OtherModel, Store

    path = Path(f"growth-{loaded.name}.jsonl") if rows is None else rows
    try:
        with Store(Measurement, path, identity(loaded)) as store:
            measure(loaded, corpus, Plan(beams, beam_lines, sizes, at), store, _progress)
    except KeyboardInterrupt:
        saved = f"interrupted; what was measured is in {str(path)!r}"
        raise CommandError(f"{saved}: the same command goes on from there", INTERRUPTED) from None
    except OtherModel as error:
        raise usage(f"{error} with --rows") from error
    except ValueError as error:
        raise usage(str(error)) from error
    except OSError as error:
        raise usage(f"cannot keep measurements in {str(path)!r}: {reason(error)}") from error
    show(_table(f"Growth: {identity(loaded)}, {corpus.name}", list(store.records.values())), form)


def _progress(what: str) -> None:
    say(what)


def _table(title: str, measured: Sequence[Measurement]) -> Table:
    headings = [
        "what grows",
        "search",
        "k",
        "lines",
        "calls",
        "rows",
        "steps",
        "ms",
        "ms in the model",
        "cache tokens",
        "peak MiB",
    ]
    cells = [
        [
            m.series,
            m.search,
            str(m.beam),
            str(m.lines),
            f"{m.calls / m.lines:.1f}",
            f"{m.rows / m.lines:.1f}",
            f"{m.steps / m.lines:.2f}",
            f"{1000 * m.seconds / m.lines:.1f}",
            f"{1000 * m.model_seconds / m.lines:.1f}",
            f"{m.cache_tokens}",
            f"{m.peak_mib:.0f}",
        ]
        for m in measured
    ]
    sections = frozenset(i for i in range(1, len(measured)) if measured[i].series != measured[i - 1].series)
    note = "calls, rows, steps and ms: a sentence. cache tokens: the most held at a time, for all sentences in flight together."
    return Table(title, headings, cells, frozenset({"what grows", "search"}), sections, [note])
