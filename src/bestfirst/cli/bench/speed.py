"""bestfirst bench speed: time beside peers."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...models.folder import check_folder
from ..failure import say, usage
from .options import numbers

if TYPE_CHECKING:
    from ...bench.speed import Line


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
    one_by_one: Annotated[bool, typer.Option("--one-by-one", help="Latency: each sentence alone, nothing batched.")] = False,
    device: Annotated[str | None, typer.Option("--device", help="Where the models run: cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="fp32, fp16 or bf16; by default fp32.")] = None,
    threads: Annotated[int, typer.Option("--threads", help="Threads of every peer.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Time best-first search beside beam search on the same engine, Hugging Face generate and CTranslate2.

    Same sentences, same process, one thread, length penalty 0, in turns. Outputs are compared too: every one that is not
    best-first's is shown with the gap of the scores. CTranslate2 comes with: pip install 'bestfirst[bench]'
    On a GPU generate runs at the batch size that is best for it, which is searched for; CTranslate2 stays out.

    Example: bestfirst bench speed sentences.de --beam 5,10 --limit 200
    """
    beams = numbers(beam)
    lines = read_lines(file, limit, shuffle)
    check_model(model)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is loaded
    import torch

    from ...bench.peers import PEERS, CTranslate2Peer
    from ...bench.speed import speed as measure
    from ...models.transformers import embedded_folder, load

    torch.set_num_threads(threads)
    folder = model or embedded_folder()
    wanted = [peer for peer in PEERS if peers is None or any(part in peer.name for part in ["best-first", *peers.split(",")])]
    if device not in (None, "cpu"):
        wanted = [peer for peer in wanted if not issubclass(peer, CTranslate2Peer)]
    for peer in wanted:
        if (reason := peer.missing()) is not None:
            say(f"{peer.name} is left out: {reason}")
    try:
        loaded = load(folder, device=device, dtype=dtype)
    except ValueError as error:
        raise usage(str(error)) from error
    timed = measure(
        loaded,
        folder,
        lines,
        beams,
        repeat=repeat,
        max_length=max_length,
        peers=wanted,
        one_by_one=one_by_one,
        progress=_progress,
    )
    rows = list(timed)
    if as_json:
        about = {
            "model": loaded.name,
            "lines": len(lines),
            "threads": threads,
            "device": torch.cuda.get_device_name() if loaded.model.device.type == "cuda" else str(loaded.model.device),
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
            "torch": torch.__version__,
            "cpu": platform.processor(),
        }
        print(json.dumps({**about, "results": [row.json() for row in rows]}))
    else:
        how = "one by one, " if one_by_one else ""
        _table(rows, f"{loaded.name}, {len(lines)} lines of {file.name}, {how}{threads} thread{'s' * (threads > 1)}")


def check_model(folder: str | None) -> None:
    try:
        if folder is not None:
            check_folder(folder)
    except ValueError as error:
        raise usage(str(error)) from error


def _progress(what: str) -> None:
    import sys

    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def read_lines(file: Path, limit: int | None, shuffle: int | None) -> list[str]:
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


def _table(rows: list[Line], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    on_gpu = any(row.busy is not None for row in rows)
    share = "GPU busy" if on_gpu else "search"
    digits = 4 if min(row.seconds for row in rows) < 0.1 else 2
    for name in ("beam", "peer", "seconds", "ratio", "calls", "rows", "steps", share, "cache", "peak MiB", "same output"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for row in rows:
        agreement = f"{row.same}" + (f" + {row.near_ties} near-ties" if row.near_ties else "")
        if row.gaps:
            agreement += f", {len(row.gaps)} others (gap up to {max(row.gaps, key=abs):+.3g})"
        table.add_row(
            str(row.beam),
            row.peer if row.batch is None else f"{row.peer}, batches of {row.batch}",
            f"{row.seconds:.{digits}f}",
            f"{row.ratio:.2f}",
            *("" if number is None else f"{number:,}" for number in (row.calls, row.rows, row.steps)),
            "" if (part := row.busy if on_gpu else row.outside) is None else f"{part:.0%}",
            "" if row.cache_tokens is None else f"{row.cache_tokens:.0f}",
            f"{row.peak_mib:.0f}",
            agreement,
        )
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    said = "GPU busy: share of time in its kernels" if on_gpu else "search: share of time outside the model"
    console.print(f"ratio: time over best-first's. {said}. cache: tokens held per sentence in flight.")
