"""Tiles: the product of some rows and a large matrix, compiled for CPUs with AVX-512. One thread, float32.

Libraries rearrange a matrix at every call, which with a few dozen rows costs as much as a third of the product. Here it lies
rearranged: in panels of 48 outputs, of which a tile of eight rows holds every sum in a register while it goes through their
inputs. Meanwhile the next panel is fetched, so that nothing is waited for (`docs/engine.md` has the rates).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .registers import BLOCK, LANES, LINE, PANEL, ROWS, TALL, UNROLLED, WIDE, ZEROS, suit  # noqa: F401

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
BYTE = ir.IntType(8).as_pointer()


@intrinsic
def _tile_code(
    _: Any, x: Any, x_row: Any, panel: Any, start: Any, start_row: Any, out: Any, out_row: Any, inputs: Any, ahead: Any,
    step: Any, tall: Any, wide: Any,
) -> Any:  # fmt: skip
    """out = start + x panel, for `tall` rows and `wide` registers of outputs. Addresses, and distances in bytes.

    `ahead`: what will be needed next, of which a line is fetched for every UNROLLED inputs, `step` apart.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        done = builder.append_basic_block("done")
        shape = builder.add(builder.mul(args[10], _int(WIDE + 1)), args[11])
        switch = builder.switch(shape, done)
        for rows in range(1, TALL + 1):
            for registers in range(1, WIDE + 1):
                block = builder.append_basic_block(f"tile_{rows}_{registers}")
                switch.add_case(_int(rows * (WIDE + 1) + registers), block)
                builder.position_at_end(block)
                _generate(builder, rows, registers, *args[:10])
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _generate(
    builder: Any, rows: int, registers: int, x: Any, x_row: Any, panel: Any, start: Any, start_row: Any, out: Any, out_row: Any,
    inputs: Any, ahead: Any, step: Any,
) -> None:  # fmt: skip
    """A tile: the loop over its inputs, all sums in registers."""
    cells = [(r, j) for r in range(rows) for j in range(registers)]

    def cell(first: Any, row: Any, r: int, j: int) -> Any:
        return builder.add(first, builder.add(builder.mul(row, _int(r)), _int(4 * LANES * j)))

    begun = [_load(builder, VECTOR, cell(start, start_row, r, j)) for r, j in cells]
    before, loop, after = builder.block, builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    carried = [builder.phi(value.type) for value in (_int(0), x, panel, ahead, *begun)]
    for phi, value in zip(carried, (_int(0), x, panel, ahead, *begun), strict=True):
        phi.add_incoming(value, before)
    i, numbers, weights, fetched, *sums = carried
    _fetch(builder, fetched)
    for u in range(UNROLLED):
        right = [_load(builder, VECTOR, builder.add(weights, _int(4 * LANES * (u * registers + j)))) for j in range(registers)]
        left = [_spread(builder, cell(builder.add(numbers, _int(4 * u)), x_row, r, 0)) for r in range(rows)]
        sums = [_multiply_add(builder, left[r], right[j], total) for (r, j), total in zip(cells, sums, strict=True)]
    i, fetched = builder.add(i, _int(UNROLLED)), builder.add(fetched, step)
    numbers = builder.add(numbers, _int(4 * UNROLLED))
    weights = builder.add(weights, _int(4 * LANES * UNROLLED * registers))
    for phi, value in zip(carried, (i, numbers, weights, fetched, *sums), strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", i, inputs), loop, after)
    builder.position_at_end(after)
    for (r, j), total in zip(cells, sums, strict=True):
        builder.store(total, _pointer(builder, VECTOR, cell(out, out_row, r, j)), align=4)


def _int(n: int) -> Any:
    return ir.Constant(INT64, n)


def _pointer(builder: Any, kind: Any, address: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, kind: Any, address: Any) -> Any:
    return builder.load(_pointer(builder, kind, address), align=4)


def _spread(builder: Any, address: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    one = builder.insert_element(nothing, _load(builder, FLOAT, address), ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32"), [a, b, c])


def _fetch(builder: Any, address: Any) -> None:
    """A line, to the second cache; a hint, which no address makes fail."""
    kind = ir.FunctionType(ir.VoidType(), [BYTE, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, second_cache, data = (ir.Constant(INT32, n) for n in (0, 2, 1))
    builder.call(function, [builder.inttoptr(address, BYTE), to_read, second_cache, data])


@compiled()
def _tile(
    x: int, x_row: int, panel: int, start: int, start_row: int, out: int, out_row: int, inputs: int, ahead: int, step: int,
    tall: int, wide: int,
) -> None:  # fmt: skip
    """A function of its own: inside the loops of another its own loop is compiled a quarter slower."""
    _tile_code(x, x_row, panel, start, start_row, out, out_row, inputs, ahead, step, tall, wide)  # type: ignore[call-arg]


@compiled()
def pack(matrix: Any, block: int, packed: Any) -> None:
    """A matrix (outputs, inputs) into panels: for each `block` of inputs, panel for panel, input for input, its outputs.

    `packed` (outputs filled up to a multiple of LANES * inputs,): what is filled up is zero.
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
    """x (rows, inputs) times packed weights, into `out` (rows, outputs): rows stay in the cache, panels pass by."""
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
    """Weights (outputs, inputs), as they are, times packed columns, into `out` (outputs, columns): the weights pass by."""
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
