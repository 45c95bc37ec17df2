"""int8: the product of some rows and a large matrix, both in eight bits, summed up exactly in integers. One thread.

A matrix has a scale for each output, a row one of its own: 127 steps from zero to its largest number, either way. A row's results
depend on nothing but the row, and are the same numbers on every CPU:

- with VNNI (`vpdpbusd`) rows are shifted to 0..255, and each sum begins with what the shift will add to it, negated;
- with AVX2 (`vpmaddubsw`) the rows' magnitudes meet weights that take the rows' signs: 2 * 127 * 127 fits into sixteen bits.

Weights lie as both read them: in panels of some outputs, of which a tile of rows holds every sum in a register; in a panel, four
inputs of an output stand together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled

f32 = np.float32
i32 = np.int32


class Registers(NamedTuple):
    """What a CPU does such products with: a tile's shape, and whether it has VNNI."""

    lanes: int  # sums in a register
    wide: int  # registers of a panel's outputs
    tall: int  # rows of a tile, at most
    vnni: bool


def registers(has: dict[str, bool]) -> Registers | None:
    """The best that a CPU with these features can do; None where it has none of them."""
    if has.get("avx512vnni") and has.get("avx512bw"):
        return Registers(lanes=16, wide=3, tall=8, vnni=True)
    if has.get("avxvnni"):
        return Registers(lanes=8, wide=2, tall=6, vnni=True)
    return Registers(lanes=8, wide=2, tall=6, vnni=False) if has.get("avx2") else None


def _features() -> dict[str, bool]:
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # a system that does not tell
        return {}


HERE = registers(_features())
LANES, WIDE, TALL, VNNI = HERE or Registers(1, 1, 1, vnni=False)
PANEL = WIDE * LANES
QUAD = 4  # inputs whose products a register adds up
COPIES = 1 if VNNI else 2  # of a row: itself, and its magnitudes
ROWS = 96  # that stay in the inner caches while all panels pass by
MAGIC = f32(3 << 22)  # added to a small number, leaves it rounded in the last bits
MAGIC_BITS = MAGIC.view(i32)
INFINITY = f32(np.inf).view(i32)

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOATS = ir.VectorType(ir.FloatType(), LANES)
SUMS = ir.VectorType(INT32, LANES)
BYTES = ir.VectorType(INT8, QUAD * LANES)
PAIRS = ir.VectorType(INT16, 2 * LANES)


def suit(outputs: int) -> bool:
    """Whether this CPU has the instructions, and a matrix of so many outputs fills its registers."""
    return HERE is not None and outputs % LANES == 0


