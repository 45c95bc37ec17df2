"""Linear: a product and a bias, and where it can be, the activation after it, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F


@dataclass
class Linear:
    """x W^T + b, and the activation of that; fused where torch can."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: Any = None

    @classmethod
    def join(cls, *modules: Any, activation: Any = None) -> Linear:
        """Several that take the same input, as one."""
        weights = [module.weight.detach() for module in modules]
        biases = [w.new_zeros(len(w)) if m.bias is None else m.bias.detach() for m, w in zip(modules, weights, strict=True)]
        return cls(torch.cat(weights), torch.cat(biases), activation)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.activation is None:
            return F.linear(x, self.weight, self.bias)
        if isinstance(self.activation, torch.nn.ReLU) and x.is_cuda:
            return torch._addmm_activation(self.bias, x, self.weight.t())
        return self.activation(F.linear(x, self.weight, self.bias))
