"""Passes: rows through all layers of an encoder or decoder in one compiled call. Few rows would wait for Python between kernels.

What differs from layer to layer is a table of addresses, so that one compiled function serves every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..bart_weights import LayerNorm
from . import int8, tiles
from .compiled import compiled
from .kernels import add_norm, cross_attention, f32, gelu, gelu_tanh, norm, own_attention, relu, self_attention, silu
from .parts import ACTIVATIONS, NativeLayer, Product

WEIGHTS, START, SCALES, BIAS, OUTPUTS, INPUTS = range(6)  # of a product; without scales it is one of float32
QKV, OWN_OUT, CROSS_Q, CROSS_OUT, UP, DOWN = range(6)  # a layer's products
BLOCK, LANES = tiles.BLOCK, int8.LANES
NAMES = [*dict.fromkeys(ACTIVATIONS.values())]
RELU, GELU, GELU_TANH, SILU = (NAMES.index(ACTIVATIONS[name]) for name in ("relu", "gelu", "gelu_new", "silu"))


class LayerTable:
    """Where the numbers of all layers of an encoder or decoder lie."""

    def __init__(self, layers: Sequence[NativeLayer], norms: Sequence[LayerNorm], norm_first: bool) -> None:
        self._held = layers, norms  # so that what is pointed at stays
        self.products = np.array([[_product(product) for product in _of_layer(layer)] for layer in layers], np.int64)
        self.norms = np.array([[norm.weight.ctypes.data, norm.bias.ctypes.data] for norm in norms], np.int64)
        self.epsilons = np.array([norm.eps for norm in norms], np.float32)
        self.norm_first = norm_first
        first = layers[0]
        self.heads, self.scaling = first.heads, first.scaling
        self.activation = NAMES.index(first.forward.activation)
        self._deepest = max(product.inputs for layer in layers for product in _of_layer(layer) if product is not None)
        self._room = np.empty((0, int8.COPIES, int8.padded(self._deepest)), np.uint8)
        self._scales = np.empty(0, np.float32)

    @staticmethod
    def takes(layers: Sequence[NativeLayer]) -> bool:
        """Whether all products are compiled ones, and layers differ in their numbers alone."""
        products = [product for layer in layers for product in _of_layer(layer) if product is not None]
        alike = {(layer.heads, layer.scaling, layer.forward.activation) for layer in layers}
        return all(product.compiled for product in products) and len(alike) == 1

    def decode(self, w: dict[str, Any], memory: tuple[Any, ...]) -> Any:
        """Rows, embedded in `w["x"]`, through a decoder, `memory` as `decoder_pass` has it. Returns the last layer's."""
        h = w["h"] if self.norm_first else w["x"]
        decoder_pass(*self._settings(len(h)), *memory, w["x"], h, w["y"], w["q"], w["qkv"], w["seen"], w["inner"])
        return h

    def encode(self, w: dict[str, Any], starts: Any) -> Any:
        """As `decode`, for the tokens of inputs that begin at `starts`, through an encoder."""
        h = w["h"] if self.norm_first else w["x"]
        encoder_pass(*self._settings(len(h)), starts, w["x"], h, w["y"], w["qkv"], w["seen"], w["inner"])
        return h

    def _settings(self, rows: int) -> tuple[Any, ...]:
        if rows > len(self._scales):
            self._room, self._scales = np.empty((2 * rows, *self._room.shape[1:]), np.uint8), np.empty(2 * rows, np.float32)
        numbers = self.products, self.norms, self.epsilons, self._room[:rows], self._scales[:rows]
        return (*numbers, self.norm_first, self.activation, self.heads, self.scaling)


def table_of(layers: Sequence[NativeLayer], norms: Sequence[LayerNorm], norm_first: bool) -> LayerTable | None:
    """The table of these layers; None where they must go one by one."""
    return LayerTable(layers, norms, norm_first) if LayerTable.takes(layers) else None


def _of_layer(layer: NativeLayer) -> list[Product | None]:
    cross = [None, None] if layer.cross_q is None else [layer.cross_q, layer.cross_out]
    return [layer.qkv, layer.own_out, *cross, layer.forward.up, layer.forward.down]


def _product(product: Product | None) -> list[int]:
    if product is None:
        return [0] * 6
    packed, bias = product.packed, product.bias.ctypes.data
    if packed is None:
        return [product.weights.ctypes.data, 0, 0, bias, product.outputs, product.inputs]
    return [*(array.ctypes.data for array in packed), bias, product.outputs, product.inputs]


# -- compiled ----------------------------------------------------------------------------------------------------------------


