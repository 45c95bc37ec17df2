"""Linear: a product with weights, as a step on the device uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from .product import pays, product


@dataclass
class Linear:
    """x W^T + b, and the activation of that; in one launch where that can be."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: Any = None

    @classmethod
    def join(cls, *modules: Any, activation: Any = None) -> Linear:
        """Several that take the same input, as one."""
        weights = [module.weight.detach() for module in modules]
        biases = [w.new_zeros(len(w)) if m.bias is None else m.bias.detach() for m, w in zip(modules, weights, strict=True)]
        return cls(torch.cat(weights), torch.cat(biases), activation)

    def __call__(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Of x (rows, inputs); rows beyond `used`, a number on the device, may hold anything."""
        relu = isinstance(self.activation, torch.nn.ReLU)
        if pays(self.weight):
            out = product(x, self.weight, self.bias, used, relu)
            return out if relu or self.activation is None else self.activation(out)
        if relu and x.is_cuda:
            return torch._addmm_activation(self.bias, x, self.weight.t())
        out = F.linear(x, self.weight, self.bias)
        return out if self.activation is None else self.activation(out)
