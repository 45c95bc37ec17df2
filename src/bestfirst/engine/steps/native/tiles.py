"""Tiles: matmul of some rows and a large matrix. One thread, float32.

Libraries rearrange a matrix at every call, which with a few dozen rows costs up to a third of the product. Here it is packed
once: in panels of outputs, as wide as a tile of rows can hold all sums of in registers while it passes over the inputs. Meanwhile
the next panel is prefetched (`docs/engine.md` has the rates).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .code import FLOAT, INT8, INT32, call_llvm, load, loop, number, plus, row_address, splat, store, switch_shapes
from .kernels import compiled
from .registers import HERE, LANES, LINE, PANEL, ROWS, TALL, UNROLLED

VECTOR = ir.VectorType(FLOAT, LANES)
BYTE = INT8.as_pointer()
ADDED = f"llvm.fmuladd.v{LANES}f32"


@intrinsic
def _tile_code(
    _: Any, x: Any, x_row: Any, panel: Any, start: Any, start_row: Any, out: Any, out_row: Any, inputs: Any, ahead: Any,
    step: Any, tall: Any, wide: Any,
) -> Any:  # fmt: skip
    """out = start + x panel, for `tall` rows and `wide` registers of outputs. Addresses, and distances in bytes.

    `ahead`: memory needed next, of which one line is prefetched for every UNROLLED inputs, `step` bytes apart.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        switch_shapes(builder, HERE.shape, args[10], args[11], lambda rows, wide: _generate(builder, rows, wide, *args[:10]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _generate(
    builder: Any, rows: int, wide: int, x: Any, x_row: Any, panel: Any, start: Any, start_row: Any, out: Any, out_row: Any,
    inputs: Any, ahead: Any, step: Any,
) -> None:  # fmt: skip
    """The code of a tile of one shape: the loop over its inputs, with all sums in registers."""
    cells = [(r, j) for r in range(rows) for j in range(wide)]

    def multiply(i: Any, numbers: Any, weights: Any, fetched: Any, *sums: Any) -> list[Any]:
        _fetch(builder, fetched)
        for u in range(UNROLLED):
            right = [load(builder, VECTOR, plus(builder, weights, 4 * LANES * (u * wide + j))) for j in range(wide)]
            left = [splat(builder, FLOAT, LANES, row_address(builder, numbers, x_row, r, 4 * u)) for r in range(rows)]
            sums = tuple(
                call_llvm(builder, ADDED, VECTOR, left[r], right[j], total) for (r, j), total in zip(cells, sums, strict=True)
            )
        further = plus(builder, numbers, 4 * UNROLLED), plus(builder, weights, 4 * LANES * UNROLLED * wide)
        return [plus(builder, i, UNROLLED), *further, builder.add(fetched, step), *sums]

    begun = [load(builder, VECTOR, row_address(builder, start, start_row, r, 4 * LANES * j)) for r, j in cells]
    _, _, _, _, *sums = loop(builder, inputs, [number(0), x, panel, ahead, *begun], multiply)
    for (r, j), total in zip(cells, sums, strict=True):
        store(builder, total, row_address(builder, out, out_row, r, 4 * LANES * j))


def _fetch(builder: Any, address: Any) -> None:
    """Prefetch a cache line to the second-level cache; a hint, which is valid for any address."""
    to_read, second_cache, data = (ir.Constant(INT32, n) for n in (0, 2, 1))
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), builder.inttoptr(address, BYTE), to_read, second_cache, data)


@compiled()
def _tile(
    x: int, x_row: int, panel: int, start: int, start_row: int, out: int, out_row: int, inputs: int, ahead: int, step: int,
    tall: int, wide: int,
) -> None:  # fmt: skip
    """A function of its own: inlined into the loops of its caller, its own loop is compiled to code a quarter slower."""
    _tile_code(x, x_row, panel, start, start_row, out, out_row, inputs, ahead, step, tall, wide)  # type: ignore[call-arg]


@compiled()
def pack(matrix: Any, block: int, packed: Any) -> None:
    """Pack a matrix (outputs, inputs) into panels: for each `block` of inputs, by panel, by input, the panel's outputs.

    `packed` (outputs padded to a multiple of LANES * inputs,); padding is zero.
    """
    rows, inputs = matrix.shape
    outputs = packed.shape[0] // inputs
    for k in range(0, inputs, block):
        depth = min(block, inputs - k)
        for first in range(0, outputs, PANEL):
            width = min(PANEL, outputs - first)
            begin = k * outputs + first * depth
            for j in range(width):
                for i in range(depth):
                    packed[begin + i * width + j] = matrix[first + j, k + i] if first + j < rows else 0


@compiled()
def by_panels(x: Any, packed: Any, block: int, zeros: Any, out: Any) -> None:
    """x (rows, inputs) times packed weights, into `out` (rows, outputs): rows stay in the cache while panels pass by."""
    inputs, outputs = x.shape[1], out.shape[1]
    for top in range(0, x.shape[0], ROWS):
        bottom = min(x.shape[0], top + ROWS)
        for k in range(0, inputs, block):
            depth = min(block, inputs - k)
            for first in range(0, outputs, PANEL):
                width = min(PANEL, outputs - first)
                panel = packed.ctypes.data + 4 * (k * outputs + first * depth)
                following = ahead = panel + 4 * width * depth
                r = top
                while r < bottom:
                    tall = min(TALL, bottom - r)
                    row, to = x[r].ctypes.data + 4 * k, out[r].ctypes.data + 4 * first
                    start, start_row = (to, out.strides[0]) if k else (zeros.ctypes.data, 0)
                    step = LINE if ahead - following < 4 * width * depth else 0
                    _tile(
                        row, x.strides[0], panel, start, start_row, to, out.strides[0], depth, ahead, step, tall, width // LANES
                    )  # fmt: skip
                    ahead += step * (depth // UNROLLED)
                    r += tall


@compiled()
def by_rows(weights: Any, packed: Any, zeros: Any, out: Any) -> None:
    """Weights (outputs, inputs), not packed, times packed columns, into `out` (outputs, columns): columns stay in the cache."""
    outputs, inputs = weights.shape
    columns = out.shape[1]
    r = 0
    while r < outputs:
        tall = min(TALL, outputs - r)
        row = weights[r].ctypes.data
        following = ahead = row + tall * weights.strides[0]
        for first in range(0, columns, PANEL):
            width = min(PANEL, columns - first)
            step = LINE if ahead - following < tall * weights.strides[0] else 0
            _tile(
                row, weights.strides[0], packed.ctypes.data + 4 * first * inputs, zeros.ctypes.data, 0,
                out[r].ctypes.data + 4 * first, out.strides[0], inputs, ahead, step, tall, width // LANES,
            )  # fmt: skip
            ahead += step * (inputs // UNROLLED)
        r += tall
