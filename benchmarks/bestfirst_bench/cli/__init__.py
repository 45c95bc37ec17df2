"""The commands `bestfirst bench` and `bestfirst tune`; `bestfirst.cli.commands` passes their arguments to `COMMANDS`."""

import typer

from bestfirst.cli.options import grouped

from .running import paper, run, scores
from .show import plot, table
from .timing import generate, growth, profile, speed, startup
from .tuning import tune as tune_command

bench = typer.Typer(
    help="Measure on your own model and text what was saved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (paper, run, table, plot, growth, speed, generate, profile, startup, scores):
    bench.command()(grouped(command))  # type: ignore[type-var]

tune = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
tune.command()(grouped(tune_command))

COMMANDS = {"bench": bench, "tune": tune}
