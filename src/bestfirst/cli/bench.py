"""bestfirst bench: measure on your own model and text what was saved."""

from __future__ import annotations

import json
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..models.folder import check_folder
from .failure import say, usage
from .lines import batches, open_input
from .settings import Decoding, ModelChoice

if TYPE_CHECKING:
    from ..bench.scores import Line as ScoreLine
    from ..bench.speed import Line

bench = typer.Typer(help="Measure on your own model and text what was saved.", no_args_is_help=True)


@bench.command()
def speed(
    file: Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="FILE")],
    model: Annotated[str | None, typer.Option("--model", help="A model folder; by default the embedded model.")] = None,
    beam: Annotated[str, typer.Option("--beam", help="Beam sizes, separated by commas.")] = "5,10,50",
    limit: Annotated[int | None, typer.Option("--limit", help="Only so many lines.", min=1)] = None,
    shuffle: Annotated[int | None, typer.Option("--shuffle", help="Take lines at random, with this seed.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Turns; each peer's best time counts.", min=1)] = 3,
    max_length: Annotated[int | None, typer.Option("--max-length", help="Most tokens of an output.", min=1)] = None,
    peers: Annotated[
        str | None, typer.Option("--peers", help="Only peers whose name contains one of these, comma-separated.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", help="Threads of every peer.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Time best-first search beside beam search on the same engine, Hugging Face generate and CTranslate2.

    Same sentences, same process, one thread, length penalty 0, in turns. Outputs are compared too: every one that is not
    best-first's is shown with the gap of the scores. CTranslate2 comes with: pip install 'bestfirst[bench]'

    Example: bestfirst bench speed sentences.de --beam 5,10 --limit 200
    """
    beams = _beams(beam)
    lines = _lines(file, limit, shuffle)
    _check_model(model)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is loaded
    import torch

    from ..bench.peers import PEERS
    from ..bench.speed import speed as measure
    from ..models.transformers import embedded_folder, load

    torch.set_num_threads(threads)
    folder = model or embedded_folder()
    wanted = [peer for peer in PEERS if peers is None or any(part in peer.name for part in ["best-first", *peers.split(",")])]
    for peer in wanted:
        if (reason := peer.missing()) is not None:
            say(f"{peer.name} is left out: {reason}")
    loaded = load(folder)
    rows = list(measure(loaded, folder, lines, beams, repeat=repeat, max_length=max_length, peers=wanted, progress=_progress))
    if as_json:
        about = {
            "model": loaded.name,
            "lines": len(lines),
            "threads": threads,
            "torch": torch.__version__,
            "cpu": platform.processor(),
        }
        print(json.dumps({**about, "results": [row.json() for row in rows]}))
    else:
        _table(rows, f"{loaded.name}, {len(lines)} lines of {file.name}, {threads} thread{'s' * (threads > 1)}")


@bench.command()
def scores(
    source: Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="SOURCE")],
    reference: Annotated[Path, typer.Argument(help="Its translation, line by line, for BLEU.", metavar="REFERENCE")],
    model: Annotated[str | None, typer.Option("--model", help="A model folder; by default the embedded model.")] = None,
    lm: Annotated[
        str | None, typer.Option("--lm", help="A language model's folder; without one, length normalization only.")
    ] = None,
    beam: Annotated[str, typer.Option("--beam", help="Beam sizes, separated by commas: 5, 10 (the paper's).")] = "5,10",
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first so many lines.", min=1)] = None,
    device: Annotated[str | None, typer.Option("--device", help="Where the models run: cpu, cuda, ...")] = None,
    threads: Annotated[int, typer.Option("--threads", help="Threads of the model.", min=1)] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a search, as each is done, instead of tables.")
    ] = False,
) -> None:
    """Measure calls, search errors and BLEU with the paper's length rewards and mutual information.

    The paper's settings: its hyperparameters, n_max = 2|x|, finished hypotheses keep their slots. Each score is searched level by
    level (beam), by the paper's method (heuristic or stopping) and exactly; the paper's own numbers stand beside. BLEU takes
    both texts as they are, without tokenizing them. It comes with: pip install 'bestfirst[bench]'

    Example: bestfirst bench scores test.de test.en --lm folder-of-a-language-model --limit 500
    """
    from ..bench.paper import HYPERPARAMETERS

    beams = _beams(beam)
    if unknown := [k for k in beams if k not in HYPERPARAMETERS]:
        raise usage(f"the paper has hyperparameters for --beam {' and '.join(map(str, HYPERPARAMETERS))}, not for {unknown[0]}")
    sources, references = _pairs(source, reference, limit)
    if find_spec("sacrebleu") is None:
        raise usage("BLEU needs sacrebleu: pip install 'bestfirst[bench]'")
    wanted = Decoding()
    if lm is not None:
        wanted = Decoding(score="mutual-information", score_options={"language_model": lm, "weight": 0.05, "epsilon": 0.02})
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is loaded
    loaded, wanted = ModelChoice(model, device=device, threads=threads).check(wanted).load(wanted)

    from ..bench.scores import Bench
    from ..bench.scores_table import LEGEND, scores_table

    measured = Bench(loaded, sources, references, _progress)
    tables: dict[str, list[ScoreLine]] = {}
    for name, line in measured.tables(beams, wanted.score_options.get("language_model")):
        tables.setdefault(name, []).append(line)
        if as_json:
            about = {"table": name, "model": loaded.name, "lines": len(sources), "signature": measured.signature}
            print(json.dumps({**about, **line.json()}), flush=True)
    if not as_json:
        from rich.console import Console

        console = Console(width=None if Console().is_terminal else 140, highlight=False)
        for name, lines in tables.items():
            console.print(scores_table(f"{name}: {loaded.name}, {len(sources)} lines of {source.name}", lines))
        print(LEGEND)
        print(f"BLEU: {measured.signature}")


def _check_model(folder: str | None) -> None:
    try:
        if folder is not None:
            check_folder(folder)
    except ValueError as error:
        raise usage(str(error)) from error


def _progress(what: str) -> None:
    import sys

    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def _beams(text: str) -> list[int]:
    try:
        beams = [int(part) for part in text.split(",")]
    except ValueError:
        raise usage(f"--beam takes numbers separated by commas, got {text!r}") from None
    if min(beams) < 1:
        raise usage(f"--beam must be at least 1, got {min(beams)}")
    return beams


def _lines(file: Path, limit: int | None, shuffle: int | None) -> list[str]:
    import random

    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise usage(f"cannot read {str(file)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise usage(f"{str(file)!r} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if shuffle is not None:
        random.Random(shuffle).shuffle(lines)
    if not lines[:limit]:
        raise usage(f"{str(file)!r} has no text")
    return lines[:limit]


def _pairs(source: Path, reference: Path, limit: int | None) -> tuple[list[str], list[str]]:
    """The lines of both files, which belong together; only line feeds end one."""
    texts = []
    for file in (source, reference):
        with open_input(str(file)) as stream:
            lines = [line for batch in batches(stream) for line in batch]
        if broken := [line for line in lines if line.error is not None]:
            raise usage(f"{str(file)!r}, line {broken[0].number}: {broken[0].error}")
        texts.append([line.text for line in lines])
    if len(texts[0]) != len(texts[1]):
        counts = f"{str(source)!r} has {len(texts[0])} lines, {str(reference)!r} {len(texts[1])}"
        raise usage(f"{counts}: each needs its translation")
    if not texts[0]:
        raise usage(f"{str(source)!r} has no text")
    return texts[0][:limit], texts[1][:limit]


def _table(rows: list[Line], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in ("beam", "peer", "seconds", "ratio", "calls", "rows", "steps", "search", "cache", "peak MiB", "same output"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for row in rows:
        agreement = f"{row.same}" + (f" + {row.near_ties} near-ties" if row.near_ties else "")
        if row.gaps:
            agreement += f", {len(row.gaps)} others (gap up to {max(row.gaps, key=abs):+.3g})"
        table.add_row(
            str(row.beam),
            row.peer,
            f"{row.seconds:.2f}",
            f"{row.ratio:.2f}",
            *("" if number is None else f"{number:,}" for number in (row.calls, row.rows, row.steps)),
            "" if row.outside is None else f"{row.outside:.0%}",
            "" if row.cache_tokens is None else f"{row.cache_tokens:.0f}",
            f"{row.peak_mib:.0f}",
            agreement,
        )
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    console.print(
        "ratio: time over best-first's. search: share of time outside the model. cache: tokens held per sentence in flight."
    )
