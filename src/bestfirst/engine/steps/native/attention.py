"""Attention: of rows to their ancestors and sources, where they lie, and of an encoder's tokens to their own. As `kernels`.

First what one head makes of a query, with every sum in a register. Keys and values lie anywhere: a path of numbers says which of
the rows of a memory they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .code import FLOAT, INT32, INT64, call, each_case, floats, ints, load, loop, number, plus, spread, store
from .kernels import REORDER, _exp, _largest, compiled, f32
from .registers import LANES

VECTOR = ir.VectorType(FLOAT, LANES)
WHOLES = ir.VectorType(INT32, LANES)
REGISTERS = (1, 2, 4, 8, 16)  # that a head may fill; of any other size it goes through loops
LOWEST = -3.0e38


@intrinsic
def _look_code(
    _: Any, q: Any, keys: Any, values: Any, path: Any, row: Any, n: Any, weights: Any, out: Any, registers: Any
) -> Any:
    """As `look`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        each_case(builder, args[8], {n: partial(_generate, builder, n, *args[:8]) for n in REGISTERS})
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


def _generate(
    builder: Any, registers: int, q: Any, keys: Any, values: Any, path: Any, row: Any, n: Any, weights: Any, out: Any
) -> None:
    """A head: products with all keys, their softmax, and the sum of values by it."""
    cells = range(registers)
    size = 4 * LANES
    last = builder.and_(plus(builder, n, -1), number(-LANES))  # where the last register of weights begins
    lowest, nothing, one = map(_every, (LOWEST, 0.0, 1.0))
    mine = [load(builder, VECTOR, plus(builder, q, size * c)) for c in cells]

    def register(j: Any) -> Any:
        return builder.add(weights, builder.mul(j, number(4)))

    def at(j: Any, first: Any) -> Any:
        place = builder.add(path, builder.mul(j, number(4)))
        return builder.add(first, builder.mul(builder.sext(load(builder, INT32, place), INT64), row))

    def product(j: Any) -> list[Any]:
        key = at(j, keys)
        total = nothing
        for c in cells:
            total = _added(builder, mine[c], load(builder, VECTOR, plus(builder, key, size * c)), total)
        store(builder, builder.extract_element(_over_lanes(builder, total, builder.fadd), ir.Constant(INT32, 0)), register(j))
        return [plus(builder, j, 1)]

    store(builder, lowest, register(last))
    loop(builder, n, [number(0)], product)
    end = plus(builder, last, LANES)

    def larger(j: Any, most: Any) -> list[Any]:
        these = load(builder, VECTOR, register(j))
        return [plus(builder, j, LANES), builder.select(builder.fcmp_ordered(">", these, most), these, most)]

    _, most = loop(builder, end, [number(0), lowest], larger)
    largest = _over_lanes(builder, most, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    def exponential(j: Any, total: Any) -> list[Any]:
        value = _exponential(builder, builder.fsub(load(builder, VECTOR, register(j)), largest))
        store(builder, value, register(j))
        return [plus(builder, j, LANES), builder.fadd(total, value)]

    _, total = loop(builder, end, [number(0), nothing], exponential)
    factor = builder.fdiv(one, _over_lanes(builder, total, builder.fadd))

    def add(j: Any, *sums: Any) -> list[Any]:
        value, weight = at(j, values), spread(builder, FLOAT, LANES, register(j))
        return [
            plus(builder, j, 1),
            *(_added(builder, weight, load(builder, VECTOR, plus(builder, value, size * c)), sums[c]) for c in cells),
        ]

    _, *sums = loop(builder, n, [number(0), *[nothing] * registers], add)
    for c in cells:
        store(builder, builder.fmul(sums[c], factor), plus(builder, out, size * c))


def _added(builder: Any, a: Any, b: Any, total: Any) -> Any:
    return call(builder, f"llvm.fmuladd.v{LANES}f32", VECTOR, a, b, total)


def _over_lanes(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """All lanes of a register joined, in every lane."""
    width = LANES
    while width > 1:
        width //= 2
        crossed = builder.shuffle_vector(vector, vector, ir.Constant(WHOLES, [i ^ width for i in range(LANES)]))
        vector = join(vector, crossed)
    return vector


def _every(value: float) -> Any:
    return ir.Constant(VECTOR, [ir.Constant(FLOAT, float(f32(value)))] * LANES)


def _exponential(builder: Any, x: Any) -> Any:
    """As `kernels._exp`, of a register."""
    x = builder.select(builder.fcmp_ordered("<", x, _every(-87.0)), _every(-87.0), x)
    power = builder.fptosi(builder.fsub(builder.fmul(x, _every(1.44269504)), _every(0.5)), WHOLES)
    n = builder.sitofp(power, VECTOR)
    r = _added(builder, n, _every(2.12194440e-4), _added(builder, n, _every(-0.693359375), x))
    p = _every(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = _added(builder, p, r, _every(factor))
    p = builder.fadd(_added(builder, builder.fmul(p, r), r, r), _every(1.0))
    bias, mantissa = (ir.Constant(WHOLES, [ir.Constant(INT32, n)] * LANES) for n in (127, 23))
    return builder.fmul(p, builder.bitcast(builder.shl(builder.add(power, bias), mantissa), VECTOR))


@compiled(fastmath=REORDER)
def look(q: int, keys: int, values: int, path: int, row: int, n: int, weights: int, out: int, size: int) -> None:
    """out (size,): the sum of n values by the softmax of the products of `q` with their keys.

    Addresses; the j-th key and value are path[j] times `row` bytes behind the first. `weights`: room for n and a register's.
    """
    registers = size // LANES
    if registers * LANES == size and registers in REGISTERS:
        _look_code(q, keys, values, path, row, n, weights, out, registers)  # type: ignore[call-arg]
        return
    mine, w, o, places = floats(q, (size,)), floats(weights, (n,)), floats(out, (size,)), ints(path, (n,))
    for j in range(n):
        w[j] = _dot(mine, floats(keys + places[j] * row, (size,)))
    _softmax(w)
    for i in range(size):
        o[i] = f32(0)
    for j in range(n):
        v = floats(values + places[j] * row, (size,))
        for i in range(size):
            o[i] += w[j] * v[i]


@njit(inline="always", fastmath=REORDER)
def _dot(a: Any, b: Any) -> Any:
    total = f32(0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@njit(inline="always", fastmath=REORDER)
def _softmax(x: Any) -> None:
    """In place."""
    largest = _largest(x)
    total = f32(0)
    for i in range(x.shape[0]):
        x[i] = _exp(x[i] - largest)
        total += x[i]
    factor = f32(1) / total
    for i in range(x.shape[0]):
        x[i] *= factor


# -- all heads -------------------------------------------------------------------------------------------------------------


@njit(inline="always")
def _one_after_another(n: int) -> Any:
    path = np.empty(n, np.int32)
    for i in range(n):
        path[i] = i
    return path


@compiled(fastmath=REORDER)
def own_attention(
    qkv: Any, bias: Any, pool: Any, paths: Any, slots: Any, positions: Any, heads: int, scale: Any, out: Any
) -> None:
    """Self-attention of each row over its ancestors.

    `qkv` (rows, 3 d) without its `bias` (3 d); `pool` (slots, 2 d) keys and values, those of the rows are written first;
    `paths` (slots, context) each slot's ancestors by position; `slots`, `positions` (rows,); `out` (rows, d).
    """
    rows, d = out.shape
    size = d // heads
    weights = np.empty(paths.shape[1] + LANES, f32)
    for r in range(rows):
        mine = pool[slots[r]]
        for i in range(d):
            qkv[r, i] = (qkv[r, i] + bias[i]) * scale
        for i in range(2 * d):
            mine[i] = qkv[r, d + i] + bias[d + i]
    for r in range(rows):
        for h in range(heads):
            first = 4 * h * size
            keys = pool.ctypes.data + first
            look(
                qkv[r].ctypes.data + first, keys, keys + 4 * d, paths[slots[r]].ctypes.data, pool.strides[0], positions[r] + 1,
                weights.ctypes.data, out[r].ctypes.data + first, size,
            )  # fmt: skip


@compiled(fastmath=REORDER)
def cross_attention(q: Any, bias: Any, keys_values: Any, lengths: Any, places: Any, scale: Any, out: Any) -> None:
    """Attention of each row to its source.

    `q` (rows, d) without its `bias`; `keys_values` (2, sources, heads, length, size); `lengths` (sources,); `places` (rows,).
    """
    rows, d = out.shape
    heads, size = keys_values.shape[2], keys_values.shape[4]
    weights, path = np.empty(keys_values.shape[3] + LANES, f32), _one_after_another(keys_values.shape[3])
    scaled = np.empty(d, f32)
    for r in range(rows):
        place = places[r]
        for i in range(d):
            scaled[i] = (q[r, i] + bias[i]) * scale
        for h in range(heads):
            look(
                scaled.ctypes.data + 4 * h * size, keys_values[0, place, h].ctypes.data, keys_values[1, place, h].ctypes.data,
                path.ctypes.data, 4 * size, lengths[place], weights.ctypes.data, out[r].ctypes.data + 4 * h * size, size,
            )  # fmt: skip


@compiled(fastmath=REORDER)
def self_attention(qkv: Any, bias: Any, starts: Any, heads: int, scale: Any, out: Any) -> None:
    """Attention of an encoder's tokens to all tokens of their own input.

    `qkv` (tokens, 3 d) without its `bias`, inputs one after another; `starts` (inputs + 1,) where each begins; `out` (tokens, d).
    """
    d = out.shape[1]
    size = d // heads
    for t in range(qkv.shape[0]):
        for i in range(3 * d):
            qkv[t, i] += bias[i]
        for i in range(d):
            qkv[t, i] *= scale
    longest = 0
    for s in range(starts.shape[0] - 1):
        longest = max(longest, starts[s + 1] - starts[s])
    weights, path = np.empty(longest + LANES, f32), _one_after_another(longest)
    for s in range(starts.shape[0] - 1):
        n = starts[s + 1] - starts[s]
        for h in range(heads):
            keys = qkv[starts[s]].ctypes.data + 4 * (d + h * size)
            for t in range(starts[s], starts[s + 1]):
                look(
                    qkv[t].ctypes.data + 4 * h * size, keys, keys + 4 * d, path.ctypes.data, qkv.strides[0], n,
                    weights.ctypes.data, out[t].ctypes.data + 4 * h * size, size,
                )  # fmt: skip


@compiled()
def put(keys_values: Any, bias: Any, starts: Any, first: int, out: Any) -> None:
    """Keys and values of sources, (tokens, 2 d) without their `bias`, to their places from `first` on in `out`, as `Sources`."""
    heads, size = out.shape[2], out.shape[4]
    for s in range(starts.shape[0] - 1):
        for t in range(starts[s], starts[s + 1]):
            for part in range(2):
                for h in range(heads):
                    begin = (part * heads + h) * size
                    for i in range(size):
                        out[part, first + s, h, t - starts[s], i] = keys_values[t, begin + i] + bias[begin + i]
