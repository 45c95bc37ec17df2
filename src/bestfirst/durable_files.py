"""Files that outlast whoever writes them: whole or not at all, one writer at a time, also after a power failure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def lasting(path: Path) -> Iterator[BinaryIO]:
    """Write a file's content, which is on the disk in the end; its name need not be. If that fails, nothing is left of it."""
    try:
        with open(path, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside `path` that takes its place when all of it is on the disk. If that fails, nothing is left of it."""
    beside = path.with_name(path.name + ".tmp")
    with lasting(beside) as out:
        yield out
    try:
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def write(path: Path, data: bytes) -> None:
    """Make this the content of a file."""
    with replacing(path) as out:
        out.write(data)


def sync_folder(folder: Path) -> None:
    """Make names last: those that were given and those that were taken away. Windows has no such call, and no need of it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path, begun: Any = None) -> str:
    """SHA-256 of a file's content; of several files, where `begun` is the hash of those before."""
    found = begun or hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return str(found.hexdigest())


def hold(file: BinaryIO) -> None:
    """Keep other processes from holding this file until it is closed. BlockingIOError if one has it."""
    try:
        import fcntl
    except ImportError:  # on Windows, where a byte far behind the end is locked: whole files could not be read then
        import msvcrt

        file.seek(1 << 40)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            raise BlockingIOError(*error.args) from error
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Journal:
    """A file of lines to which one process at a time adds. What comes after the last line feed was not finished when its
    writer was stopped: it is none of the lines, and is cut off by the next that is added."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it. BlockingIOError if another process has it open."""
        self.path = path
        while True:
            self._file: BinaryIO = open(path, "a+b")  # noqa: SIM115
            try:
                hold(self._file)
                if os.path.samestat(os.fstat(self._file.fileno()), os.stat(path)):
                    break
            except FileNotFoundError:  # whoever had it has removed it meanwhile
                pass
            except BaseException:
                self._file.close()
                raise
            self._file.close()
        self.end = sum(map(len, self.lines()))  # of what is whole

    @property
    def torn(self) -> bytes:
        """What comes after the last whole line."""
        self._file.seek(self.end)
        return self._file.read()

    @property
    def empty(self) -> bool:
        return not self.end and not self.torn

    def lines(self) -> Iterator[bytes]:
        """All whole lines, each with its end."""
        self._file.seek(0)
        yield from (line for line in self._file if line.endswith(b"\n"))

    def append(self, line: bytes, sync: bool = True) -> None:
        """Add a line, with its end. It is on the disk when this returns, or with `sync=False` on its way there."""
        os.ftruncate(self._file.fileno(), self.end)
        self._file.write(line)
        self._file.flush()
        self.end += len(line)
        if sync:
            os.fsync(self._file.fileno())

    def clear(self) -> None:
        os.ftruncate(self._file.fileno(), 0)
        os.fsync(self._file.fileno())
        self.end = 0

    def close(self) -> None:
        self._file.close()
