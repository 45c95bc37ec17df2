"""Entries: kernels and tiles as functions of plain numbers, addresses among them, with nothing of Python in them.

These are what is compiled ahead of time (`objects`); `calls` has each of them as a function of arrays. Arrays are C-contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from . import attention, kernels, mixing, tiles, tops
from .registers import HERE
from .signatures import SIGNATURES

F32, I32, I64 = np.float32, np.int32, np.int64
NUMBERS = 34  # of a plan (`whole`), before those of each layer


@intrinsic
def _pointer(_: Any, address: Any) -> Any:
    """What lies at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit(inline="always")
def _floats(address: int, shape: Any) -> Any:
    return carray(_pointer(address), shape, F32)  # type: ignore[call-arg]


@njit(inline="always")
def _ints(address: int, shape: Any) -> Any:
    return carray(_pointer(address), shape, I32)  # type: ignore[call-arg]


@njit(inline="always")
def _longs(address: int, shape: Any) -> Any:
    return carray(_pointer(address), shape, I64)  # type: ignore[call-arg]


def own_attention(
    qkv: int, bias: int, pool: int, capacity: int, paths: int, context: int, slots: int, positions: int, rows: int, d: int,
    heads: int, scale: float, out: int,
) -> None:  # fmt: skip
    attention.own_attention(
        _floats(qkv, (rows, 3 * d)), _floats(bias, (3 * d,)), _floats(pool, (capacity, 2 * d)), _ints(paths, (capacity, context)),
        _ints(slots, (rows,)), _ints(positions, (rows,)), heads, scale, _floats(out, (rows, d)),
    )  # fmt: skip


def cross_attention(
    q: int, bias: int, keys_values: int, sources: int, heads: int, longest: int, size: int, lengths: int, places: int, rows: int,
    scale: float, out: int,
) -> None:  # fmt: skip
    d = heads * size
    attention.cross_attention(
        _floats(q, (rows, d)), _floats(bias, (d,)), _floats(keys_values, (2, sources, heads, longest, size)),
        _longs(lengths, (sources,)), _ints(places, (rows,)), scale, _floats(out, (rows, d)),
    )  # fmt: skip


def self_attention(
    qkv: int, bias: int, starts: int, inputs: int, tokens: int, d: int, heads: int, scale: float, out: int
) -> None:
    attention.self_attention(
        _floats(qkv, (tokens, 3 * d)), _floats(bias, (3 * d,)), _longs(starts, (inputs + 1,)), heads, scale,
        _floats(out, (tokens, d)),
    )  # fmt: skip


def put(
    keys_values: int, bias: int, starts: int, inputs: int, tokens: int, first: int, out: int, sources: int, heads: int,
    longest: int, size: int,
) -> None:  # fmt: skip
    d = heads * size
    attention.put(
        _floats(keys_values, (tokens, 2 * d)), _floats(bias, (2 * d,)), _longs(starts, (inputs + 1,)), first,
        _floats(out, (2, sources, heads, longest, size)),
    )  # fmt: skip


def norm(x: int, weight: int, shift: int, epsilon: float, out: int, rows: int, d: int) -> None:
    kernels.norm(_floats(x, (rows, d)), _floats(weight, (d,)), _floats(shift, (d,)), epsilon, _floats(out, (rows, d)))


def add_norm(x: int, y: int, bias: int, weight: int, shift: int, epsilon: float, out: int, rows: int, d: int) -> None:
    kernels.add_norm(
        _floats(x, (rows, d)), _floats(y, (rows, d)), _floats(bias, (d,)), _floats(weight, (d,)), _floats(shift, (d,)), epsilon,
        _floats(out, (rows, d)),
    )  # fmt: skip


def relu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.relu(_floats(x, (rows, d)), _floats(bias, (d,)))


def gelu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.gelu(_floats(x, (rows, d)), _floats(bias, (d,)))


def gelu_tanh(x: int, bias: int, rows: int, d: int) -> None:
    kernels.gelu_tanh(_floats(x, (rows, d)), _floats(bias, (d,)))


def silu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.silu(_floats(x, (rows, d)), _floats(bias, (d,)))


def embed(
    tokens: int, positions: int, embedding: int, vocabulary: int, scale: float, table: int, places: int, out: int, rows: int,
    d: int,
) -> None:  # fmt: skip
    kernels.embed(
        _ints(tokens, (rows,)), _ints(positions, (rows,)), _floats(embedding, (vocabulary, d)), scale,
        _floats(table, (places, d)), _floats(out, (rows, d)),
    )  # fmt: skip


