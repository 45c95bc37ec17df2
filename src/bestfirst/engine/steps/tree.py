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
from .step_rows import Arrays, Entry, NativeSources, NativeTree, Rows, generations, places_of, prompts


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


class Tensors(Arrays):
    """Tensors in place of arrays, for any device and dtype."""

    integers = torch.int32

    def __init__(self, device: torch.device, dtype: torch.dtype, **room: int) -> None:
        self.device = device
        self.dtype = dtype
        super().__init__(**room)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return zeros(*shape, dtype=dtype, device=self.device)


class Tree(Tensors, NativeTree):
    """The tree as tensors."""

    _contexts: torch.Tensor | None = None

    def rows(self, table: list[Entry], counts: list[int]) -> MaskedRows:
        """Rows from (token, position, slot, parent's slot, sentence) each; a parent is known, or a row before its children."""
        numbers = torch.from_numpy(np.array(table, np.int32).T.copy()).to(self.device, non_blocking=True)
        tokens, positions, slots, parents, sentences = numbers
        longest = max(row[1] for row in table) + 1
        even = all(row[1] == longest - 1 for row in table)
        self.reach(longest)
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
        if self._contexts is None or self._contexts.shape[0] < cells or self._contexts.shape[1] != pool.shape[1]:
            self._contexts = pool.new_empty(2 * cells, pool.shape[1])
        torch.index_select(pool, 0, rows.paths.reshape(-1), out=self._contexts[:cells])
        return self._contexts[:cells].view(*rows.paths.shape, -1)


def source_width(config: Any) -> int:
    """How many numbers there are for each token of the encoder's output; configs of models made of two have it in their parts."""
    parts: list[Any] = [getattr(config, name, None) for name in ("encoder", "vision_config")]
    parts += [config, getattr(config, "text_config", None)]
    return int(next(part.hidden_size for part in parts if hasattr(part, "hidden_size")))


class Sources(Tensors, NativeSources):
    """The sources as tensors, with the mask that torch's attention wants."""

    gathered: tuple[Any, list[Any]] | None = None  # for which rows, and what a step made of them, while inputs stay

    @cached_property
    def mask(self) -> torch.Tensor:
        """(inputs, longest source) 0 where there is a token, very negative beyond; while inputs stay."""
        beyond = torch.arange(self.longest()) >= torch.tensor(self.lengths)[:, None]
        mask = torch.zeros(beyond.shape, dtype=self.dtype).masked_fill_(beyond, torch.finfo(self.dtype).min)
        return mask.to(self.device)

    def longest(self) -> int:
        return max(self.lengths)

    def reserve(self, lengths: list[int], layers: int, heads: int, size: int) -> range:
        self._changed()
        return super().reserve(lengths, layers, heads, size)

    def add(self, layers: list[torch.Tensor], lengths: list[int]) -> range:
        """Add a batch: `layers` as (batch, 2, heads, length, head size), padded on the right. Returns their places."""
        _, _, heads, length, size = layers[0].shape
        places = self.reserve(lengths, len(layers), heads, size)
        for mine, new in zip(self.layers, layers, strict=True):
            mine[:, places.start : places.stop, :, :length] = new.transpose(0, 1)[:, :, :, : mine.shape[3]]
        return places

    def remove(self, place: int) -> int:
        self._changed()
        return super().remove(place)

    def _changed(self) -> None:
        self.gathered = None
        vars(self).pop("mask", None)
