"""Errors whose message is one line for the user, and `reason`, which makes one line of any exception."""

from __future__ import annotations


class Unusable(ValueError):
    """The input or the output cannot be used as asked: nothing was done."""


class Conflict(Unusable):
    """The output exists and belongs to another job; the user may choose to replace it."""


class Stopped(RuntimeError):
    """The work broke off; finished parts are kept."""


class InputChanged(Stopped):
    """The input differs from the one that the work began with."""


def reason(error: BaseException) -> str:
    """The message of an exception, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = next(iter(str(error).strip().splitlines()), "")
    if first and isinstance(error, (ValueError, RuntimeError)) and not isinstance(error, RecursionError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
