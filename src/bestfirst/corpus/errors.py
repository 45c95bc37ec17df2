"""What can go wrong with a job, as one line each."""

from __future__ import annotations


class Unusable(ValueError):
    """The input or the output cannot be used as asked: nothing was done."""


class Stopped(RuntimeError):
    """The work broke off; what was done is kept."""


def reason(error: BaseException) -> str:
    """What an exception says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = next(iter(str(error).strip().splitlines()), "")
    if first and isinstance(error, (ValueError, RuntimeError)):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
