"""Code: helpers that emit LLVM IR for tiles and attention, whatever their element types; and arrays over raw addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .registers import TileShape

FLOAT, INT8, INT16, INT32, INT64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))


def switch_cases(builder: Any, selector: Any, cases: Mapping[int, Callable[[], None]]) -> None:
    """Emit a switch with this code for each case, by its number; no other number does anything."""
    done = builder.append_basic_block("done")
    switch = builder.switch(selector, done)
    for which, generate in cases.items():
        block = builder.append_basic_block(f"case_{which}")
        switch.add_case(number(which), block)
        builder.position_at_end(block)
        generate()
        builder.branch(done)
    builder.position_at_end(done)


def switch_shapes(builder: Any, largest: TileShape, tall: Any, wide: Any, generate: Callable[[int, int], None]) -> None:
    """Emit a tile's code, by `generate(rows, registers)`, for every shape up to `largest`, and a switch on `tall` and `wide`."""
    step = largest.wide + 1
    shapes = [(rows, registers) for rows in range(1, largest.tall + 1) for registers in range(1, step)]
    cases = {rows * step + registers: partial(generate, rows, registers) for rows, registers in shapes}
    switch_cases(builder, builder.add(builder.mul(tall, number(step)), wide), cases)


def loop(builder: Any, end: Any, begun: Sequence[Any], body: Callable[..., Sequence[Any]]) -> list[Any]:
    """Emit a loop that carries values, `begun` at first, through `body`, while the first of them is less than `end`."""
    before, inside, after = builder.block, builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(inside)
    builder.position_at_end(inside)
    carried = [builder.phi(value.type) for value in begun]
    made = [*body(*carried)]
    for phi, first, value in zip(carried, begun, made, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, inside)
    builder.cbranch(builder.icmp_signed("<", made[0], end), inside, after)
    builder.position_at_end(after)
    return made


def number(n: int) -> Any:
    """An int64 constant."""
    return ir.Constant(INT64, n)


def plus(builder: Any, address: Any, n: int) -> Any:
    """An int64 value, an address or a counter, plus a constant."""
    return builder.add(address, number(n))


def row_address(builder: Any, first: Any, row: Any, r: int, offset: int) -> Any:
    """The address `offset` bytes into the r-th row, if rows are `row` bytes apart."""
    return builder.add(first, plus(builder, builder.mul(row, number(r)), offset))


def load(builder: Any, kind: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def splat(builder: Any, kind: Any, lanes: int, address: Any) -> Any:
    """One number broadcast to all lanes of a register."""
    nothing = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
    one = builder.insert_element(nothing, load(builder, kind, address), ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def call_llvm(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an LLVM intrinsic by its name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), list(args))


# -- arrays over raw addresses, in compiled code ---------------------------------------------------------------------------


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """An integer address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _array_of(kind: Any) -> Callable[[int, Any], Any]:
    @njit(inline="always")
    def array(address: int, shape: Any) -> Any:
        return carray(pointer(address), shape, kind)  # type: ignore[call-arg]

    return array


floats, doubles, ints, longs, signed, octets = map(_array_of, (np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8))
"""Array views of an address and a shape: float32, float64, int32, int64, int8 and uint8."""
