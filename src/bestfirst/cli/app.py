"""The command line: what commands there are. The work begins in their modules; torch is loaded only then."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from .. import __version__
from .compare import compare
from .complete import complete
from .explain import explain
from .failure import USAGE, reports, say, usage
from .serve import serve
from .translate import translate
from .view import view

ADDRESS = re.compile(r"auto|local|ray://.+|[^/]+:\d+")  # of a Ray cluster

app = typer.Typer(
    help="Beam search's answer for a fraction of the model calls: best-first beam search for any sequence model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (translate, complete, compare, view, explain, serve):
    app.command()(command)


@app.command()
def warmup() -> None:
    """Compile ahead of time what the first translation on this machine would compile: for images, and for a first line at once.

    Nothing is to be done where the package brings kernels for the CPU: Linux on x86-64 with AVX2 or AVX-512.

    Example: bestfirst warmup
    """
    from ..engine.steps.native.objects import entries

    entries()
    print("kernels are ready")


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(add_help_option=False, context_settings=PASSED_ON)
def tune(context: typer.Context) -> int:
    """Find the setting to use on your own model and text, and what it loses."""
    return _benchmark("tune", context)


@app.command(add_help_option=False, context_settings=PASSED_ON)
def bench(context: typer.Context) -> int:
    """Measure on your own model and text what was saved."""
    return _benchmark("bench", context)


def _benchmark(name: str, context: typer.Context) -> int:
    try:
        from bestfirst_bench.cli import COMMANDS
    except ModuleNotFoundError as error:
        raise usage("the benchmarks are not installed; install bestfirst again: pip install 'bestfirst[bench]'") from error
    try:
        return COMMANDS[name](context.args, prog_name=name, parent=context.parent, standalone_mode=False)
    except ModuleNotFoundError as error:  # the base has neither torch nor what measures quality
        raise usage(f"bestfirst {name} needs {error.name}: pip install 'bestfirst[bench]'") from error


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bestfirst {__version__}")
        raise typer.Exit


@app.callback(epilog="'bestfirst COMMAND --help' explains a command, with examples.")
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Beam search's answer for a fraction of the model calls: best-first beam search for any sequence model."""


def with_values(arguments: list[str]) -> list[str]:
    """The arguments with a value for a `--ray` that has none: typer knows no options whose value may be left out."""
    out: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        out.append(argument)
        if argument == "--ray" and not ADDRESS.fullmatch(following):
            out.append("local")
    return out


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


@reports
def run(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = app(with_values(given), prog_name="bestfirst", standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # now, and not when Python ends, for it may fail
        return code
    except Exception as error:
        # typer's usage errors, wherever its version defines them, would otherwise be drawn as a box of several lines
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message:  # without one, no command was named and the help has been shown
            command = getattr(getattr(error, "ctx", None), "command_path", "bestfirst")
            say(f"{message} (see '{command} --help')")
        return USAGE
