"""Operations shared by the torch steps: projections laid out for few rows at a time, lazily allocated memory, top-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from .bart_weights import Affine
from .step_rows import lazy_zeros

PADDING = 16  # float32 numbers: a cache line
JOINED = 2**22  # weights: of larger projections a fused copy costs more memory than it saves time
BLOCK = 64  # columns per block of `top`; with fewer than 4 k blocks there is nothing to gain


class Linear:
    """x W^T + b of modules that take the same input, joined; on a CPU from a transposed copy, up to a third faster for a few
    dozen rows."""

    def __init__(self, *parts: Any) -> None:
        joined = join(*parts)
        self.weight: torch.Tensor = joined.weight
        self.bias: torch.Tensor | None = joined.bias
        self._result: torch.Tensor | None = None

    @cached_property
    def transposed(self) -> torch.Tensor | None:
        """(inputs, outputs), lines padded by PADDING: lines a power of two apart would compete for the same cache sets."""
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            return None
        outputs, inputs = self.weight.shape
        return self.weight.new_empty(inputs, outputs + PADDING)[:, :outputs].copy_(self.weight.t())

    def into_buffer(self, x: torch.Tensor) -> torch.Tensor:
        """As a call, but into the buffer of the last one: large results are not allocated at every step."""
        if self.transposed is None or self.bias is None:
            return self(x)
        if self._result is None or len(self._result) < len(x):
            self._result = x.new_empty(2 * len(x), len(self.weight))
        return torch.addmm(self.bias, x, self.transposed, out=self._result[: len(x)])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.transposed is None or x.dim() != 2:
            return F.linear(x, self.weight, self.bias)
        return x @ self.transposed if self.bias is None else torch.addmm(self.bias, x, self.transposed)


def join(*parts: Any) -> Affine:
    """Affine functions of the same input (anything with weight and bias) as one; a missing bias counts as 0 beside others."""
    if len(parts) == 1:
        return Affine(parts[0].weight, parts[0].bias)
    weight = torch.cat([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return Affine(weight, None)
    return Affine(weight, torch.cat([p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]))


def projection(*modules: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """One projection for modules that take the same input; large ones are multiplied one by one, without a fused copy."""
    if sum(module.weight.numel() for module in modules) <= JOINED:
        return Linear(*modules)
    parts = [(module.weight, module.bias) for module in modules]
    return lambda x: torch.cat([F.linear(x, weight, bias) for weight, bias in parts], -1)


def keep_allowed(x: torch.Tensor, allowed: Sequence[np.ndarray | None]) -> torch.Tensor:
    """x (rows, vocabulary) with -inf for every token that its row does not allow; None in `allowed` means all tokens."""
    kept = torch.full_like(x, -inf)
    for row, tokens in enumerate(allowed):
        if tokens is None:
            kept[row] = x[row]
        else:
            where = torch.from_numpy(tokens.astype(np.int64)).to(x.device)
            kept[row, where] = x[row, where]
    return kept


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As `torch.zeros`; on a CPU pages that are never used take no memory (`lazy_zeros`)."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.from_numpy(lazy_zeros((*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)).view(dtype)


def top(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row of x (rows, columns) and their columns; of equal ones those that come first, as in all searches.

    `topk` keeps any of them; the order of those it keeps is left to the caller."""
    if k >= x.shape[1]:
        return x.topk(k, -1)
    values, places = _largest(x, k + 1)
    values, places, last, next_ = values[:, :k], places[:, :k], values[:, k - 1], values[:, k]
    tied = ((last == next_) & (next_ > -inf)).nonzero()[:, 0]
    if len(tied):
        last, ranks = last[tied, None], torch.arange(k, device=x.device)
        above = (values[tied] > last).sum(1, keepdim=True)
        columns = torch.arange(x.shape[1], device=x.device)
        equal = torch.where(x[tied] == last, columns, len(columns)).topk(k, largest=False).values.sort().values
        places[tied] = torch.where(ranks < above, places[tied], equal.gather(1, (ranks - above).clamp(min=0)))
    return values, places


def _largest(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `x.topk(k)`, but faster on a CPU: the k largest lie in the k blocks with the largest maxima."""
    rows, columns = x.shape
    blocks = columns // BLOCK
    if x.device.type != "cpu" or blocks < 4 * k:
        return x.topk(k, -1)
    even = x[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    chosen = even.amax(-1).topk(k, -1).indices  # (rows, k)
    inside = even.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).view(rows, k * BLOCK)
    where = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK)).view(rows, k * BLOCK)
    if blocks * BLOCK < columns:
        inside = torch.cat([inside, x[:, blocks * BLOCK :]], 1)
        where = torch.cat([where, torch.arange(blocks * BLOCK, columns).expand(rows, -1)], 1)
    values, places = inside.topk(k, -1)
    return values, where.gather(1, places)
