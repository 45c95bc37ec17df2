"""Rows: one forward pass on the tree; the tree and the sources as numpy's arrays; positions, and memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import prod
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
            self.grown()
        self.used += n
        taken = self._free[-n:]
        del self._free[-n:]
        return taken

    def release(self, slots: list[int]) -> None:
        self._free += slots
        self.used -= len(slots)

    def grown(self) -> None:
        """There are twice as many slots as before."""


class Arrays:
    """What a tree and sources are made of: here numpy's arrays; `tree.py` has them of tensors."""

    dtype: Any = np.float32
    integers: Any = np.int32

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return blank(shape, dtype)

    def larger(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A copy with room for more: zeros beyond what it held."""
        grown = self.zeros(shape, array.dtype)
        grown[tuple(slice(n) for n in array.shape)] = array
        return grown


class NativeTree(Slots, Arrays):
    """One slot a token; `paths` holds for every slot the slots of its ancestors by position."""

    def __init__(self, capacity: int = 1024, context: int = 64) -> None:
        super().__init__(capacity)
        self.layers: list[Any] = []  # (capacity, 2, key-value heads * head size) for each layer
        self.paths = self.zeros((capacity, context), self.integers)

    def grown(self) -> None:
        self.paths = self.larger(self.paths, (self.capacity, self.paths.shape[1]))
        self.layers = [self.larger(layer, (self.capacity, *layer.shape[1:])) for layer in self.layers]

    def layer(self, index: int, width: int) -> Any:
        """The keys and values of a layer, `width` numbers each a token; made when first asked for."""
        while len(self.layers) <= index:
            self.layers.append(self.zeros((self.capacity, 2, width), self.dtype))
        return self.layers[index]

    def rows(self, table: list[Entry], counts: list[int]) -> Rows:
        """Rows from (token, position, slot, parent's slot, sentence) each; a parent is known, or a row before its children."""
        tokens, positions, slots, parents, sentences = np.array(table, np.int32).T.copy()
        longest = int(positions.max()) + 1
        self.reach(longest)
        for some in generations(table):
            paths = self.paths[parents[some], :longest]
            paths[np.arange(len(paths)), positions[some]] = slots[some]
            self.paths[slots[some], :longest] = paths
        if len(paths) < len(table):
            paths = self.paths[slots, :longest]
        return Rows(tokens, positions, slots, sentences, paths, counts, places_of(table, counts))

    def reach(self, context: int) -> None:
        """Make room for paths of so many."""
        while context > self.paths.shape[1]:
            self.paths = self.larger(self.paths, (self.capacity, 2 * self.paths.shape[1]))


class NativeSources(Arrays):
    """The encoder's keys and values. Inputs in flight stand in places 0 to n - 1; when one leaves, the last takes its place."""

    def __init__(self) -> None:
        self.layers: list[Any] = []  # (2, capacity, heads, source length, head size)
        self.lengths: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def reserve(self, lengths: list[int], layers: int, heads: int, size: int) -> range:
        """Places for inputs of these lengths, to be filled. Returns them."""
        first = len(self)
        have, long = (self.layers[0].shape[1], self.layers[0].shape[3]) if self.layers else (0, 0)
        n, length = max(have, first + len(lengths)), max(long, *lengths)
        if (n, length) != (have, long):
            shape = (2, n, heads, length, size)
            grown = [self.larger(layer, shape) for layer in self.layers]
            self.layers = grown or [self.zeros(shape, self.dtype) for _ in range(layers)]
        self.lengths += lengths
        return range(first, first + len(lengths))

    def remove(self, place: int) -> int:
        """Drop the input at `place`; returns the place whose input has moved there (the last)."""
        last = len(self) - 1
        length = self.lengths[last]
        if place != last:
            for layer in self.layers:
                layer[:, place, :, :length] = layer[:, last, :, :length]
            self.lengths[place] = length
        self.lengths.pop()
        return last


class Positions:
    """The embeddings of positions. `make`: n to those of the first n, (n, d), or of all where there are not so many."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self._table: Any = ()

    def up_to(self, n: int) -> Any:
        """Of positions 0 to n - 1 and more; of all, where there are not so many."""
        table = self._table
        if len(table) < n:
            table = self._table = self.make(max(64, 2 * n))
        return table  # not what another thread has made meanwhile, which may be shorter


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
