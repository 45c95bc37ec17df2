"""Tree: where the keys and values of every scored token live. One slot a token; a hypothesis' context is its ancestors' slots.

No copy per beam, no reordering: a child only adds its own token. `paths` holds, for every slot, the slots of its ancestors by
position, so that the contexts of a whole step are gathered with one index. Sources: the encoder's keys and values, one copy for
each input in flight, side by side so that no step has to gather them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .operations import zeros
from .step_rows import Entry, Rows, Slots, generations, places_of, prompts


@dataclass
class MaskedRows(Rows):
    """Rows as tensors, with the mask that torch's attention wants."""

    dtype: torch.dtype
    even: bool  # whether all have equally many ancestors, so that a mask would hide nothing

    @cached_property
    def mask(self) -> torch.Tensor:
        """(rows, context) 0 where there is an ancestor, very negative beyond."""
        beyond = torch.arange(self.paths.shape[1], device=self.paths.device, dtype=torch.int32) > self.positions[:, None]
        zeros = torch.zeros(self.paths.shape, dtype=self.dtype, device=self.paths.device)
        return zeros.masked_fill_(beyond, torch.finfo(self.dtype).min)


class Tree(Slots):
    """The tree as tensors, for any device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int = 1024, context: int = 64) -> None:
        super().__init__(capacity)
        self.device = device
        self.dtype = dtype
        self.layers: list[torch.Tensor] = []  # (capacity, 2, key-value heads * head size) for each layer
        self.paths = torch.zeros(capacity, context, dtype=torch.int32, device=device)
        self._contexts = torch.empty(0, 0, dtype=dtype, device=device)

    def grown(self, old: int) -> None:
        self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)])
        for index, layer in enumerate(self.layers):
            self.layers[index] = zeros(2 * old, *layer.shape[1:], dtype=layer.dtype, device=self.device)
            self.layers[index][:old] = layer

    def layer(self, index: int, width: int) -> torch.Tensor:
        """The keys and values of a layer, `width` numbers each a token; made when first asked for."""
        while len(self.layers) <= index:
            self.layers.append(zeros(self.capacity, 2, width, dtype=self.dtype, device=self.device))
        return self.layers[index]

    def rows(self, table: list[Entry], counts: list[int]) -> MaskedRows:
        """Rows from (token, position, slot, parent's slot, sentence) each; a parent is known, or a row before its children."""
        numbers = torch.from_numpy(np.array(table, np.int32).T.copy()).to(self.device, non_blocking=True)
        tokens, positions, slots, parents, sentences = numbers
        longest = max(row[1] for row in table) + 1
        even = all(row[1] == longest - 1 for row in table)
        while longest > self.paths.shape[1]:
            self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)], 1)
        if len(table) > len(counts) and prompts(table, counts):
            paths = self._prompts(slots, counts, longest)
        else:
            for some in generations(table):
                paths = self.paths[:, :longest].index_select(0, parents[some])
                if even:
                    paths[:, -1] = slots[some]
                else:
                    paths.scatter_(1, positions[some][:, None].long(), slots[some][:, None])
                self.paths[slots[some], :longest] = paths
            if len(paths) < len(table):
                paths = self.paths[slots, :longest]
        return MaskedRows(tokens, positions, slots, sentences, paths, counts, places_of(table, counts), self.dtype, even)

    def _prompts(self, slots: torch.Tensor, counts: list[int], longest: int) -> torch.Tensor:
        """The paths of whole prompts at once, where token by token would take as many turns as the longest has tokens."""
        paths = slots.new_zeros(len(slots), longest)
        for rows, own in zip(paths.split(counts), slots.split(counts), strict=True):
            rows[:, : len(own)] = own.expand(len(own), -1).tril()
        self.paths[slots, :longest] = paths
        return paths

    def extend(self, index: int, rows: Rows, keys_values: torch.Tensor) -> torch.Tensor:
        """Write the rows' keys and values (rows, 2 width) of a layer; returns each row's context, (rows, context, 2 width).

        It stays until the next call: all layers use the same memory, which is in the cache by then.
        """
        pool = self.layer(index, keys_values.shape[1] // 2).view(-1, keys_values.shape[1])
        pool.index_copy_(0, rows.slots.long(), keys_values)
        cells = rows.paths.numel()
        if self._contexts.shape[0] < cells or self._contexts.shape[1] != pool.shape[1]:
            self._contexts = pool.new_empty(2 * cells, pool.shape[1])
        torch.index_select(pool, 0, rows.paths.reshape(-1), out=self._contexts[:cells])
        return self._contexts[:cells].view(*rows.paths.shape, -1)


def source_width(config: Any) -> int:
    """How many numbers there are for each token of the encoder's output; configs of models made of two have it in their parts."""
    parts: list[Any] = [getattr(config, name, None) for name in ("encoder", "vision_config")]
    parts += [config, getattr(config, "text_config", None)]
    return int(next(part.hidden_size for part in parts if hasattr(part, "hidden_size")))


class Sources:
    """Inputs in flight stand in places 0 to n - 1; when one leaves, the last takes its place."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.layers: list[torch.Tensor] = []  # (2, capacity, heads, source length, head size)
        self.mask = torch.zeros(0, 0, dtype=dtype, device=device)  # (capacity, source length)
        self.lengths: list[int] = []
        self.gathered: tuple[Any, list[Any]] | None = None  # for which rows, and what a step made of them, while inputs stay

    def __len__(self) -> int:
        return len(self.lengths)

    def longest(self) -> int:
        return max(self.lengths)

    def reserve(self, lengths: list[int], layers: int, heads: int, size: int) -> range:
        """Places for inputs of these lengths, to be filled. Returns them."""
        first, n = len(self), len(lengths)
        self._make_room(first + n, layers, heads, max(lengths), size)
        beyond = torch.arange(self.mask.shape[1]) >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(beyond.shape, dtype=self.dtype).masked_fill_(beyond, torch.finfo(self.dtype).min)
        self.mask[first : first + n] = mask
        self.lengths += lengths
        self.gathered = None
        return range(first, first + n)

    def add(self, layers: list[torch.Tensor], lengths: list[int]) -> range:
        """Add a batch: `layers` as (batch, 2, heads, length, head size), padded on the right. Returns their places."""
        _, _, heads, length, size = layers[0].shape
        places = self.reserve(lengths, len(layers), heads, size)
        for mine, new in zip(self.layers, layers, strict=True):
            mine[:, places.start : places.stop, :, :length] = new.transpose(0, 1)[:, :, :, : mine.shape[3]]
        return places

    def remove(self, place: int) -> int:
        """Drop the input at `place`; returns the place whose input has moved there (the last)."""
        last = len(self) - 1
        if place != last:
            length = self.lengths[last]
            for layer in self.layers:
                layer[:, place, :, :length] = layer[:, last, :, :length]
            self.mask[place] = self.mask[last]
            self.lengths[place] = length
        self.lengths.pop()
        self.gathered = None
        return last

    def _make_room(self, n: int, layers: int, heads: int, length: int, size: int) -> None:
        have, long = (self.layers[0].shape[1], self.layers[0].shape[3]) if self.layers else (0, 0)
        if n <= have and length <= long:
            return
        n, length = max(n, have), max(length, long)
        grown = [zeros(2, n, heads, length, size, dtype=self.dtype, device=self.device) for _ in range(layers)]
        mask = torch.full((n, length), torch.finfo(self.dtype).min, dtype=self.dtype, device=self.device)
        for new, old in zip(grown, self.layers, strict=False):
            new[:, :have, :, :long] = old
        mask[:have, :long] = self.mask
        self.layers, self.mask = grown, mask
