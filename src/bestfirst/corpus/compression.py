"""gzip and zstd, by the name of a file. What is compressed in pieces can be put together as it is: both formats allow that."""

from __future__ import annotations

import gzip
import zlib
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

try:
    import zstandard
except ImportError:  # where it cannot be installed, all other files can still be read
    zstandard = None  # type: ignore[assignment]

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
BROKEN = (
    EOFError,
    zlib.error,
    *([] if zstandard is None else [zstandard.ZstdError]),
)  # what a damaged file raises, beside OSError


def compression_of(name: str) -> str | None:
    """How a file of this name is compressed."""
    return SUFFIXES.get(Path(name).suffix)


def bare(name: str) -> str:
    """The name without the ending that says how the file is compressed."""
    return name[: -len(Path(name).suffix)] if compression_of(name) else name


def plain(stream: BinaryIO | FileIO, name: str) -> BinaryIO:
    """The content of a file of this name, decompressed as it is read."""
    kind = compression_of(name)
    if kind == "gzip":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if kind == "zstd":
        return zstd().ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return stream


def compress(data: bytes, kind: str | None) -> bytes:
    """The same bytes each time for the same data."""
    if kind == "gzip":
        return gzip.compress(data, compresslevel=6, mtime=0)
    if kind == "zstd":
        return zstd().ZstdCompressor().compress(data)
    return data


def zstd() -> ModuleType:
    if zstandard is None:
        raise ValueError("a .zst file needs the package zstandard: pip install zstandard")
    return zstandard
