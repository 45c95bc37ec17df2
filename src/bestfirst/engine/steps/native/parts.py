"""Parts: the projections, norms and feed-forward of a compiled encoder or decoder layer, and its workspace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..bart_weights import Affine, BartSide, JoinedLayer, LayerNorm
from ..step_rows import Pages
from . import calls as kernels
from .registers import COPIES, HERE, QUAD

ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "silu": 3, "swish": 3}
"""Activations with a compiled kernel: their names in configs, and their numbers in `kernels.activate`."""
BYTE_LANES = 1 if HERE.eight is None else HERE.eight.lanes


class Workspace:
    """Named float32 buffers of given widths that grow with the number of rows: large results are not allocated at every step."""

    def __init__(self, **widths: int) -> None:
        self._widths = widths
        self._memory: dict[str, Any] = {}
        self._views: dict[int, dict[str, Any]] = {}
        self._rows = 0

    def with_own_workspace(self) -> Workspace:
        """New buffers of the same names and widths."""
        return Workspace(**self._widths)

    def of(self, rows: int) -> dict[str, Any]:
        """The buffers as (rows, width) views, by name; contents are undefined."""
        if rows > self._rows:
            self._rows = 2 * rows
            self._memory = {name: np.empty((self._rows, width), np.float32) for name, width in self._widths.items()}
            self._views = {}
        if rows not in self._views:
            self._views[rows] = {name: memory[:rows] for name, memory in self._memory.items()}
        return self._views[rows]


def quantised_size(inputs: int) -> int:
    """Bytes of a quantised row of so many inputs."""
    return COPIES * (-(-inputs // QUAD) * QUAD)


class PackedBytes(NamedTuple):
    """A matrix (outputs, inputs) in int8, packed for `int8.multiply`; outputs are padded to a multiple of BYTE_LANES."""

    weights: Any  # of (outputs, padded inputs) bytes, in panels (`int8`): not indexed by output and input
    start: Any  # (outputs,) initial value of each sum
    scales: Any  # (outputs,)

    @classmethod
    def of(cls, matrix: Any) -> PackedBytes:
        """Quantise and pack a float matrix."""
        outputs, inputs = -(-len(matrix) // BYTE_LANES) * BYTE_LANES, quantised_size(matrix.shape[1]) // COPIES
        packed = cls(np.empty((outputs, inputs), np.int8), np.empty(outputs, np.int32), np.empty(outputs, np.float32))
        kernels.pack_bytes(np.ascontiguousarray(matrix, np.float32), packed.weights.reshape(-1), packed.start, packed.scales)
        return packed

    def multiply(self, x: Any, out: Any) -> None:
        """x (rows, inputs) times the matrix' transpose, into `out` (rows, outputs)."""
        rows, scales = np.empty((len(x), COPIES, self.weights.shape[1]), np.uint8), np.empty(len(x), np.float32)
        kernels.quantise(x, rows, scales)
        kernels.multiply_bytes(rows, scales, *self, out)


class Product:
    """A projection x W^T into a given buffer. The bias is left to the next kernel, which passes over the result anyway."""

    packed: PackedBytes | None = None  # the weights, if quantised

    def __init__(self, pages: Pages, *parts: Affine, eight_bits: bool = False) -> None:
        """Several parts that take the same input become one projection."""
        weight = np.concatenate([part.weight for part in parts]) if len(parts) > 1 else np.ascontiguousarray(parts[0].weight)
        biases = [np.zeros(len(part.weight), np.float32) if part.bias is None else part.bias for part in parts]
        self.outputs, self.inputs = weight.shape
        self.bias = np.concatenate(biases)
        self.tiled = kernels.suit(self.inputs, self.outputs)
        if eight_bits and HERE.eight is not None:
            self.packed, self.tiled = PackedBytes.of(weight), False
        elif self.tiled:
            self.weights = pages.allocate(weight.size)
            kernels.pack(weight, kernels.BLOCK, self.weights)
        else:
            self.weights = weight.T

    @property
    def compiled(self) -> bool:
        """Whether it runs on compiled kernels alone, straight into a buffer of its outputs."""
        return self.tiled or (self.packed is not None and len(self.packed.scales) == self.outputs)

    def __call__(self, x: Any, out: Any) -> None:
        if self.packed is not None and self.compiled:
            self.packed.multiply(x, out)
        elif self.packed is not None:
            padded = np.empty((len(x), len(self.packed.scales)), np.float32)
            self.packed.multiply(x, padded)
            out[:] = padded[:, : self.outputs]
        elif self.tiled:
            kernels.by_panels(x, self.weights, kernels.BLOCK, kernels.ZEROS, out)
        else:
            np.matmul(x, self.weights, out=out)


def feed_forward(layer: JoinedLayer, x: Any, inner: Any, out: Any) -> None:
    """fc2(activation(fc1 x)), without the last bias."""
    layer.fc1(x, inner)
    kernels.activate(inner, layer.fc1.bias, ACTIVATIONS[layer.activation_name])
    layer.fc2(inner, out)


def native_norms(side: BartSide) -> list[LayerNorm]:
    """All layers' norms and the last one, as kernels take them. Raises TypeError for an unknown arrangement of norms."""
    if side.norm_first != (side.last_norm is not None):
        raise TypeError("a model that normalises in an order that is not known here")
    return [native_norm(norm) for norm in side.norms()]


def native_norm(norm: LayerNorm) -> LayerNorm:
    """A norm whose epsilon is a float32, as kernels are compiled for."""
    return LayerNorm(norm.weight, norm.bias, np.float32(norm.eps))


def embed(side: BartSide, tokens: Any, positions: Any, longest: int, out: Any) -> None:
    """The input of the first layer, (tokens, d), into `out`; all positions are less than `longest`."""
    kernels.embed(tokens, positions, side.embedding, np.float32(side.embed_scale), side.positions.up_to(longest), out)
    if side.first_norm is not None:
        norm = native_norm(side.first_norm)
        kernels.norm(out, norm.weight, norm.bias, norm.eps, out)


class ResidualStream:
    """The residual stream: `x` is the sum so far, `h` the next block's input: the norm of `x`, or `x` itself if post-norm."""

    def __init__(self, x: Any, h: Any, norms: Iterable[LayerNorm], norm_first: bool) -> None:
        self.x = x
        self.h = h if norm_first else x
        self._norms = iter(norms)
        if norm_first:
            norm = next(self._norms)
            kernels.norm(x, norm.weight, norm.bias, norm.eps, h)

    def add(self, y: Any, bias: Any) -> None:
        """Add a block's output and its last bias, and normalise."""
        norm = next(self._norms)
        kernels.add_norm(self.x, y, bias, norm.weight, norm.bias, norm.eps, self.h)
