"""Code: instructions of LLVM's that tiles are made of, whatever their numbers are; and what lies at an address, as an array."""

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


def each_case(builder: Any, number_of_it: Any, cases: Mapping[int, Callable[[], None]]) -> None:
    """The code of every case, of which the one with this number is run, if there is one."""
    done = builder.append_basic_block("done")
    switch = builder.switch(number_of_it, done)
    for which, generate in cases.items():
        block = builder.append_basic_block(f"case_{which}")
        switch.add_case(number(which), block)
        builder.position_at_end(block)
        generate()
        builder.branch(done)
    builder.position_at_end(done)


def every_shape(builder: Any, largest: TileShape, tall: Any, wide: Any, generate: Callable[[int, int], None]) -> None:
    """The code of a tile of `tall` rows and `wide` registers, `generate` being asked for each that is no larger."""
    step = largest.wide + 1
    shapes = [(rows, registers) for rows in range(1, largest.tall + 1) for registers in range(1, step)]
    cases = {rows * step + registers: partial(generate, rows, registers) for rows, registers in shapes}
    each_case(builder, builder.add(builder.mul(tall, number(step)), wide), cases)


def loop(builder: Any, end: Any, begun: Sequence[Any], body: Callable[..., Sequence[Any]]) -> list[Any]:
    """Values as `body` makes them of one another, `begun` at first, while the first of them is less than `end`."""
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
    return ir.Constant(INT64, n)


def plus(builder: Any, address: Any, n: int) -> Any:
    return builder.add(address, number(n))


def cell(builder: Any, first: Any, row: Any, r: int, offset: int) -> Any:
    """The address `offset` bytes into the r-th row, rows being `row` bytes apart."""
    return builder.add(first, plus(builder, builder.mul(row, number(r)), offset))


def load(builder: Any, kind: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def spread(builder: Any, kind: Any, lanes: int, address: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
    one = builder.insert_element(nothing, load(builder, kind, address), ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """An instruction by its name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), list(args))


# -- what lies at an address, for compiled code alone ----------------------------------------------------------------------


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """What lies at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _array_of(kind: Any) -> Callable[[int, Any], Any]:
    @njit(inline="always")
    def array(address: int, shape: Any) -> Any:
        return carray(pointer(address), shape, kind)  # type: ignore[call-arg]

    return array


floats, doubles, ints, longs, signed, octets = map(_array_of, (np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8))
"""What lies at an address, as an array of this shape."""
