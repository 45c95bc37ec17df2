"""The command `bestfirst`. `--version` and `--help` are answered at once; for everything else `commands` is loaded, which imports
the module of the command."""

from __future__ import annotations

import re
import sys

from .. import __version__
from .console import USAGE, reports, say

ADDRESS = re.compile(r"auto|local|ray://.+|[^/]+:\d+")  # the address of a Ray cluster

OVERVIEW = """
 Usage: bestfirst [OPTIONS] COMMAND [ARGS]...

 Beam search's answer for a fraction of the model calls: best-first beam search for any sequence model.

 Options
   --version   Print the version.
   --help, -h  Show this message and exit.

 Commands
   translate   Translate text, line for line, in order.
   complete    Continue prompts with a language model, one prompt a line.
   compare     Compare all strategies: what each finds, and what it costs.
   view        See a search: every hypothesis, in the order of the pops.
   explain     Explain why a translation was not found.
   serve       Serve translations over HTTP, with a page to try it on at /.
   warmup      Compile ahead of time what the first translation on this machine would compile.
   tune        Find the setting to use on your own model and text, and what it loses.
   bench       Measure on your own model and text what was saved.

 'bestfirst COMMAND --help' explains a command, with examples.
"""


def with_values(arguments: list[str]) -> list[str]:
    """The arguments, with `local` inserted after a `--ray` without an address: typer has no options with an optional value."""
    out: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        out.append(argument)
        if argument == "--ray" and not ADDRESS.fullmatch(following):
            out.append("local")
    return out


def main() -> None:
    sys.exit(run())


@reports
def run(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = _run(given)
        if sys.stdout is not None:
            sys.stdout.flush()  # it may fail, which could not be reported when Python exits
        return code
    except Exception as error:
        # typer's usage errors (their class depends on its version), which typer would print as a box of several lines
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message:  # it is empty where the help was shown because no command was named
            command = getattr(getattr(error, "ctx", None), "command_path", "bestfirst")
            say(f"{message} (see '{command} --help')")
        return USAGE


def _run(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        print(f"bestfirst {__version__}")
        return 0
    if given[:1] in ([], ["--help"], ["-h"]):
        print(OVERVIEW)
        return 0 if given else USAGE
    from .commands import commands_for

    return commands_for(given[0])(with_values(given), prog_name="bestfirst", standalone_mode=False) or 0
