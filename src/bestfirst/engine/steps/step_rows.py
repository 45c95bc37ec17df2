"""Step rows: the rows of a forward pass, the tree and the sources in numpy (`tree.py` in torch), position tables, and memory."""

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
"""One row as integers: token, position, slot, its parent's slot, and its input's place among the sources."""


@dataclass
class Rows:
    """The rows of one step: each is one token to be scored in its context. Rows of one sentence are adjacent."""

    tokens: Any  # (rows,)
    positions: Any  # (rows,) number of tokens before it
    slots: Any  # (rows,) slot its keys and values are written to
    sentences: Any  # (rows,) place of its input among the sources
    paths: Any  # (rows, context) slots of its ancestors and itself, by position; slot 0 beyond
    counts: list[int]  # number of rows of each sentence that has any, in order
    places: list[int]  # the places of these sentences

    def __len__(self) -> int:
        return len(self.tokens)

    def check(self, vocabulary: int, positions: int, slots: int, sources: int) -> None:
        """Raise ValueError, naming the value, for an index out of range: compiled kernels check none."""
        check_range("a token's id", self.tokens, vocabulary)
        check_range("a token's position", self.positions, min(positions, self.paths.shape[1]))
        check_range("a token's slot", self.slots, slots)
        check_range("an ancestor's slot", self.paths, slots)
        check_range("an input's place", self.sentences, sources)


def check_range(what: str, numbers: Any, end: int, first: int = 0) -> None:
    """Raise ValueError unless all these numbers (a non-empty array) are in range(first, end)."""
    array = np.asarray(numbers)
    if not first and array.dtype == np.int32 and array.view(np.uint32).max() < end:
        return  # one pass instead of two: as unsigned numbers, negative ones are very large
    least, most = int(array.min()), int(array.max())
    if least < first or most >= end:
        raise ValueError(f"{what} must be from {first} to {end - 1}, got {least if least < first else most}")


def places_of(table: list[Entry], counts: list[int]) -> list[int]:
    """The place of each sentence that has rows."""
    return [table[row][4] for row in (0, *accumulate(counts[:-1]))]


def are_prompts(table: list[Entry], counts: list[int]) -> bool:
    """Whether the rows of each sentence are a prompt: its first tokens, each the parent of the next."""
    first = {0, *accumulate(counts)}
    return all(row[3] == (0 if i in first else table[i - 1][2]) for i, row in enumerate(table))


def by_generation(table: list[Entry]) -> list[Any]:
    """The rows' indices by generation: by how many ancestors are rows of this step, too. Parents come before children."""
    if not {row[3] for row in table} & {row[2] for row in table}:
        return [slice(None)]
    depths: dict[int, int] = {}  # by slot
    out: list[list[int]] = []
    for i, (_, _, slot, parent, _) in enumerate(table):
        depth = depths[slot] = depths.get(parent, -1) + 1
        if depth == len(out):
            out.append([])
        out[depth].append(i)
    return out


