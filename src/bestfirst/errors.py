"""Errors whose message is one line for the user; `first_line` and `reason`, which make one line of any exception."""

from __future__ import annotations


class Unusable(ValueError):
    """The input or the output cannot be used as asked: nothing was done."""


class Conflict(Unusable):
    """The output exists and belongs to another job; the user may choose to replace it."""


class Stopped(RuntimeError):
    """The work broke off; finished parts are kept."""


class InputChanged(Stopped):
    """The input differs from the one that the work began with."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; the name of its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: BaseException) -> str:
    """The message of an exception in one line, with the name of its class where the message does not speak for itself."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first, name = first_line(error), type(error).__name__
    speaks = isinstance(error, (ValueError, RuntimeError)) and not isinstance(error, RecursionError)
    return first if speaks or first == name else f"{name}: {first}"
