"""Crash-safe files: atomic writes (complete or absent, also after a power failure), and an append-only `Journal` with a lock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file and fsync its content, but not its directory entry. On an exception the file is removed."""
    try:
        with open(path, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def write_file(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically: write and fsync a temporary file beside it, rename it, fsync the folder."""
    temporary = path.with_name(path.name + ".tmp")
    with synced_file(temporary) as out:
        out.write(data)
    try:
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """fsync a directory, so that created, renamed and removed names survive a power failure. Windows does not need it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path, hasher: Any = None) -> str:
    """SHA-256 of a file's content, appended to what `hasher` has already consumed, if given."""
    hasher = hasher or hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            hasher.update(block)
    return str(hasher.hexdigest())


def lock(file: BinaryIO) -> None:
    """Lock a file against other processes until it is closed. BlockingIOError if another process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows' locks also prevent reading: lock a byte far beyond the end of the file
        import msvcrt

        file.seek(1 << 40)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            raise BlockingIOError(*error.args) from error
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Journal:
    """An append-only file of lines, locked by one process at a time. Bytes after the last line feed are an append that a crash
    interrupted: they do not count as a line, and the next append truncates them."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and lock it. BlockingIOError if another process has it open."""
        self.path = path
        while True:
            self._file = FileIO(path, "a+")  # unbuffered: after an append that failed, closing has nothing to write
            try:
                lock(self._file)
                if os.path.samestat(os.fstat(self._file.fileno()), os.stat(path)):
                    break
            except FileNotFoundError:  # its previous holder removed it before we got the lock: create it again
                pass
            except BaseException:
                self._file.close()
                raise
            self._file.close()
        self.end = sum(map(len, self.lines()))  # offset after the last complete line

    @property
    def torn(self) -> bytes:
        """The bytes after the last complete line."""
        self._file.seek(self.end)
        return self._file.read()

    @property
    def empty(self) -> bool:
        return not self.end and not self.torn

    def lines(self) -> Iterator[bytes]:
        """All complete lines, each with its line feed."""
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            yield from (line for line in reader if line.endswith(b"\n"))

    def append(self, line: bytes, sync: bool = True) -> None:
        """Append a line, which includes its line feed, and fsync unless `sync=False`."""
        os.ftruncate(self._file.fileno(), self.end)
        written = 0
        while written < len(line):
            written += self._file.write(line[written:]) or 0
        self.end += len(line)
        if sync:
            os.fsync(self._file.fileno())

    def clear(self) -> None:
        os.ftruncate(self._file.fileno(), 0)
        os.fsync(self._file.fileno())
        self.end = 0

    def close(self) -> None:
        self._file.close()
