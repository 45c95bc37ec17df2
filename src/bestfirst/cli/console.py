"""Console: lines on standard error, what rich draws for a terminal or a file, and how a command ends: what ends it early is
one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ..errors import Stopped, Unusable, reason

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["CommandError", "reason", "reports", "say", "tell", "usage"]

WIDTH = 120  # of tables that are not for a terminal
PARTLY = 1  # some work failed, the rest is done
USAGE = 2  # nothing was done: the command line, the input file or the model folder is wrong
INTERRUPTED = 130  # 128 + SIGINT
CLOSED_PIPE = 141  # 128 + SIGPIPE

Command = TypeVar("Command", bound=Callable[..., int])


def say(message: str) -> None:
    """A line of ours on stderr."""
    tell(f"bestfirst: {message}")


def tell(text: str) -> None:
    """Print to stderr; where that is closed, nobody wants to know."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def error_console() -> Console:
    """Where progress is shown."""
    from rich.console import Console

    return Console(stderr=True)


def drawn(*parts: RenderableType, styled: bool) -> str:
    """Tables and trees as text, in colours only where `styled`; a text among them is not cut into lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=styled, no_color=not styled, width=None if styled else WIDTH, highlight=False)
    with console.capture() as text:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    return text.get()


def silence_libraries() -> None:
    """Of the libraries below, errors only; of this one, every warning in one line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="bestfirst")
    warnings.simplefilter("ignore", ResourceWarning)  # of whatever is collected while our code runs; for developers
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")


def discard_output() -> None:
    """Nothing more can be printed: do not try again when Python ends."""
    if sys.stdout is not None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


class CommandError(Stopped):
    """Ends the command with this line and this exit code."""

    def __init__(self, message: str, code: int = PARTLY) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    """A failure of whoever called the command, found before any work was done."""
    return CommandError(message, USAGE)


def reports(command: Command) -> Command:
    """Make a function that returns an exit code say what ended it instead of raising."""

    @functools.wraps(command)
    def reporting(*args: object, **kwargs: object) -> int:
        try:
            return command(*args, **kwargs)
        except (Unusable, Stopped) as failure:
            say(str(failure))
            return USAGE if isinstance(failure, Unusable) else getattr(failure, "code", PARTLY)
        except BrokenPipeError:
            discard_output()
            return CLOSED_PIPE  # the reader has what it wanted, as when it is `head`
        except OSError as error:  # of a print: what writes files says which
            discard_output()
            say(reason(error))
            return PARTLY
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED

    return reporting  # type: ignore[return-value]
