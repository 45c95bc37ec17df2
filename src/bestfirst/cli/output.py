"""Text out: what is written is written at once, so that nothing is lost when the command ends early."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress

from ..errors import reason
from .console import PARTLY, CommandError, usage


class Output:
    """A file, or standard output, without a buffer. A file keeps its old content until `begin`, for much may fail before."""

    def __init__(self, path: str | None, *, apart_from: Sequence[io.FileIO] = (), overwrite: bool = True) -> None:
        named = path not in (None, "-")
        self._new = str(path) if named and not os.path.lexists(str(path)) else None  # to be taken away if nothing is begun
        self.name = repr(path) if named else "standard output"
        self._named = named
        self.file = _open(str(path), self.name) if named else _standard_output()
        status = os.fstat(self.file.fileno())
        self._regular = stat.S_ISREG(status.st_mode)
        if self._regular and any(os.path.samestat(status, os.fstat(other.fileno())) for other in apart_from):
            raise usage(f"{self.name} is a file that this command reads or writes already; name another")
        if named and self._regular and status.st_size and not overwrite:
            raise usage(f"{self.name} exists, and is of another job; replace it with --overwrite, or name another output")

    def begin(self) -> None:
        """Now the work starts: a file's old content goes."""
        self._new = None
        if self._named and self._regular:
            self.file.truncate(0)

    def write(self, text: str) -> None:
        """Write lines, each with its end, whole."""
        data = memoryview(text.encode("utf-8", "replace"))
        try:
            while data:
                data = data[os.write(self.file.fileno(), data) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        try:
            self.file.close()
        except OSError as error:
            raise self._failure(error) from error
        if self._new is not None:
            with suppress(OSError):
                os.unlink(self._new)
            self._new = None

    def _failure(self, error: OSError) -> CommandError:
        return CommandError(f"cannot write to {self.name}: {reason(error)}", PARTLY)


def _open(path: str, name: str) -> io.FileIO:
    try:
        return io.FileIO(path, "a")
    except OSError as error:
        raise usage(f"cannot write to {name}: {reason(error)}") from error


def _standard_output() -> io.FileIO:
    if sys.stdout is None:
        raise usage("standard output is closed; name an output file with -o")
    return io.FileIO(sys.stdout.fileno(), "w", closefd=False)
