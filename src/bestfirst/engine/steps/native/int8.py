"""int8: the product of some rows and a large matrix, both in eight bits, summed up exactly in integers. One thread.

A matrix has a scale for each output, a row one of its own: 127 steps from zero to its largest number, either way. A row's results
depend on nothing but the row, and are the same numbers on every CPU:

- with VNNI (`vpdpbusd`) rows are shifted to 0..255, and each sum begins with what the shift will add to it, negated;
- with AVX2 (`vpmaddubsw`) the rows' magnitudes meet weights that take the rows' signs: 2 * 127 * 127 fits into sixteen bits.

Weights lie as both read them: in panels of some outputs, of which a tile of rows holds every sum in a register; in a panel, four
inputs of an output stand together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .code import FLOAT, INT8, INT16, INT32, call, cell, every_shape, load, loop, number, plus, spread, store
from .kernels import _as_float, compiled
from .registers import COPIES, HERE, QUAD, TileShape

f32 = np.float32
i32 = np.int32

SHAPE = HERE.eight or TileShape(1, 1, 1)
LANES, WIDE, TALL = SHAPE
VNNI = HERE.vnni
PANEL = WIDE * LANES
ROWS = 96  # that stay in the inner caches while all panels pass by
MAGIC = f32(3 << 22)  # added to a small number, leaves it rounded in the last bits
MAGIC_BITS = MAGIC.view(i32)
INFINITY = f32(np.inf).view(i32)

FLOATS = ir.VectorType(FLOAT, LANES)
SUMS = ir.VectorType(INT32, LANES)
BYTES = ir.VectorType(INT8, QUAD * LANES)
PAIRS = ir.VectorType(INT16, 2 * LANES)


@njit(inline="always")
def padded(inputs: int) -> int:
    """So many inputs are four and four together."""
    return -(-inputs // QUAD) * QUAD


# -- a tile ------------------------------------------------------------------------------------------------------------------


@intrinsic
def _tile_code(
    _: Any, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any, out: Any, out_row: Any,
    inputs: Any, tall: Any, wide: Any,
) -> Any:  # fmt: skip
    """out = (start + x panel) scales row_scales, for `tall` rows and `wide` registers. Addresses, and distances in bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        every_shape(builder, SHAPE, args[10], args[11], lambda rows, wide: _generate(builder, rows, wide, *args[:10]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _generate(
    builder: Any, rows: int, wide: int, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any,
    out: Any, out_row: Any, inputs: Any,
) -> None:  # fmt: skip
    """A tile: the loop over its inputs, all sums in registers."""
    cells = [(r, j) for r in range(rows) for j in range(wide)]

    def multiply(i: Any, weights: Any, *sums: Any) -> list[Any]:
        right = [load(builder, BYTES, plus(builder, weights, QUAD * LANES * j)) for j in range(wide)]
        totals = []
        for r in range(rows):
            at = cell(builder, builder.add(x, i), x_row, r, 0)
            left = spread(builder, INT32, LANES, at)
            sizes = None if VNNI else spread(builder, INT32, LANES, builder.add(at, copy))
            totals += [_dot(builder, left, sizes, right[j], sums[r * wide + j]) for j in range(wide)]
        return [plus(builder, i, QUAD), plus(builder, weights, QUAD * LANES * wide), *totals]

    begun = [load(builder, SUMS, plus(builder, start, 4 * LANES * j)) for _, j in cells]
    _, _, *sums = loop(builder, inputs, [number(0), panel, *begun], multiply)
    factors = [load(builder, FLOATS, plus(builder, scales, 4 * LANES * j)) for j in range(wide)]
    own = [spread(builder, FLOAT, LANES, plus(builder, row_scales, 4 * r)) for r in range(rows)]
    for (r, j), total in zip(cells, sums, strict=True):
        value = builder.fmul(builder.fmul(builder.sitofp(total, FLOATS), factors[j]), own[r])
        store(builder, value, cell(builder, out, out_row, r, 4 * LANES * j))


def _dot(builder: Any, x: Any, sizes: Any, weights: Any, total: Any) -> Any:
    """total + x weights, four products a lane: by VNNI, x unsigned; by AVX2 |x| (weights with x's signs), in pairs first."""
    if VNNI:
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", SUMS, total, x, builder.bitcast(weights, SUMS))
    signed = call(builder, "llvm.x86.avx2.psign.b", BYTES, weights, builder.bitcast(x, BYTES))
    pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", PAIRS, builder.bitcast(sizes, BYTES), signed)
    return builder.add(total, call(builder, "llvm.x86.avx2.pmadd.wd", SUMS, pairs, ir.Constant(PAIRS, [1] * (2 * LANES))))


@compiled()
def _tile(
    x: int, x_row: int, copy: int, panel: int, start: int, scales: int, row_scales: int, out: int, out_row: int, inputs: int,
    tall: int, wide: int,
) -> None:  # fmt: skip
    """A function of its own: inside the loops of another its own loop is compiled a quarter slower."""
    _tile_code(x, x_row, copy, panel, start, scales, row_scales, out, out_row, inputs, tall, wide)  # type: ignore[call-arg]


# -- what the rest of the engine calls ---------------------------------------------------------------------------------------


@intrinsic
def _bits(context: Any, x: Any) -> Any:
    """The int32 with the bits of a float32."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target.get_value_type(types.int32))

    return types.int32(types.float32), generate


@njit(inline="always")
def _magnitude(x: Any) -> Any:
    """The largest |x|; no number if one of them is none, or infinite. By their bits, which are ordered as they are."""
    largest = i32(0)
    for i in range(x.shape[0]):
        size = i32(_bits(x[i]) & i32(0x7FFFFFFF))  # type: ignore[call-arg]
        largest = size if size > largest else largest
    return _as_float(largest) if largest < INFINITY else f32(np.nan)  # type: ignore[call-arg]


@njit(inline="always")
def _rounded(x: Any, factor: Any) -> Any:
    """x factor, which is small, as a whole number. Results are said to be int32: numba's sums are int64, few at a time."""
    return i32(_bits(x * factor + MAGIC) - MAGIC_BITS)  # type: ignore[call-arg]


@compiled()
def quantise(x: Any, out: Any, scales: Any) -> None:
    """Rows x (rows, inputs) in eight bits, `scales` (rows,) times which they are x; a row that is not finite gets no scale.

    `out` (rows, COPIES, padded inputs), as tiles want them; what is filled up is zero in both.
    """
    inputs = x.shape[1]
    for r in range(x.shape[0]):
        row = x[r]
        largest = _magnitude(row)
        scales[r] = largest / f32(127)
        factor = f32(127) / largest if largest > f32(0) else f32(0)
        to = out[r, 0]
        if VNNI:
            for i in range(inputs):
                to[i] = np.uint8(i32(_rounded(row[i], factor) + i32(128)))
            to[inputs:] = 128
            continue
        for i in range(inputs):
            to[i] = np.uint8(_rounded(row[i], factor))
        sizes = out[r, COPIES - 1]
        for i in range(inputs):  # by itself: two results at once are not vectorised
            value = _rounded(row[i], factor)
            sizes[i] = np.uint8(value if value > i32(0) else i32(-value))
        to[inputs:] = 0
        sizes[inputs:] = 0


@compiled()
def pack(matrix: Any, packed: Any, start: Any, scales: Any) -> None:
    """A matrix (outputs, inputs) into what `Packed` holds of it, `packed` in one line."""
    rows, inputs = matrix.shape
    outputs = start.shape[0]
    depth = packed.shape[0] // outputs
    packed[:] = 0
    start[:] = 0
    scales[:] = 0
    for o in range(rows):
        first = o // PANEL * PANEL
        width = min(PANEL, outputs - first)
        largest = _magnitude(matrix[o])
        scales[o] = largest / f32(127)
        factor = f32(127) / largest if largest > f32(0) else f32(0)
        total = 0
        for i in range(inputs):
            value = _rounded(matrix[o, i], factor)
            total += value
            packed[first * depth + i // QUAD * QUAD * width + (o - first) * QUAD + i % QUAD] = value
        start[o] = -128 * total if VNNI else 0


@compiled()
def multiply(x: Any, row_scales: Any, packed: Any, start: Any, scales: Any, out: Any, column: int) -> None:
    """Quantised rows times a packed matrix, into `out` (rows, outputs or more) in float32, from a column on."""
    outputs, depth = packed.shape
    for top in range(0, x.shape[0], ROWS):
        bottom = min(x.shape[0], top + ROWS)
        for first in range(0, outputs, PANEL):
            width = min(PANEL, outputs - first)
            for r in range(top, bottom, TALL):
                _tile(
                    x[r].ctypes.data, x.strides[0], x.strides[1], packed.ctypes.data + first * depth,
                    start.ctypes.data + 4 * first, scales.ctypes.data + 4 * first, row_scales.ctypes.data + 4 * r,
                    out[r].ctypes.data + 4 * (column + first), out.strides[0], depth, min(TALL, bottom - r), width // LANES,
                )  # fmt: skip
