"""What can go wrong, as one line each."""

from __future__ import annotations


class Unusable(ValueError):
    """The input or the output cannot be used as asked: nothing was done."""


class Conflict(Unusable):
    """The output is there already, and is not of this job; whoever asks may choose to replace it."""


class Stopped(RuntimeError):
    """The work broke off; what was done is kept."""


class InputChanged(Stopped):
    """The input is no longer what the work began on."""


def reason(error: BaseException) -> str:
    """What an exception says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = next(iter(str(error).strip().splitlines()), "")
    if first and isinstance(error, (ValueError, RuntimeError)) and not isinstance(error, RecursionError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