class Arrays:
    """How trees and sources allocate keys and values: here as numpy arrays, in `tree.py` as tensors."""

    dtype: Any = np.float32

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return lazy_zeros(shape, dtype)

    def enlarged(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A copy of keys and values enlarged to this shape."""
        return extended(array, self.zeros(shape, array.dtype))


def extended(array: Any, out: Any) -> Any:
    """`out`, a larger array of zeros, with the contents of `array` at its beginning."""
    out[tuple(slice(n) for n in array.shape)] = array
    return out


class NativeTree(Arrays):
    """The KV cache as a tree: allocates slots, one per token, each with its ancestors' slots by position (`paths`).

    Slot 0 is never allocated: it stands for no token.
    """

    def __init__(self, capacity: int = 1024, context: int = 64) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, 0, -1))
        self.used = 0
        self.layers: list[Any] = []  # (capacity, 2, key-value heads * head size) for each layer
        self.paths = lazy_zeros((capacity, context), np.int32)

    def allocate(self, n: int) -> list[int]:
        """`n` free slots; doubles the capacity until there are enough."""
        while len(self._free) < n:
            old, self.capacity = self.capacity, 2 * self.capacity
            self._free = [*range(2 * old - 1, old - 1, -1), *self._free]
            self.paths = extended(self.paths, lazy_zeros((self.capacity, self.paths.shape[1]), np.int32))
            self.layers = [self.enlarged(layer, (self.capacity, *layer.shape[1:])) for layer in self.layers]
        self.used += n
        slots = self._free[-n:]
        del self._free[-n:]
        return slots

    def release(self, slots: list[int]) -> None:
        self._free += slots
        self.used -= len(slots)

    def layer(self, index: int, width: int) -> Any:
        """The keys and values of a layer, (capacity, 2, width), allocated on first use. `width`: key-value heads * head size."""
        while len(self.layers) <= index:
            self.layers.append(self.zeros((self.capacity, 2, width), self.dtype))
        return self.layers[index]

    def rows(self, table: list[Entry], counts: list[int]) -> Rows:
        """Rows from a table of entries. A parent is a token scored before, or a row of this table that precedes its children."""
        tokens, positions, slots, parents, sentences = np.array(table, np.int32).T.copy()
        longest = int(positions.max()) + 1
        self.reserve_positions(longest)
        if len(table) > len(counts) and are_prompts(table, counts):  # token by token there would be as many passes as tokens
            paths = np.zeros((len(table), longest), np.int32)
            ends = [*accumulate(counts)]
            for first, end in zip([0, *ends], ends, strict=False):
                paths[first:end, : end - first] = np.tril(np.broadcast_to(slots[first:end], (end - first, end - first)))
            self.paths[slots, :longest] = paths
        else:
            for part in by_generation(table):
                paths = self.paths[parents[part], :longest]
                paths[np.arange(len(paths)), positions[part]] = slots[part]
                self.paths[slots[part], :longest] = paths
            if len(paths) < len(table):
                paths = self.paths[slots, :longest]
        return Rows(tokens, positions, slots, sentences, paths, counts, places_of(table, counts))

    def reserve_positions(self, context: int) -> None:
        """Make room for paths of this many positions."""
        while context > self.paths.shape[1]:
            self.paths = extended(self.paths, lazy_zeros((self.capacity, 2 * self.paths.shape[1]), np.int32))


class NativeSources(Arrays):
    """The encoder's keys and values. Inputs in flight occupy places 0 to n - 1; when one leaves, the last moves to its place."""

    def __init__(self) -> None:
        self.layers: list[Any] = []  # (2, capacity, heads, source length, head size)
        self.lengths: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def reserve(self, lengths: list[int], layers: int, heads: int, size: int) -> range:
        """Reserve places for inputs of these lengths, to be filled by the caller, and return them."""
        first = len(self)
        before = (self.layers[0].shape[1], self.layers[0].shape[3]) if self.layers else (0, 0)  # inputs, source length
        n, length = max(before[0], first + len(lengths)), max(before[1], *lengths)
        if (n, length) != before:
            shape = (2, n, heads, length, size)
            enlarged = [self.enlarged(layer, shape) for layer in self.layers]
            self.layers = enlarged or [self.zeros(shape, self.dtype) for _ in range(layers)]
        self.lengths += lengths
        return range(first, first + len(lengths))

    def remove(self, place: int) -> int:
        """Remove the input at `place`, and move the last input there. Returns the place that the last input had."""
        last = len(self) - 1
        length = self.lengths[last]
        if place != last:
            for layer in self.layers:
                layer[:, place, :, :length] = layer[:, last, :, :length]
            self.lengths[place] = length
        self.lengths.pop()
        return last


class Positions:
    """A table of position embeddings, extended on demand: `make(n)` has those of the first n, (n, d), or all there are."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self._table: Any = ()

    def up_to(self, n: int) -> Any:
        """The embeddings of at least positions 0 to n - 1; of all if fewer exist."""
        table = self._table
        if len(table) < n:
            table = self._table = self.make(max(64, 2 * n))
        return table  # not `self._table`: another thread may have replaced it by a shorter one


# -- memory ----------------------------------------------------------------------------------------------------------------

CHUNK = 8 << 20  # bytes requested from the system at a time
LINE = 16  # float32 numbers: a cache line; every array begins at one
PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


def lazy_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """As `numpy.zeros`, from anonymous memory: pages that are never used take no memory."""
    numbers = prod(shape)
    if not numbers:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, numbers * np.dtype(dtype).itemsize, **PRIVATE), dtype).reshape(shape)


class Pages:
    """Allocates float32 arrays one after another, in huge pages where the system has them. A chunk is freed with its last array.

    A step reads tens of megabytes of weights: in pages of 4 KiB part of its time goes into address translation (TLB misses).
    """

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.float32)

    def allocate(self, numbers: int) -> Any:
        """An uninitialised array of so many float32 numbers."""
        room = -(-numbers // LINE) * LINE
        if room > len(self._chunk):
            self._chunk = np.frombuffer(_large(max(CHUNK, 4 * room)), np.float32)
        taken, self._chunk = self._chunk[:numbers], self._chunk[room:]
        return taken


def _large(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, **PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