@intrinsic
def _address(_: Any, number: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit(inline="always")
def _floats(address: int, n: int) -> Any:
    return carray(_address(address), (n,), f32)  # type: ignore[call-arg]


@compiled()
def _multiply(x: Any, product: Any, room: Any, scales: Any, out: Any) -> None:
    """x W^T."""
    outputs, inputs = product[OUTPUTS], product[INPUTS]
    if product[SCALES] == 0:
        tiles.by_panels(x, _floats(product[WEIGHTS], outputs * inputs), BLOCK, tiles.ZEROS, out)
        return
    depth = int8.padded(inputs)
    rows = room.reshape(room.size)[: x.shape[0] * int8.COPIES * depth].reshape((x.shape[0], int8.COPIES, depth))
    int8.quantise(x, rows, scales)
    int8.multiply(
        rows, scales, carray(_address(product[WEIGHTS]), (outputs, depth), np.int8),  # type: ignore[call-arg]
        carray(_address(product[START]), (outputs,), np.int32), _floats(product[SCALES], outputs), out,  # type: ignore[call-arg]
    )  # fmt: skip


@njit(inline="always")
def _add(x: Any, y: Any, bias: int, norms: Any, epsilons: Any, n: int, h: Any) -> None:
    """x += y + bias; h = the n-th norm of it."""
    d = x.shape[1]
    add_norm(x, y, _floats(bias, d), _floats(norms[n, 0], d), _floats(norms[n, 1], d), epsilons[n], h)


@compiled()
def _forward(h: Any, layer: Any, room: Any, scales: Any, activation: int, inner: Any, out: Any) -> None:
    """The feed-forward block, without its last bias."""
    _multiply(h, layer[UP], room, scales, inner)
    bias = _floats(layer[UP, BIAS], inner.shape[1])
    if activation == RELU:
        relu(inner, bias)
    elif activation == GELU:
        gelu(inner, bias)
    elif activation == GELU_TANH:
        gelu_tanh(inner, bias)
    else:
        silu(inner, bias)
    _multiply(inner, layer[DOWN], room, scales, out)


@compiled()
def decoder_pass(
    products: Any, norms: Any, epsilons: Any, room: Any, scales: Any, norm_first: bool, activation: int, heads: int, scale: Any,
    pools: Any, slots_there: int, sources: Any, sources_shape: Any, lengths: Any, paths: Any, slots: Any, positions: Any,
    places: Any, x: Any, h: Any, y: Any, q: Any, qkv: Any, seen: Any, inner: Any,
) -> None:  # fmt: skip
    """Rows x (rows, d) through all layers, into h; x if norms come last.

    `pools`, `sources` (layers,) addresses of keys and values, of `slots_there` slots (slots, 2 d) and of the shape
    `sources_shape` (2, sources, heads, length, size); the others as `own_attention` and `cross_attention` have them.
    """
    d, n = x.shape[1], 0
    if norm_first:
        norm(x, _floats(norms[0, 0], d), _floats(norms[0, 1], d), epsilons[0], h)
        n = 1
    for index in range(products.shape[0]):
        layer = products[index]
        _multiply(h, layer[QKV], room, scales, qkv)
        pool = carray(_address(pools[index]), (slots_there, 2 * d), f32)  # type: ignore[call-arg,unused-ignore]
        own_attention(qkv, _floats(layer[QKV, BIAS], 3 * d), pool, paths, slots, positions, heads, scale, seen)
        _multiply(seen, layer[OWN_OUT], room, scales, y)
        _add(x, y, layer[OWN_OUT, BIAS], norms, epsilons, n, h)
        _multiply(h, layer[CROSS_Q], room, scales, q)
        keys_values = carray(_address(sources[index]), sources_shape, f32)  # type: ignore[call-arg,unused-ignore]
        cross_attention(q, _floats(layer[CROSS_Q, BIAS], d), keys_values, lengths, places, scale, seen)
        _multiply(seen, layer[CROSS_OUT], room, scales, y)
        _add(x, y, layer[CROSS_OUT, BIAS], norms, epsilons, n + 1, h)
        _forward(h, layer, room, scales, activation, inner, y)
        _add(x, y, layer[DOWN, BIAS], norms, epsilons, n + 2, h)
        n += 3


@compiled()
def encoder_pass(
    products: Any, norms: Any, epsilons: Any, room: Any, scales: Any, norm_first: bool, activation: int, heads: int, scale: Any,
    starts: Any, x: Any, h: Any, y: Any, qkv: Any, seen: Any, inner: Any,
) -> None:  # fmt: skip
    """Tokens x (tokens, d), of inputs one after another, through all layers, into h; x if norms come last."""
    d, n = x.shape[1], 0
    if norm_first:
        norm(x, _floats(norms[0, 0], d), _floats(norms[0, 1], d), epsilons[0], h)
        n = 1
    for index in range(products.shape[0]):
        layer = products[index]
        _multiply(h, layer[QKV], room, scales, qkv)
        self_attention(qkv, _floats(layer[QKV, BIAS], 3 * d), starts, heads, scale, seen)
        _multiply(seen, layer[OWN_OUT], room, scales, y)
        _add(x, y, layer[OWN_OUT, BIAS], norms, epsilons, n, h)
        _forward(h, layer, room, scales, activation, inner, y)
        _add(x, y, layer[DOWN, BIAS], norms, epsilons, n + 1, h)
        n += 2


@compiled()
def in_range(
    tokens: Any, positions: Any, slots: Any, places: Any, ancestors: Any, tokens_end: int, positions_end: int, slots_end: int,
    places_end: int,
) -> bool:  # fmt: skip
    """Whether every number of a step's rows is one that kernels may see, as `Rows.check` has it."""
    good = True
    for r in range(tokens.shape[0]):
        good &= 0 <= tokens[r] < tokens_end and 0 <= positions[r] < min(positions_end, ancestors.shape[1])
        good &= 0 <= slots[r] < slots_end and 0 <= places[r] < places_end
        for slot in ancestors[r]:
            good &= 0 <= slot < slots_end
    return good
