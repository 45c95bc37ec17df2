"""NativeTree and NativeSources: what `Tree` and `Sources` are, in numpy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..step_rows import Entry, Rows, Slots, blank, generations, places_of


class NativeTree(Slots):
    """One slot a token; `paths` holds for every slot the slots of its ancestors by position."""

    def __init__(self, capacity: int = 1024, context: int = 64) -> None:
        super().__init__(capacity)
        self.layers: list[Any] = []  # (capacity, 2, width) for each layer
        self.paths = blank((capacity, context), np.int32)

    def grown(self, old: int) -> None:
        self.paths = _larger(self.paths, (self.capacity, self.paths.shape[1]))
        self.layers = [_larger(layer, (self.capacity, *layer.shape[1:])) for layer in self.layers]

    def layer(self, index: int, width: int) -> Any:
        """The keys and values of a layer, `width` numbers each a token; made when first asked for."""
        while len(self.layers) <= index:
            self.layers.append(blank((self.capacity, 2, width)))
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
            self.paths = _larger(self.paths, (self.capacity, 2 * self.paths.shape[1]))


class NativeSources:
    """Inputs in flight stand in places 0 to n - 1; when one leaves, the last takes its place."""

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
            self.layers = [_larger(layer, shape) for layer in self.layers] or [blank(shape) for _ in range(layers)]
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


def _larger(array: Any, shape: tuple[int, ...]) -> Any:
    """A copy with room for more: zeros beyond what it held."""
    grown = blank(shape, array.dtype)
    grown[tuple(slice(n) for n in array.shape)] = array
    return grown
