"""Commands: builds the `typer` app for a command, importing its module only; torch is loaded when its work begins."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from .console import usage

NAMES = ("translate", "complete", "compare", "view", "explain", "serve", "warmup", "tune", "bench")
MODULE_OF = {"complete": "translate", **dict.fromkeys(("warmup", "tune", "bench"), "commands")}  # where it differs from the name
PASS_ARGUMENTS_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def commands_for(name: str) -> typer.Typer:
    """The app with the command of this name alone; for an unknown name with all commands, so that the error can name them."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(lambda: None)  # with a callback, typer expects the command's name even if there is only one command
    for each in [name] if name in NAMES else NAMES:
        command = getattr(import_module(f".{MODULE_OF.get(each, each)}", __package__), each)
        app.command(**(PASS_ARGUMENTS_ON if each in ("tune", "bench") else {}))(command)
    return app


def warmup() -> None:
    """Compile ahead of time what the first translation on this machine would compile: for images, and for a first line at once.

    Nothing is to be done where the package brings kernels for the CPU: Linux on x86-64.

    Example: bestfirst warmup
    """
    from ..engine.steps.native.calls import entries

    entries()
    print("kernels are ready")


def tune(context: typer.Context) -> int:
    """Find the setting to use on your own model and text, and what it loses."""
    return _benchmark("tune", context)


def bench(context: typer.Context) -> int:
    """Measure on your own model and text what was saved."""
    return _benchmark("bench", context)


def _benchmark(name: str, context: typer.Context) -> int:
    """Pass the arguments on to the package `bestfirst_bench`."""
    try:
        from bestfirst_bench.cli import COMMANDS
    except ModuleNotFoundError as error:
        raise usage("the benchmarks are not installed; install bestfirst again: pip install 'bestfirst[bench]'") from error
    try:
        return COMMANDS[name](context.args, prog_name=name, parent=context.parent, standalone_mode=False)
    except ModuleNotFoundError as error:  # the base installation has neither torch nor the quality metrics
        raise usage(f"bestfirst {name} needs {error.name}: pip install 'bestfirst[bench]'") from error
