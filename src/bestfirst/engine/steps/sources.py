"""Sources: the encoder's keys and values, one copy for each input in flight, side by side so that no step has to gather them."""

from __future__ import annotations

from typing import Any

import torch

from .operations import zeros


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
