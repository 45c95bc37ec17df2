"""Linear: a product and a bias, laid out for few rows at a time."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

PADDING = 16  # numbers: a cache line


class Linear:
    """x W^T + b, from a module's own weights.

    On a CPU the weights are kept transposed, a copy: with a few dozen rows the product is then up to a third faster
    (`docs/engine.md`).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._result: torch.Tensor | None = None

    @cached_property
    def transposed(self) -> torch.Tensor | None:
        """(inputs, outputs). Rows are a little longer than their numbers: lines a power of two apart would share cache sets."""
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            return None
        outputs, inputs = self.weight.shape
        return self.weight.new_empty(inputs, outputs + PADDING)[:, :outputs].copy_(self.weight.t())

    @classmethod
    def join(cls, *modules: Any) -> Linear:
        """Several that take the same input, as one."""
        if len(modules) == 1:
            return cls(modules[0].weight, modules[0].bias)
        weight = torch.cat([module.weight for module in modules])
        if all(module.bias is None for module in modules):
            return cls(weight, None)
        return cls(weight, torch.cat([m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]))

    def again(self, x: torch.Tensor) -> torch.Tensor:
        """As a call, into the memory that the last one used: large results are not allocated at every step."""
        if self.transposed is None or self.bias is None:
            return self(x)
        if self._result is None or len(self._result) < len(x):
            self._result = x.new_empty(2 * len(x), len(self.weight))
        return torch.addmm(self.bias, x, self.transposed, out=self._result[: len(x)])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.transposed is None or x.dim() != 2:
            return F.linear(x, self.weight, self.bias)
        return x @ self.transposed if self.bias is None else torch.addmm(self.bias, x, self.transposed)
