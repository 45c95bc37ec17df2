"""Tree: the KV cache of every scored token, as tensors. One slot per token; a hypothesis' context is its ancestors' slots.

No copy per beam and no reordering: a child only adds its own token. `paths`, an array, holds for every slot its ancestors' slots
by position, so that the contexts of a whole step are gathered with one index. `Sources` holds the encoder's keys and values, one
copy for each input in flight, adjacent, so that no step has to gather them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from .operations import zeros
from .step_rows import Arrays, Entry, NativeSources, NativeTree, Rows


@dataclass
class MaskedRows(Rows):
    """Rows as tensors, with the additive mask that torch's attention takes."""

    dtype: torch.dtype
    same_length: bool  # whether all have equally many ancestors: a mask would hide nothing

    @cached_property
    def mask(self) -> torch.Tensor:
        """(rows, context): 0 where there is an ancestor, the dtype's most negative number beyond."""
        beyond = torch.arange(self.paths.shape[1], device=self.paths.device, dtype=torch.int32) > self.positions[:, None]
        zeros = torch.zeros(self.paths.shape, dtype=self.dtype, device=self.paths.device)
        return zeros.masked_fill_(beyond, torch.finfo(self.dtype).min)


class Tensors(Arrays):
    """Keys and values as tensors instead of arrays, for any device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, **room: int) -> None:
        self.device = device
        self.dtype = dtype
        super().__init__(**room)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return zeros(*shape, dtype=dtype, device=self.device)


class Tree(Tensors, NativeTree):
    """The tree with keys and values as tensors."""

    _contexts: torch.Tensor | None = None

    def rows(self, table: list[Entry], counts: list[int]) -> MaskedRows:
        rows = super().rows(table, counts)
        same_length = int(rows.positions.min()) + 1 == rows.paths.shape[1]
        arrays = rows.tokens, rows.positions, rows.slots, rows.sentences, rows.paths
        moved = (torch.from_numpy(each).to(self.device, non_blocking=True) for each in arrays)
        tokens, positions, slots, sentences, paths = moved
        return MaskedRows(tokens, positions, slots, sentences, paths, rows.counts, rows.places, self.dtype, same_length)

    def extend(self, index: int, rows: Rows, keys_values: torch.Tensor) -> torch.Tensor:
        """Write a layer's keys and values of the rows, (rows, 2 width); returns each row's context, (rows, context, 2 width).

        Valid until the next call: all layers share this memory, which is then in the CPU's cache.
        """
        pool = self.layer(index, keys_values.shape[1] // 2).view(-1, keys_values.shape[1])
        pool.index_copy_(0, rows.slots.long(), keys_values)
        cells = rows.paths.numel()
        if self._contexts is None or self._contexts.shape[0] < cells or self._contexts.shape[1] != pool.shape[1]:
            self._contexts = pool.new_empty(2 * cells, pool.shape[1])
        torch.index_select(pool, 0, rows.paths.reshape(-1), out=self._contexts[:cells])
        return self._contexts[:cells].view(*rows.paths.shape, -1)


def source_width(config: Any) -> int:
    """The width of the encoder's output. Configs of composite models hold it in those of their parts."""
    parts: list[Any] = [getattr(config, name, None) for name in ("encoder", "vision_config")]
    parts += [config, getattr(config, "text_config", None)]
    return int(next(part.hidden_size for part in parts if hasattr(part, "hidden_size")))


class Sources(Tensors, NativeSources):
    """The sources as tensors, with the additive mask that torch's attention takes."""

    gathered: tuple[Any, list[Any]] | None = None  # `HookedStep`'s layers per row and their key; dropped when inputs change

    @cached_property
    def mask(self) -> torch.Tensor:
        """(inputs, longest source): 0 where there is a token, very negative beyond. Dropped when inputs change."""
        beyond = torch.arange(self.longest()) >= torch.tensor(self.lengths)[:, None]
        mask = torch.zeros(beyond.shape, dtype=self.dtype).masked_fill_(beyond, torch.finfo(self.dtype).min)
        return mask.to(self.device)

    def longest(self) -> int:
        return max(self.lengths)

    def reserve(self, lengths: list[int], layers: int, heads: int, size: int) -> range:
        self._invalidate()
        return super().reserve(lengths, layers, heads, size)

    def add(self, layers: list[torch.Tensor], lengths: list[int]) -> range:
        """Add a batch: `layers` as (batch, 2, heads, length, head size), padded on the right. Returns its places."""
        _, _, heads, length, size = layers[0].shape
        places = self.reserve(lengths, len(layers), heads, size)
        for mine, new in zip(self.layers, layers, strict=True):
            mine[:, places.start : places.stop, :, :length] = new.transpose(0, 1)[:, :, :, : mine.shape[3]]
        return places

    def remove(self, place: int) -> int:
        self._invalidate()
        return super().remove(place)

    def _invalidate(self) -> None:
        self.gathered = None
        vars(self).pop("mask", None)