@njit(inline="always")
def padded(inputs: int) -> int:
    """So many inputs are four and four together."""
    return -(-inputs // QUAD) * QUAD


class Packed(NamedTuple):
    """A matrix (outputs, inputs) in eight bits, as `multiply` takes it; outputs are filled up to a multiple of LANES."""

    weights: Any  # (outputs, padded inputs) in memory, not in meaning
    start: Any  # (outputs,) what each sum begins with
    scales: Any  # (outputs,)

    @classmethod
    def of(cls, matrix: Any) -> Packed:
        outputs, inputs = -(-len(matrix) // LANES) * LANES, padded(matrix.shape[1])
        packed = cls(np.empty((outputs, inputs), np.int8), np.empty(outputs, np.int32), np.empty(outputs, f32))
        pack(np.ascontiguousarray(matrix, f32), *packed)
        return packed

    def room(self, rows: int) -> tuple[Any, Any]:
        """Memory for so many rows in eight bits, and for their scales."""
        return np.empty((rows, COPIES, self.weights.shape[1]), np.uint8), np.empty(rows, f32)


# -- a tile ------------------------------------------------------------------------------------------------------------------


@intrinsic
def _tile_code(
    _: Any, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any, out: Any, out_row: Any,
    inputs: Any, tall: Any, wide: Any,
) -> Any:  # fmt: skip
    """out = (start + x panel) scales row_scales, for `tall` rows and `wide` registers. Addresses, and distances in bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        done = builder.append_basic_block("done")
        shape = builder.add(builder.mul(args[10], _int(WIDE + 1)), args[11])
        switch = builder.switch(shape, done)
        for rows in range(1, TALL + 1):
            for wide in range(1, WIDE + 1):
                block = builder.append_basic_block(f"tile_{rows}_{wide}")
                switch.add_case(_int(rows * (WIDE + 1) + wide), block)
                builder.position_at_end(block)
                _generate(builder, rows, wide, *args[:10])
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _generate(
    builder: Any, rows: int, wide: int, x: Any, x_row: Any, copy: Any, panel: Any, start: Any, scales: Any, row_scales: Any,
    out: Any, out_row: Any, inputs: Any,
) -> None:  # fmt: skip
    """A tile: the loop over its inputs, all sums in registers."""
    cells = [(r, j) for r in range(rows) for j in range(wide)]
    begun = [_load(builder, SUMS, _plus(builder, start, 4 * LANES * j)) for _, j in cells]
    before, loop, after = builder.block, builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    carried = [builder.phi(value.type) for value in (_int(0), panel, *begun)]
    for phi, value in zip(carried, (_int(0), panel, *begun), strict=True):
        phi.add_incoming(value, before)
    i, weights, *sums = carried
    right = [_load(builder, BYTES, _plus(builder, weights, QUAD * LANES * j)) for j in range(wide)]
    for r in range(rows):
        at = builder.add(builder.add(x, i), builder.mul(x_row, _int(r)))
        left = _spread(builder, INT32, at)
        magnitudes = None if VNNI else _spread(builder, INT32, builder.add(at, copy))
        for j in range(wide):
            total = sums[r * wide + j]
            sums[r * wide + j] = (
                _dot(builder, left, right[j], total) if VNNI else _signed_dot(builder, left, magnitudes, right[j], total)
            )
    i, weights = _plus(builder, i, QUAD), _plus(builder, weights, QUAD * LANES * wide)
    for phi, value in zip(carried, (i, weights, *sums), strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", i, inputs), loop, after)
    builder.position_at_end(after)
    factors = [_load(builder, FLOATS, _plus(builder, scales, 4 * LANES * j)) for j in range(wide)]
    for r in range(rows):
        own = _spread(builder, ir.FloatType(), _plus(builder, row_scales, 4 * r))
        for j in range(wide):
            value = builder.fmul(builder.fmul(builder.sitofp(sums[r * wide + j], FLOATS), factors[j]), own)
            at = _plus(builder, builder.add(out, builder.mul(out_row, _int(r))), 4 * LANES * j)
            builder.store(value, builder.inttoptr(at, FLOATS.as_pointer()), align=4)


def _dot(builder: Any, x: Any, weights: Any, total: Any) -> Any:
    """total + x weights, x unsigned: four products a lane, by VNNI."""
    return _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", SUMS, total, x, builder.bitcast(weights, SUMS))


def _signed_dot(builder: Any, x: Any, magnitudes: Any, weights: Any, total: Any) -> Any:
    """The same by AVX2: |x| (weights with x's signs), in pairs and then in fours."""
    signed = _call(builder, "llvm.x86.avx2.psign.b", BYTES, weights, builder.bitcast(x, BYTES))
    pairs = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", PAIRS, builder.bitcast(magnitudes, BYTES), signed)
    return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", SUMS, pairs, ir.Constant(PAIRS, [1] * (2 * LANES))))


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), list(args))


def _int(n: int) -> Any:
    return ir.Constant(INT64, n)


def _plus(builder: Any, address: Any, n: int) -> Any:
    return builder.add(address, _int(n))


def _load(builder: Any, kind: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _spread(builder: Any, kind: Any, address: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(ir.VectorType(kind, LANES), ir.Undefined)
    one = builder.insert_element(nothing, _load(builder, kind, address), ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))


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


@intrinsic
def _number(context: Any, x: Any) -> Any:
    """The float32 with the bits of an int32."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target.get_value_type(types.float32))

    return types.float32(types.int32), generate


@njit(inline="always")
def _magnitude(x: Any) -> Any:
    """The largest |x|; no number if one of them is none, or infinite. By their bits, which are ordered as they are."""
    largest = i32(0)
    for i in range(x.shape[0]):
        size = i32(_bits(x[i]) & i32(0x7FFFFFFF))  # type: ignore[call-arg]
        largest = size if size > largest else largest
    return _number(largest) if largest < INFINITY else f32(np.nan)  # type: ignore[call-arg]


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
    """A matrix (outputs, inputs) into what `Packed` holds of it."""
    rows, inputs = matrix.shape
    outputs, depth = packed.shape
    flat = packed.reshape(outputs * depth)
    flat[:] = 0
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
            flat[first * depth + i // QUAD * QUAD * width + (o - first) * QUAD + i % QUAD] = value
        start[o] = -128 * total if VNNI else 0


@compiled()
def multiply(x: Any, row_scales: Any, packed: Any, start: Any, scales: Any, out: Any) -> None:
    """Quantised rows times a packed matrix, into `out` (rows, outputs) in float32."""
    outputs, depth = packed.shape
    for top in range(0, x.shape[0], ROWS):
        bottom = min(x.shape[0], top + ROWS)
        for first in range(0, outputs, PANEL):
            width = min(PANEL, outputs - first)
            for r in range(top, bottom, TALL):
                _tile(
                    x[r].ctypes.data, x.strides[0], x.strides[1], packed.ctypes.data + first * depth,
                    start.ctypes.data + 4 * first, scales.ctypes.data + 4 * first, row_scales.ctypes.data + 4 * r,
                    out[r].ctypes.data + 4 * first, out.strides[0], depth, min(TALL, bottom - r), width // LANES,
                )  # fmt: skip