def top(x: int, vocabulary: int, columns: int, banned: int, bans: int, values: int, tokens: int, rows: int, k: int) -> None:
    tops.top(_floats(x, (vocabulary, columns)), _longs(banned, (bans,)), _floats(values, (rows, k)), _longs(tokens, (rows, k)))


def row_top(x: int, vocabulary: int, columns: int, banned: int, bans: int, values: int, tokens: int, rows: int, k: int) -> None:
    tops.row_top(
        _floats(x, (rows, columns)), vocabulary, _longs(banned, (bans,)), _floats(values, (rows, k)), _longs(tokens, (rows, k))
    )  # fmt: skip


def allowed_top(
    x: int, vocabulary: int, columns: int, banned: int, bans: int, allowed: int, size: int, ends: int, values: int, tokens: int,
    rows: int, k: int,
) -> None:  # fmt: skip
    tops.allowed_top(
        _floats(x, (vocabulary, columns)), _longs(banned, (bans,)), _ints(allowed, (size,)), _longs(ends, (rows,)),
        _floats(values, (rows, k)), _longs(tokens, (rows, k)),
    )  # fmt: skip


def mixed(numbers: int, n: int, out: int) -> None:
    _longs(out, (1,))[0] = mixing.mixed(_ints(numbers, (n,)))


def pack(matrix: int, rows: int, inputs: int, block: int, packed: int, size: int) -> None:
    tiles.pack(_floats(matrix, (rows, inputs)), block, _floats(packed, (size,)))


def by_panels(x: int, rows: int, inputs: int, packed: int, block: int, zeros: int, out: int, outputs: int) -> None:
    tiles.by_panels(
        _floats(x, (rows, inputs)), _floats(packed, (outputs * inputs,)), block, _floats(zeros, (tiles.PANEL,)),
        _floats(out, (rows, outputs)),
    )  # fmt: skip


by_panels_entry = njit(by_panels)


def by_rows(weights: int, outputs: int, inputs: int, packed: int, zeros: int, out: int, columns: int) -> None:
    tiles.by_rows(
        _floats(weights, (outputs, inputs)), _floats(packed, (columns * inputs,)), _floats(zeros, (tiles.PANEL,)),
        _floats(out, (outputs, columns)),
    )  # fmt: skip


if HERE.eight is not None:
    from . import int8

    @njit(inline="always")
    def _octets(address: int, shape: Any) -> Any:
        return carray(_pointer(address), shape, np.uint8)  # type: ignore[call-arg]

    def quantise(x: int, rows: int, inputs: int, out: int, scales: int) -> None:
        depth = int8.padded(inputs)
        int8.quantise(_floats(x, (rows, inputs)), _octets(out, (rows, int8.COPIES, depth)), _floats(scales, (rows,)))

    def pack_bytes(matrix: int, rows: int, inputs: int, packed: int, outputs: int, depth: int, start: int, scales: int) -> None:
        weights = carray(_pointer(packed), (outputs * depth,), np.int8)  # type: ignore[call-arg]
        int8.pack(_floats(matrix, (rows, inputs)), weights, _ints(start, (outputs,)), _floats(scales, (outputs,)))

    def multiply_bytes(
        x: int, rows: int, row_scales: int, packed: int, outputs: int, depth: int, start: int, scales: int, out: int, columns: int
    ) -> None:
        """`out` (rows, columns), of which the first `outputs` are written."""
        int8.multiply(
            _octets(x, (rows, int8.COPIES, depth)), _floats(row_scales, (rows,)),
            carray(_pointer(packed), (outputs, depth), np.int8), _ints(start, (outputs,)),  # type: ignore[call-arg]
            _floats(scales, (outputs,)), _floats(out, (rows, columns)),
        )  # fmt: skip

    quantised, multiplied = njit(quantise), njit(multiply_bytes)

    @njit
    def in_eight_bits(
        x: int, rows: int, inputs: int, room: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
    ) -> None:
        quantised(x, rows, inputs, room, row_scales)
        multiplied(room, rows, row_scales, weights, outputs, int8.padded(inputs), start, scales, out, outputs)
else:

    @njit
    def in_eight_bits(
        x: int, rows: int, inputs: int, room: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
    ) -> None:
        """Nothing is, on this CPU."""


@njit(inline="always")
def _begin(p: Any, norms: Any, embed_scale: float, epsilon: float) -> int:
    """Embed, normalise as the model does; returns how many norms of the layers were used."""
    rows, d = p[0], p[1]
    x = _floats(p[23], (rows, d))
    kernels.embed(
        _ints(p[7], (rows,)), _ints(p[8], (rows,)), _floats(p[11], (p[12], d)), embed_scale, _floats(p[13], (p[14], d)), x
    )  # fmt: skip
    if p[15] != 0:
        kernels.norm(x, _floats(p[15], (d,)), _floats(p[16], (d,)), epsilon, x)
    if p[5] == 0:
        return 0
    kernels.norm(x, _floats(norms[0, 0], (d,)), _floats(norms[0, 1], (d,)), epsilon, _floats(p[24], (rows, d)))
    return 1


