"""Failures: whatever ends the command early is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ..errors import Stopped, Unusable, reason

__all__ = ["CommandError", "reason", "reports", "say", "tell", "usage"]

PARTLY = 1  # some work failed, the rest is done
USAGE = 2  # nothing was done: the command line, the input file or the model folder is wrong
INTERRUPTED = 130  # 128 + SIGINT
CLOSED_PIPE = 141  # 128 + SIGPIPE

Command = TypeVar("Command", bound=Callable[..., int])


class CommandError(Stopped):
    """Ends the command with this line and this exit code."""

    def __init__(self, message: str, code: int = PARTLY) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    """A failure of whoever called the command, found before any work was done."""
    return CommandError(message, USAGE)


def say(message: str) -> None:
    """A line of ours on stderr."""
    tell(f"bestfirst: {message}")


def tell(text: str) -> None:
    """Print to stderr; where that is closed, nobody wants to know."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def reports(command: Command) -> Command:
    """Make a function that returns an exit code say what ended it instead of raising."""

    @functools.wraps(command)
    def reporting(*args: object, **kwargs: object) -> int:
        try:
            return command(*args, **kwargs)
        except CommandError as failure:
            say(str(failure))
            return failure.code
        except (Unusable, Stopped) as failure:
            say(str(failure))
            return USAGE if isinstance(failure, Unusable) else PARTLY
        except BrokenPipeError:
            _discard_output()
            return CLOSED_PIPE  # the reader has what it wanted, as when it is `head`
        except OSError as error:  # of a print: what writes files says which
            _discard_output()
            say(reason(error))
            return PARTLY
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED

    return reporting  # type: ignore[return-value]


def _discard_output() -> None:
    """Nothing more can be printed: do not try again when Python ends."""
    if sys.stdout is not None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
