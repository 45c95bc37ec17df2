"""Tree: where the keys and values of every scored token live. One slot a token; a hypothesis' context is its ancestors' slots.

No copy per beam, no reordering: a child only adds its own token. `paths` holds, for every slot, the slots of its ancestors by
position, so that the contexts of a whole step are gathered with one index.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass
class Rows:
    """One forward pass: a row is one token to be scored in its context. Rows of one sentence stand together."""

    tokens: torch.Tensor  # (rows,)
    positions: torch.Tensor  # (rows,) how many tokens stand before it
    slots: torch.Tensor  # (rows,) where its keys and values go
    paths: torch.Tensor  # (rows, context) slots of its ancestors and itself, by position; slot 0 beyond
    mask: torch.Tensor  # (rows, context) 0 where there is an ancestor, very negative beyond
    sentences: torch.Tensor  # (rows,) place of its input among the sources
    moves: tuple[torch.Tensor, torch.Tensor] | None  # which slots go to which cells of the workbench; None: there is none
    counts: list[int]  # rows of each sentence that has any, in order
    places: list[int]  # and these sentences' places


class Tree:
    """Slots for tokens, given out and taken back. Slot 0 is never given out: it stands for no token."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int = 1024, context: int = 64) -> None:
        self.device = device
        self.dtype = dtype
        self.layers: list[torch.Tensor] = []  # (capacity, 2, key-value heads * head size) for each layer
        self.paths = torch.zeros(capacity, context, dtype=torch.int32, device=device)
        self._free = list(range(capacity - 1, 0, -1))
        self.workbench = Workbench(dtype)
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
        self.layers = [torch.cat([layer, torch.zeros_like(layer)]) for layer in self.layers]

    def layer(self, index: int, width: int) -> torch.Tensor:
        """The keys and values of a layer, `width` numbers each a token; made when first asked for."""
        while len(self.layers) <= index:
            self.layers.append(torch.zeros(self.capacity, 2, width, dtype=self.dtype, device=self.device))
        return self.layers[index]

    def rows(self, table: list[tuple[int, int, int, int, int]], counts: list[int]) -> Rows:
        """Rows from (token, position, slot, parent's slot, sentence) each; a parent may stand in the same table, before its child."""
        numbers = torch.tensor(table, dtype=torch.int32).to(self.device, non_blocking=True)
        tokens, positions, slots, parents, sentences = numbers.unbind(1)
        longest = max(row[1] for row in table) + 1
        while longest > self.paths.shape[1]:
            self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)], 1)
        paths = self.paths[parents, :longest]
        paths.scatter_(1, positions[:, None].long(), slots[:, None])
        self.paths[slots, :longest] = paths
        beyond = torch.arange(longest, device=self.device, dtype=torch.int32) > positions[:, None]
        mask = torch.zeros(paths.shape, dtype=self.dtype, device=self.device).masked_fill_(beyond, torch.finfo(self.dtype).min)
        firsts = [0, *accumulate(counts[:-1])]
        moves = self.workbench.lay(paths, beyond, slots) if self.device.type == "cpu" else None
        return Rows(tokens, positions, slots, paths, mask, sentences, moves, counts, [table[row][4] for row in firsts])

    def extend(self, index: int, rows: Rows, keys_values: torch.Tensor) -> torch.Tensor:
        """Write the rows' keys and values (rows, 2 width) of a layer; returns each row's context, (rows, context, 2 width)."""
        pool = self.layer(index, keys_values.shape[1] // 2).view(-1, keys_values.shape[1])
        pool.index_copy_(0, rows.slots.long(), keys_values)
        if rows.moves is None:
            return pool.index_select(0, rows.paths.reshape(-1)).view(*rows.paths.shape, -1)
        return self.workbench.context(index, pool, rows.moves, rows.paths.shape)

    def prompt_rows(self, tokens: list[tuple[int, int, int, int, int]], counts: list[int]) -> Rows:
        """Rows of prompts: each token's parent is in the same step, so their paths are laid one after another."""
        for token in tokens:
            _, position, slot, parent, _ = token
            while position >= self.paths.shape[1]:
                self.paths = torch.cat([self.paths, torch.zeros_like(self.paths)], 1)
            self.paths[slot] = self.paths[parent]
            self.paths[slot, position] = slot
        return self.rows(tokens, counts)


class Workbench:
    """The contexts of a step's rows side by side, kept from step to step (on a CPU, where copying costs as much as computing).

    A search mostly goes on where it was: the next row of an input shares most of its context with the last one. So only tokens
    that were not in the same cell before are moved there.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.layers: list[torch.Tensor] = []  # (rows, context, 2 width)
        self._held = torch.zeros(0, 0, dtype=torch.int64)  # (rows, context) which token a cell holds
        self._names = torch.zeros(0, dtype=torch.int64)  # (slots,) the token in a slot; slots are used again, names are not
        self._named = 0

    def lay(self, paths: torch.Tensor, beyond: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Lay the contexts of new tokens in `slots`: which slots are to be copied, and to which cells."""
        n, context = paths.shape
        if n > self._held.shape[0] or context > self._held.shape[1]:
            rows, length = max(n, self._held.shape[0]), max(context + context // 2, self._held.shape[1])
            self._held = torch.zeros(rows, length, dtype=torch.int64)
            self.layers = [layer.new_zeros(rows, length, layer.shape[2]) for layer in self.layers]
        needed = int(slots.max()) + 1
        if needed > len(self._names):
            self._names = torch.cat([self._names, torch.zeros(2 * needed - len(self._names), dtype=torch.int64)])
        self._names[slots] = torch.arange(self._named + 1, self._named + n + 1)
        self._named += n
        names = self._names[paths]
        held = self._held[:n, :context]
        changed = (names != held) & ~beyond
        held[changed] = names[changed]
        row, column = changed.nonzero(as_tuple=True)
        return paths[row, column], row * self._held.shape[1] + column

    def context(self, index: int, pool: torch.Tensor, moves: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> torch.Tensor:
        """A layer's contexts, after what is new in them has been moved in from the pool."""
        while len(self.layers) <= index:
            self.layers.append(pool.new_zeros(*self._held.shape, pool.shape[1]))
        layer = self.layers[index]
        layer.view(-1, pool.shape[1]).index_copy_(0, moves[1], pool.index_select(0, moves[0]))
        return layer[: shape[0], : shape[1]]
