"""int8: matmul of some rows and a large matrix, both quantised to eight bits, with exact integer sums. One thread.

A matrix has a scale for each output, a row one of its own: 127 steps from zero to its largest magnitude, symmetrically. A row's
results depend on nothing but the row and the matrix, and are the same numbers on every CPU:

- with VNNI (`vpdpbusd`) rows are shifted to 0..255, and each sum starts with minus what the shift adds to it;
- with AVX2 (`vpmaddubsw`) the rows' magnitudes meet weights that take the rows' signs: 2 * 127 * 127 fits into sixteen bits.

Weights are packed as both instructions read them: in panels of outputs, as wide as a tile of rows can hold all sums of in
registers; within a panel, four consecutive inputs of an output are adjacent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .code import FLOAT, INT8, INT16, INT32, call_llvm, load, loop, number, plus, row_address, splat, store, switch_shapes
from .kernels import _as_float, compiled
from .registers import COPIES, HERE, QUAD, TileShape

f32 = np.float32
i32 = np.int32

SHAPE = HERE.eight or TileShape(1, 1, 1)
LANES, WIDE, TALL = SHAPE
VNNI = HERE.vnni
PANEL = WIDE * LANES
ROWS = 96  # rows that stay in the inner caches while all panels pass by
MAGIC = f32(3 << 22)  # added to a small number, it leaves the rounded number in the last bits
MAGIC_BITS = MAGIC.view(i32)
INFINITY = f32(np.inf).view(i32)

FLOATS = ir.VectorType(FLOAT, LANES)
SUMS = ir.VectorType(INT32, LANES)
BYTES = ir.VectorType(INT8, QUAD * LANES)
PAIRS = ir.VectorType(INT16, 2 * LANES)


@njit(inline="always")
def padded(inputs: int) -> int:
    """`inputs` rounded up to a multiple of QUAD."""
    return -(-inputs // QUAD) * QUAD


# -- a tile ------------------------------------------------------------------------------------------------------------------


@intrinsic
def _tile_code(
    _: Any, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any, out: Any, out_row: Any,
    inputs: Any, tall: Any, wide: Any,
) -> Any:  # fmt: skip
    """out = (start + x panel) * scales * row_scales. Addresses, and distances in bytes; `copy`: from a row to its magnitudes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        switch_shapes(builder, SHAPE, args[10], args[11], lambda rows, wide: _generate(builder, rows, wide, *args[:10]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _generate(
    builder: Any, rows: int, wide: int, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any,
    out: Any, out_row: Any, inputs: Any,
) -> None:  # fmt: skip
    """The code of a tile of one shape: the loop over its inputs, with all sums in registers."""
    cells = [(r, j) for r in range(rows) for j in range(wide)]

    def multiply(i: Any, weights: Any, *sums: Any) -> list[Any]:
        right = [load(builder, BYTES, plus(builder, weights, QUAD * LANES * j)) for j in range(wide)]
        totals = []
        for r in range(rows):
            at = row_address(builder, builder.add(x, i), x_row, r, 0)
            left = splat(builder, INT32, LANES, at)
            sizes = None if VNNI else splat(builder, INT32, LANES, builder.add(at, copy))
            totals += [_dot(builder, left, sizes, right[j], sums[r * wide + j]) for j in range(wide)]
        return [plus(builder, i, QUAD), plus(builder, weights, QUAD * LANES * wide), *totals]

    begun = [load(builder, SUMS, plus(builder, start, 4 * LANES * j)) for _, j in cells]
    _, _, *sums = loop(builder, inputs, [number(0), panel, *begun], multiply)
    factors = [load(builder, FLOATS, plus(builder, scales, 4 * LANES * j)) for j in range(wide)]
    own = [splat(builder, FLOAT, LANES, plus(builder, row_scales, 4 * r)) for r in range(rows)]
    for (r, j), total in zip(cells, sums, strict=True):
        value = builder.fmul(builder.fmul(builder.sitofp(total, FLOATS), factors[j]), own[r])
        store(builder, value, row_address(builder, out, out_row, r, 4 * LANES * j))


def _dot(builder: Any, x: Any, sizes: Any, weights: Any, total: Any) -> Any:
    """total + x weights, four products a lane: VNNI takes x unsigned; AVX2 |x| and weights with x's signs, in pairs first."""
    if VNNI:
        return call_llvm(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", SUMS, total, x, builder.bitcast(weights, SUMS))
    signed = call_llvm(builder, "llvm.x86.avx2.psign.b", BYTES, weights, builder.bitcast(x, BYTES))
    pairs = call_llvm(builder, "llvm.x86.avx2.pmadd.ub.sw", PAIRS, builder.bitcast(sizes, BYTES), signed)
    return builder.add(total, call_llvm(builder, "llvm.x86.avx2.pmadd.wd", SUMS, pairs, ir.Constant(PAIRS, [1] * (2 * LANES))))


@compiled()
def _tile(
    x: int, x_row: int, copy: int, panel: int, start: int, scales: int, row_scales: int, out: int, out_row: int, inputs: int,
    tall: int, wide: int,
) -> None:  # fmt: skip
    """A function of its own: inlined into the loops of its caller, its own loop is compiled to code a quarter slower."""
    _tile_code(x, x_row, copy, panel, start, scales, row_scales, out, out_row, inputs, tall, wide)  # type: ignore[call-arg]


# -- quantising, packing and multiplying -------------------------------------------------------------------------------------


@intrinsic
def _bits(context: Any, x: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target.get_value_type(types.int32))

    return types.int32(types.float32), generate


@njit(inline="always")
def _magnitude(x: Any) -> Any:
    """The largest |x|; NaN if any is infinite or NaN. Compares bits, whose order is that of magnitudes."""
    largest = i32(0)
    for i in range(x.shape[0]):
        size = i32(_bits(x[i]) & i32(0x7FFFFFFF))  # type: ignore[call-arg]
        largest = size if size > largest else largest
    return _as_float(largest) if largest < INFINITY else f32(np.nan)  # type: ignore[call-arg]


@njit(inline="always")
def _rounded(x: Any, factor: Any) -> Any:
    """x * factor, which is small, rounded to an int32. The casts avoid numba's int64 sums, which take fewer lanes."""
    return i32(_bits(x * factor + MAGIC) - MAGIC_BITS)  # type: ignore[call-arg]


@compiled()
def quantise(x: Any, out: Any, scales: Any) -> None:
    """Quantise rows x (rows, inputs); `scales` (rows,) multiply them back, NaN for a row that is not finite.

    `out` (rows, COPIES, padded inputs), as tiles read them; padding stands for zero.
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
        for i in range(inputs):  # a loop of its own: with two results in one loop it is not vectorised
            value = _rounded(row[i], factor)
            sizes[i] = np.uint8(value if value > i32(0) else i32(-value))
        to[inputs:] = 0
        sizes[inputs:] = 0


@compiled()
def pack(matrix: Any, packed: Any, start: Any, scales: Any) -> None:
    """Quantise a matrix (outputs, inputs) into the arrays of `PackedBytes`, `packed` being flat."""
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
    """Quantised rows times a packed matrix, into columns from `column` on of `out` (rows, outputs or more), in float32."""
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
