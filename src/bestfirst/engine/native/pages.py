"""Pages: memory for weights, in large pages where the system gives them.

A step reads tens of megabytes of weights. In pages of 4 KiB the CPU spends a fifth of that time looking up where they lie.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

CHUNK = 8 << 20  # bytes asked of the system at a time
LINE = 16  # numbers: a cache line, where every array begins


class Pages:
    """Arrays one behind another. A chunk is given back when the last array in it is gone."""

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
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
