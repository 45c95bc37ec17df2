"""Failures: whatever ends the command early is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from ..errors import Stopped, Unusable, reason
from .console import discard_output, say, tell

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
