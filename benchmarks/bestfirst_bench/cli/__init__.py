"""bestfirst bench: measure on your own model and text what was saved."""

import typer

from bestfirst.cli.options import grouped

from .costs import generate, growth, profile, speed
from .rows import paper, run, scores
from .show import plot, table

bench = typer.Typer(
    help="Measure on your own model and text what was saved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (paper, run, table, plot, growth, speed, generate, profile, scores):
    bench.command()(grouped(command))  # type: ignore[type-var]

__all__ = ["bench"]
