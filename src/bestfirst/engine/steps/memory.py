"""Pages: a CPU's memory, asked of the system itself: in large pages for weights, which are read all the time, and untouched
until it is used for what may grow."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from .rows import PRIVATE

CHUNK = 8 << 20  # bytes asked of the system at a time
LINE = 16  # numbers: a cache line, where every array begins


class Pages:
    """Arrays one behind another, in large pages where the system gives them. A chunk goes with the last array in it.

    A step reads tens of megabytes of weights: in pages of 4 KiB part of its time goes into looking up where they lie.
    """

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.float32)

    def take(self, numbers: int) -> Any:
        """An array of so many float32."""
        room = -(-numbers // LINE) * LINE
        if room > len(self._chunk):
            self._chunk = np.frombuffer(_large(max(CHUNK, 4 * room)), np.float32)
        taken, self._chunk = self._chunk[:numbers], self._chunk[room:]
        return taken


def _large(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, **PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
