"""Tree: where the keys and values of every scored token live. One slot a token; a hypothesis' context is its ancestors' slots.

No copy per beam, no reordering: a child only adds its own token. `paths` holds, for every slot, the slots of its ancestors by
position, so that the contexts of a whole step are gathered with one index.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from .memory import zeros

if TYPE_CHECKING:
    from .sources import Sources


@dataclass
class Rows:
    """One forward pass: a row is one token to be scored in its context. Rows of one sentence stand together."""

    tokens: torch.Tensor  # (rows,)
    positions: torch.Tensor  # (rows,) how many tokens stand before it
    slots: torch.Tensor  # (rows,) where its keys and values go
    sentences: torch.Tensor  # (rows,) place of its input among the sources
    paths: torch.Tensor  # (rows, context) slots of its ancestors and itself, by position; slot 0 beyond
    counts: list[int]  # rows of each sentence that has any, in order
    places: list[int]  # and these sentences' places
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.tokens)

    def check(self, vocabulary: int, positions: int, tree: Tree, sources: Sources) -> None:
        """Raise ValueError, naming the value, for a number that compiled kernels must not see: they check no index."""
        check_range("a token's id", self.tokens.numpy(), vocabulary)
        check_range("a token's position", self.positions.numpy(), min(positions, self.paths.shape[1]))
        check_range("a token's slot", self.slots.numpy(), tree.capacity)
        check_range("an ancestor's slot", self.paths.numpy(), tree.capacity)
        check_range("an input's place", self.sentences.numpy(), len(sources))

    @cached_property
    def mask(self) -> torch.Tensor:
        """(rows, context) 0 where there is an ancestor, very negative beyond."""
        beyond = torch.arange(self.paths.shape[1], device=self.paths.device, dtype=torch.int32) > self.positions[:, None]
        zeros = torch.zeros(self.paths.shape, dtype=self.dtype, device=self.paths.device)
        return zeros.masked_fill_(beyond, torch.finfo(self.dtype).min)


def check_range(what: str, numbers: Any, end: int, first: int = 0) -> None:
    """Raise ValueError unless all of these (an array that is not empty) are in range(first, end)."""
    least, most = int(numbers.min()), int(numbers.max())
    if least < first or most >= end:
        raise ValueError(f"{what} must be from {first} to {end - 1}, got {least if least < first else most}")


class Tree:
    """Slots for tokens, given out and taken back. Slot 0 is never given out: it stands for no token."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int = 1024, context: int = 64) -> None:
        self.device = device
        self.dtype = dtype
        self.layers: list[torch.Tensor] = []  # (capacity, 2, key-value heads * head size) for each layer
        self.paths = torch.zeros(capacity, context, dtype=torch.int32, device=device)
        self._free = list(range(capacity - 1, 0, -1))
        self._contexts = torch.empty(0, 0, dtype=dtype, device=device)
        self.used = 0
        self.most_used = 0

    @property
    def capacity(self) -> int:
        return self.paths.shape[0]

    def allocate(self, n: int) -> list[int]:
        """`n` slots, more room being made when there is none."""
        while len(self._free) < n:
            self._grow()
        self.used += n
        self.most_used = max(self.most_used, self.used)
        taken = self._free[-n:]
        del self._free[-n:]
        return taken

    def release(self, slots: list[int]) -> None:
        """Take slots back."""
        self._free += slots
        self.used -= len(slots)

    def _grow(self) -> None:
        old = self.capacity
        self._free = [*range(2 * old - 1, old - 1, -1), *self._free]
        self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)])
        for index, layer in enumerate(self.layers):
            self.layers[index] = zeros(2 * old, *layer.shape[1:], dtype=layer.dtype, device=self.device)
            self.layers[index][:old] = layer

    def layer(self, index: int, width: int) -> torch.Tensor:
        """The keys and values of a layer, `width` numbers each a token; made when first asked for."""
        while len(self.layers) <= index:
            self.layers.append(zeros(self.capacity, 2, width, dtype=self.dtype, device=self.device))
        return self.layers[index]

    def rows(self, table: list[tuple[int, int, int, int, int]], counts: list[int]) -> Rows:
        """Rows from (token, position, slot, parent's slot, sentence) each; a parent's path must be known."""
        numbers = torch.tensor(table, dtype=torch.int32).t().contiguous().to(self.device, non_blocking=True)
        tokens, positions, slots, parents, sentences = numbers
        longest = max(row[1] for row in table) + 1
        while longest > self.paths.shape[1]:
            self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)], 1)
        paths = self.paths[parents, :longest]
        paths.scatter_(1, positions[:, None].long(), slots[:, None])
        self.paths[slots, :longest] = paths
        firsts = [0, *accumulate(counts[:-1])]
        return Rows(tokens, positions, slots, sentences, paths, counts, [table[row][4] for row in firsts], self.dtype)

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

    def prompt_rows(self, tokens: list[tuple[int, int, int, int, int]], counts: list[int]) -> Rows:
        """Rows of prompts: each token's parent is in the same step, so their paths are laid one after another."""
        for token in tokens:
            _, position, slot, parent, _ = token
            while position >= self.paths.shape[1]:
                self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)], 1)
            self.paths[slot] = self.paths[parent]
            self.paths[slot, position] = slot
        return self.rows(tokens, counts)
