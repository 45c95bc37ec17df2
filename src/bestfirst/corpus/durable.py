"""Files that are there whole or not at all, also after a power failure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside `path` that takes its place when all of it is on the disk. If that fails, nothing is left of it."""
    beside = path.with_name(path.name + ".tmp")
    try:
        with open(beside, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
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


def append(path: Path, data: bytes) -> None:
    """Add this to a file. A power failure may leave a part of it: what reads the file must bear that."""
    with open(path, "ab") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """Make names last: those that were given and those that were taken away."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()
