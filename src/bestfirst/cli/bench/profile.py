"""bestfirst bench profile: where the time goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..failure import usage
from .speed import check_model, read_lines

if TYPE_CHECKING:
    from ...bench.profile import Profile


def profile(
    file: Annotated[Path, typer.Argument(help="Text to translate, a sentence a line.", metavar="FILE")],
    model: Annotated[str | None, typer.Option("--model", help="A model folder; by default the embedded model.")] = None,
    beam: Annotated[int, typer.Option("--beam", help="Beam size.", min=1)] = 10,
    limit: Annotated[int | None, typer.Option("--limit", help="Only so many lines.", min=1)] = None,
    shuffle: Annotated[int | None, typer.Option("--shuffle", help="Take lines at random, with this seed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Show where best-first search's time goes on this CPU, and how far it is from bare matrix products.

    One thread. The floor of a row is its multiply-adds at the rate that this CPU reaches in one of its products alone.

    Example: bestfirst bench profile sentences.de --beam 10
    """
    lines = read_lines(file, limit, shuffle)
    check_model(model)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    import torch

    from ...models.transformers import embedded_folder, load

    torch.set_num_threads(1)
    loaded = load(model or embedded_folder())
    try:
        from ...bench.profile import profile as measure

        found = measure(loaded, [loaded.read(line).payload.source for line in lines], beam)
    except (ImportError, ValueError) as error:
        raise usage(str(error)) from error
    if as_json:
        print(json.dumps({"model": loaded.name, "lines": len(lines), "beam": beam, **found.json()}))
    else:
        _table(found, f"{loaded.name}, {len(lines)} lines of {file.name}, beam {beam}, 1 thread")


def _table(found: Profile, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("part", title=title)
    for name in ("seconds", "share", "µs a row"):
        table.add_column(name, justify="right")
    for part, seconds in found.parts.items():
        table.add_row(part, f"{seconds:.3f}", f"{seconds / found.seconds:.0%}", f"{1e6 * seconds / found.rows:.1f}")
    table.add_row("all", f"{found.seconds:.3f}", "100%", f"{1e6 * found.seconds / found.rows:.1f}", style="bold")
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(
        f"{found.rows:,} rows in {found.steps} steps. A row is {found.multiply_adds / 1e6:.2f} million multiply-adds; this CPU "
        f"does {found.rate:.0f} thousand million a second in one product alone: floor {found.floor:.0f} µs a row. Its "
        f"products take {found.row_products:.0f} µs, all of a step {found.row:.0f} µs.",
        soft_wrap=True,
    )