@njit(inline="always")
def _multiply(p: Any, x: int, inputs: int, w: Any, product: int, out: int, outputs: int) -> None:
    """x times a layer's product: where its weights are, its bias, and in eight bits what sums begin with, and scales."""
    weights, start, scales = w[4 * product], w[4 * product + 2], w[4 * product + 3]
    if scales == 0:
        by_panels_entry(x, p[0], inputs, weights, p[33], p[32], out, outputs)
    else:
        in_eight_bits(x, p[0], inputs, p[30], p[31], weights, start, scales, out, outputs)


@njit(inline="always")
def _add(p: Any, bias: int, norms: Any, n: int, epsilon: float) -> None:
    """What a block has made, in y, to x; and its norm to what the next block gets."""
    rows, d = p[0], p[1]
    out = _floats(p[24] if p[5] else p[23], (rows, d))
    kernels.add_norm(
        _floats(p[23], (rows, d)), _floats(p[25], (rows, d)), _floats(bias, (d,)), _floats(norms[n, 0], (d,)),
        _floats(norms[n, 1], (d,)), epsilon, out,
    )  # fmt: skip


@njit
def _forward(p: Any, h: int, w: Any, up: int) -> None:
    """The product `up`, an activation, and the product after it."""
    rows, d, inner = p[0], p[1], p[3]
    _multiply(p, h, d, w, up, p[28], inner)
    x, b = _floats(p[28], (rows, inner)), _floats(w[4 * up + 1], (inner,))
    if p[6] == 0:
        kernels.relu(x, b)
    elif p[6] == 1:
        kernels.gelu(x, b)
    elif p[6] == 2:
        kernels.gelu_tanh(x, b)
    else:
        kernels.silu(x, b)
    _multiply(p, p[28], inner, w, up + 1, p[25], d)


def decoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of a decoder; `plan` as `whole.WholePass` lays it out."""
    first = _longs(plan, (NUMBERS,))
    layers = first[4]
    p, weights, every = _longs(plan, (NUMBERS + 2 * layers,)), _longs(products, (layers, 24)), _longs(norms, (3 * layers + 1, 2))
    rows, d, heads = p[0], p[1], p[2]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[24] if p[5] else p[23]
    seen = _floats(p[27], (rows, d))
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, 0, p[26], 3 * d)
        attention.own_attention(
            _floats(p[26], (rows, 3 * d)), _floats(w[1], (3 * d,)), _floats(p[NUMBERS + i], (p[18], 2 * d)),
            _ints(p[17], (p[18], p[19])), _ints(p[9], (rows,)), _ints(p[8], (rows,)), heads, scale, seen,
        )  # fmt: skip
        _multiply(p, p[27], d, w, 1, p[25], d)
        _add(p, w[5], every, n, epsilon)
        _multiply(p, h, d, w, 2, p[29], d)
        attention.cross_attention(
            _floats(p[29], (rows, d)), _floats(w[9], (d,)),
            _floats(p[NUMBERS + layers + i], (2, p[21], heads, p[22], d // heads)), _longs(p[20], (p[21],)),
            _ints(p[10], (rows,)), scale, seen,
        )  # fmt: skip
        _multiply(p, p[27], d, w, 3, p[25], d)
        _add(p, w[13], every, n + 1, epsilon)
        _forward(p, h, w, 4)
        _add(p, w[21], every, n + 2, epsilon)
        n += 3


def encoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of an encoder."""
    p = _longs(plan, (NUMBERS,))
    layers = p[4]
    weights, every = _longs(products, (layers, 16)), _longs(norms, (2 * layers + 1, 2))
    rows, d, heads = p[0], p[1], p[2]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[24] if p[5] else p[23]
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, 0, p[26], 3 * d)
        attention.self_attention(
            _floats(p[26], (rows, 3 * d)), _floats(w[1], (3 * d,)), _longs(p[9], (p[10] + 1,)), heads, scale,
            _floats(p[27], (rows, d)),
        )  # fmt: skip
        _multiply(p, p[27], d, w, 1, p[25], d)
        _add(p, w[5], every, n, epsilon)
        _forward(p, h, w, 2)
        _add(p, w[13], every, n + 1, epsilon)
        n += 2


ENTRIES = {globals()[name]: letters for name, letters in SIGNATURES.items()}
"""Each, and its arguments' types."""
