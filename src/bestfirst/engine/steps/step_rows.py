"""Rows: one forward pass on the tree, its positions and its memory. Arrays are of any library that numpy can look into."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log, prod
from typing import Any

import numpy as np

Entry = tuple[int, int, int, int, int]
"""A row before it is one: token, position, slot, the slot of its parent, and the place of its input among the sources."""


@dataclass
class Rows:
    """A row is one token to be scored in its context. Rows of one sentence stand together."""

    tokens: Any  # (rows,)
    positions: Any  # (rows,) how many tokens stand before it
    slots: Any  # (rows,) where its keys and values go
    sentences: Any  # (rows,) place of its input among the sources
    paths: Any  # (rows, context) slots of its ancestors and itself, by position; slot 0 beyond
    counts: list[int]  # rows of each sentence that has any, in order
    places: list[int]  # and these sentences' places

    def __len__(self) -> int:
        return len(self.tokens)

    def check(self, vocabulary: int, positions: int, slots: int, sources: int) -> None:
        """Raise ValueError, naming the value, for a number that compiled kernels must not see: they check no index."""
        check_range("a token's id", self.tokens, vocabulary)
        check_range("a token's position", self.positions, min(positions, self.paths.shape[1]))
        check_range("a token's slot", self.slots, slots)
        check_range("an ancestor's slot", self.paths, slots)
        check_range("an input's place", self.sentences, sources)


def check_range(what: str, numbers: Any, end: int, first: int = 0) -> None:
    """Raise ValueError unless all of these (an array that is not empty) are in range(first, end)."""
    found = np.asarray(numbers)
    if not first and found.dtype == np.int32 and found.view(np.uint32).max() < end:
        return  # one look instead of two: what is negative is then very large
    least, most = int(found.min()), int(found.max())
    if least < first or most >= end:
        raise ValueError(f"{what} must be from {first} to {end - 1}, got {least if least < first else most}")


def places_of(table: list[Entry], counts: list[int]) -> list[int]:
    """The place of each sentence that has rows."""
    return [table[row][4] for row in (0, *accumulate(counts[:-1]))]


def prompts(table: list[Entry], counts: list[int]) -> bool:
    """Whether the rows of each sentence are its first tokens, one behind the other."""
    first = {0, *accumulate(counts)}
    return all(row[3] == (0 if i in first else table[i - 1][2]) for i, row in enumerate(table))


def generations(table: list[Entry]) -> list[Any]:
    """The rows, by how many of their ancestors are rows of this step too: where each lies, parents before their children."""
    if not {row[3] for row in table} & {row[2] for row in table}:
        return [slice(None)]
    depths: dict[int, int] = {}
    out: list[list[int]] = []
    for i, (_, _, slot, parent, _) in enumerate(table):
        depth = depths[slot] = depths.get(parent, -1) + 1
        if depth == len(out):
            out.append([])
        out[depth].append(i)
    return out


class Slots:
    """Slots for tokens, given out and taken back. Slot 0 is never given out: it stands for no token."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, 0, -1))
        self.used = 0

    def allocate(self, n: int) -> list[int]:
        """`n` slots, more room being made when there is none."""
        while len(self._free) < n:
            old, self.capacity = self.capacity, 2 * self.capacity
            self._free = [*range(2 * old - 1, old - 1, -1), *self._free]
            self.grown(old)
        self.used += n
        taken = self._free[-n:]
        del self._free[-n:]
        return taken

    def release(self, slots: list[int]) -> None:
        self._free += slots
        self.used -= len(slots)

    def grown(self, old: int) -> None:
        """There are twice as many slots as the `old` ones."""


class PositionRows:
    """The embeddings of positions, all that there are."""

    def __init__(self, table: Any) -> None:
        self._table = np.ascontiguousarray(table)

    def up_to(self, n: int) -> Any:
        """Of positions 0 to n - 1 and more, (positions, d); of all, where there are not so many."""
        return self._table


class GrowingPositions(PositionRows):
    """Computed as far as they are asked for, and no further than `most`. `make`: n to the first n."""

    def __init__(self, make: Callable[[int], Any], most: float = inf) -> None:
        self._make, self._most = make, most
        super().__init__(make(int(min(64, most))))

    def up_to(self, n: int) -> Any:
        table = self._table
        if len(table) < min(n, self._most):
            table = self._table = np.ascontiguousarray(self._make(int(min(2 * n, self._most))))
        return table  # not what another thread has made meanwhile, which may be shorter


class RisingPositions(GrowingPositions):
    """M2M100's: as many as are asked for, from the one after the padding's."""

    def __init__(self, width: int, padding: int) -> None:
        self._width, self._padding = width, padding
        super().__init__(self._rising)

    def _rising(self, n: int) -> Any:
        half = self._width // 2
        each = np.exp(np.arange(half, dtype=np.float32) * np.float32(-log(10000) / (half - 1)))
        angles = np.arange(self._padding + 1, self._padding + 1 + n, dtype=np.float32)[:, None] * each
        rest = np.zeros((n, self._width % 2), np.float32)
        return np.ascontiguousarray(np.concatenate([np.sin(angles), np.cos(angles), rest], 1))


def blank(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """As `numpy.zeros`; what is never used is never touched."""
    numbers = prod(shape)
    if not numbers:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, numbers * np.dtype(dtype).itemsize, **PRIVATE), dtype).reshape(shape)


PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


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
