"""bestfirst bench: measure on your own model and text what was saved. A module for each sub-command."""

import typer

from .growth import growth
from .paper import paper, scores
from .plot import plot
from .profile import profile
from .run import run
from .speed import speed
from .table import table

bench = typer.Typer(help="Measure on your own model and text what was saved.", no_args_is_help=True)
for command in (paper, run, table, plot, growth, speed, profile, scores):
    bench.command()(command)

__all__ = ["bench"]
