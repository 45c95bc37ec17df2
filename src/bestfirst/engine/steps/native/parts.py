"""Parts: what a BART-like encoder and decoder are made of between the attentions, and the memory that they work in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from ..bart import FusedLayer
from ..bart_weights import BartSide, LayerNorm
from ..memory import Pages
from ..operations import Linear
from . import kernels, tiles


class Array(NamedTuple):
    """The same numbers as torch and as kernels see them."""

    t: torch.Tensor
    n: Any  # numpy.ndarray


class Workspace:
    """Named arrays of given widths, for as many rows as are asked for: large results are not allocated at every step."""

    def __init__(self, **widths: int) -> None:
        self._widths = widths
        self._memory: dict[str, torch.Tensor] = {}
        self._views: dict[int, dict[str, Array]] = {}
        self._rows = 0

    def of(self, rows: int) -> dict[str, Array]:
        """The arrays, (rows, width) each; their contents are those of the last use."""
        if rows > self._rows:
            self._rows = 2 * rows
            self._memory = {name: torch.empty(self._rows, width) for name, width in self._widths.items()}
            self._views = {}
        if rows not in self._views:
            views = {name: memory[:rows] for name, memory in self._memory.items()}
            self._views[rows] = {name: Array(view, view.numpy()) for name, view in views.items()}
        return self._views[rows]


class Product:
    """x W^T into given memory; the bias is left to the kernel that comes next, which passes over the result anyway.

    Compiled (`tiles`) where one thread works; with more, torch's, which uses them all.
    """

    def __init__(self, linear: Linear, pages: Pages) -> None:
        self.linear, self._pages = linear, pages
        outputs, inputs = linear.weight.shape
        self._tiled = tiles.suit(inputs, outputs)
        bias = linear.weight.new_zeros(outputs) if linear.bias is None else linear.bias.detach()
        self.bias = bias.contiguous().numpy()

    @cached_property
    def packed(self) -> Any:
        """The weights, as tiles want them; made when first needed."""
        packed = self._pages.take(self.linear.weight.numel())
        tiles.pack(self.linear.weight.detach().contiguous().numpy(), tiles.BLOCK, packed)
        return packed

    def __call__(self, x: Array, out: Array) -> None:
        if self._tiled and torch.get_num_threads() == 1:
            tiles.by_panels(x.n, self.packed, tiles.BLOCK, tiles.ZEROS, out.n)
        else:
            assert self.linear.transposed is not None  # float32, on a CPU
            torch.mm(x.t, self.linear.transposed, out=out.t)


class FeedForward:
    """fc2(activation(fc1 x)), without the last bias."""

    def __init__(self, fc1: Linear, fc2: Linear, activation: Any, pages: Pages) -> None:
        self.up, self.down = Product(fc1, pages), Product(fc2, pages)
        self.bias = self.down.bias
        self.activation = activation
        self.relu = isinstance(activation, torch.nn.ReLU) or activation is torch.nn.functional.relu

    def __call__(self, x: Array, inner: Array, out: Array) -> None:
        self.up(x, inner)
        if self.relu:
            kernels.relu(inner.n, self.up.bias)
        else:
            inner.t.copy_(self.activation(inner.t.add_(torch.from_numpy(self.up.bias))))
        self.down(inner, out)


class NativeLayer:
    """One layer's products, of a decoder or encoder."""

    def __init__(self, layer: FusedLayer, pages: Pages) -> None:
        self.heads, self.scaling = layer.heads, np.float32(layer.scaling)
        self.qkv, self.own_out = Product(layer.qkv, pages), Product(layer.own_out, pages)
        if layer.cross_norm is not None:
            self.cross_q, self.cross_out = Product(layer.cross_q, pages), Product(layer.cross_out, pages)
            self.cross_kv = Product(layer.cross_kv, pages)
        self.forward = FeedForward(layer.fc1, layer.fc2, layer.activation, pages)


def native_norms(side: BartSide) -> list[LayerNorm]:
    """All norms of the layers and the last, as kernels want them."""
    if side.norm_first != (side.last_norm is not None):
        raise TypeError("a model that normalises in an order that is not known here")
    return [LayerNorm(norm.weight.numpy(), norm.bias.numpy(), np.float32(norm.eps)) for norm in side.norms()]


class ResidualStream:
    """What flows through the layers: `x` the sum so far, `h` what the next block gets.

    A model that normalises first gives a block the norm of the sum; another makes the sum itself the norm.
    """

    def __init__(self, x: Array, h: Array, norms: Iterable[LayerNorm], norm_first: bool) -> None:
        self.x = x
        self.h = h if norm_first else x
        self._norms = iter(norms)
        if norm_first:
            norm = next(self._norms)
            kernels.norm(x.n, norm.weight, norm.bias, norm.eps, h.n)

    def add(self, y: Array, bias: Any) -> None:
        """Add what a block has made of `h`, and the block's last bias."""
        norm = next(self._norms)
        kernels.add_norm(self.x.n, y.n, bias, norm.weight, norm.bias, norm.eps, self.h.n)
