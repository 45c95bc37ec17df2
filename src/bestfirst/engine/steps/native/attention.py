"""Attention kernels: of rows over their ancestors and sources, read in place, and of an encoder's tokens over their own input.

First `attend`, one head of one query, generated as LLVM IR so that every sum stays in a register. Keys and values may lie
anywhere in a pool: a path of indices selects its rows. Conventions are those of `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .code import FLOAT, INT32, INT64, call_llvm, floats, ints, load, loop, number, plus, splat, store, switch_cases
from .kernels import REORDER, _exp, _largest, compiled, f32
from .registers import LANES

VECTOR = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT32, LANES)
REGISTERS = (1, 2, 4, 8, 16)  # sizes of a head, in registers, that code is generated for; other sizes take plain loops
LOWEST = -3.0e38


@intrinsic
def _attend_code(
    _: Any, q: Any, keys: Any, values: Any, path: Any, row: Any, n: Any, weights: Any, out: Any, registers: Any
) -> Any:
    """As `attend`, for a head of so many registers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        switch_cases(builder, args[8], {n: partial(_generate, builder, n, *args[:8]) for n in REGISTERS})
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


def _generate(
    builder: Any, registers: int, q: Any, keys: Any, values: Any, path: Any, row: Any, n: Any, weights: Any, out: Any
) -> None:
    """The code for one head: dot products with all keys, their softmax, and the weighted sum of values."""
    cells = range(registers)
    size = 4 * LANES
    last = builder.and_(plus(builder, n, -1), number(-LANES))  # index at which the last register of weights begins
    lowest, nothing, one = map(_constant, (LOWEST, 0.0, 1.0))
    query = [load(builder, VECTOR, plus(builder, q, size * c)) for c in cells]

    def register(j: Any) -> Any:
        return builder.add(weights, builder.mul(j, number(4)))

    def at(j: Any, first: Any) -> Any:
        place = builder.add(path, builder.mul(j, number(4)))
        return builder.add(first, builder.mul(builder.sext(load(builder, INT32, place), INT64), row))

    def product(j: Any) -> list[Any]:
        key = at(j, keys)
        total = nothing
        for c in cells:
            total = _fma(builder, query[c], load(builder, VECTOR, plus(builder, key, size * c)), total)
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
        value, weight = at(j, values), splat(builder, FLOAT, LANES, register(j))
        return [
            plus(builder, j, 1),
            *(_fma(builder, weight, load(builder, VECTOR, plus(builder, value, size * c)), sums[c]) for c in cells),
        ]

    _, *sums = loop(builder, n, [number(0), *[nothing] * registers], add)
    for c in cells:
        store(builder, builder.fmul(sums[c], factor), plus(builder, out, size * c))


def _fma(builder: Any, a: Any, b: Any, total: Any) -> Any:
    return call_llvm(builder, f"llvm.fmuladd.v{LANES}f32", VECTOR, a, b, total)


def _over_lanes(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """A register reduced over its lanes by `join`; the result is in every lane."""
    width = LANES
    while width > 1:
        width //= 2
        crossed = builder.shuffle_vector(vector, vector, ir.Constant(INTS, [i ^ width for i in range(LANES)]))
        vector = join(vector, crossed)
    return vector


def _constant(value: float) -> Any:
    return ir.Constant(VECTOR, [ir.Constant(FLOAT, float(f32(value)))] * LANES)


def _exponential(builder: Any, x: Any) -> Any:
    """`kernels._exp` of a register."""
    x = builder.select(builder.fcmp_ordered("<", x, _constant(-87.0)), _constant(-87.0), x)
    power = builder.fptosi(builder.fsub(builder.fmul(x, _constant(1.44269504)), _constant(0.5)), INTS)
    n = builder.sitofp(power, VECTOR)
    r = _fma(builder, n, _constant(2.12194440e-4), _fma(builder, n, _constant(-0.693359375), x))
    p = _constant(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = _fma(builder, p, r, _constant(factor))
    p = builder.fadd(_fma(builder, builder.fmul(p, r), r, r), _constant(1.0))
    bias, mantissa = (ir.Constant(INTS, [ir.Constant(INT32, n)] * LANES) for n in (127, 23))
    return builder.fmul(p, builder.bitcast(builder.shl(builder.add(power, bias), mantissa), VECTOR))


@compiled(fastmath=REORDER)
def attend(q: int, keys: int, values: int, path: int, row: int, n: int, weights: int, out: int, size: int) -> None:
    """One head: out (size,) = softmax(q K^T) V over n keys and values. `q` is scaled.

    All arguments but `row`, `n` and `size` are addresses. The j-th key and value lie path[j] * row bytes after the first.
    `weights` is scratch memory for n numbers and one register.
    """
    registers = size // LANES
    if registers * LANES == size and registers in REGISTERS:
        _attend_code(q, keys, values, path, row, n, weights, out, registers)  # type: ignore[call-arg]
        return
    query, w, o, places = floats(q, (size,)), floats(weights, (n,)), floats(out, (size,)), ints(path, (n,))
    for j in range(n):
        w[j] = _dot(query, floats(keys + places[j] * row, (size,)))
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
def _identity_path(n: int) -> Any:
    path = np.empty(n, np.int32)
    for i in range(n):
        path[i] = i
    return path


@compiled(fastmath=REORDER)
def own_attention(
    qkv: Any, bias: Any, pool: Any, paths: Any, slots: Any, positions: Any, heads: int, scale: Any, out: Any
) -> None:
    """Self-attention of each row over its ancestors and itself.

    `qkv` (rows, 3 d) without its `bias` (3 d,); `pool` (slots, 2 d) keys and values, to which those of the rows are written
    first; `paths` (slots, context) each slot's ancestors by position; `slots`, `positions` (rows,); `out` (rows, d).
    """
    rows, d = out.shape
    size = d // heads
    weights = np.empty(paths.shape[1] + LANES, f32)
    for r in range(rows):
        own = pool[slots[r]]
        for i in range(d):
            qkv[r, i] = (qkv[r, i] + bias[i]) * scale
        for i in range(2 * d):
            own[i] = qkv[r, d + i] + bias[d + i]
    for r in range(rows):
        for h in range(heads):
            first = 4 * h * size
            keys = pool.ctypes.data + first
            attend(
                qkv[r].ctypes.data + first, keys, keys + 4 * d, paths[slots[r]].ctypes.data, pool.strides[0], positions[r] + 1,
                weights.ctypes.data, out[r].ctypes.data + first, size,
            )  # fmt: skip


@compiled(fastmath=REORDER)
def cross_attention(q: Any, bias: Any, keys_values: Any, lengths: Any, places: Any, scale: Any, out: Any) -> None:
    """Attention of each row over its source.

    `q` (rows, d) without its `bias`; `keys_values` (2, sources, heads, length, size); `lengths` (sources,); `places` (rows,).
    """
    rows, d = out.shape
    heads, size = keys_values.shape[2], keys_values.shape[4]
    weights, path = np.empty(keys_values.shape[3] + LANES, f32), _identity_path(keys_values.shape[3])
    scaled = np.empty(d, f32)
    for r in range(rows):
        place = places[r]
        for i in range(d):
            scaled[i] = (q[r, i] + bias[i]) * scale
        for h in range(heads):
            attend(
                scaled.ctypes.data + 4 * h * size, keys_values[0, place, h].ctypes.data, keys_values[1, place, h].ctypes.data,
                path.ctypes.data, 4 * size, lengths[place], weights.ctypes.data, out[r].ctypes.data + 4 * h * size, size,
            )  # fmt: skip


@compiled(fastmath=REORDER)
def self_attention(qkv: Any, bias: Any, starts: Any, heads: int, scale: Any, out: Any) -> None:
    """Attention of an encoder's tokens over all tokens of their own input.

    `qkv` (tokens, 3 d) without its `bias`, inputs concatenated; `starts` (inputs + 1,) where each begins; `out` (tokens, d).
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
    weights, path = np.empty(longest + LANES, f32), _identity_path(longest)
    for s in range(starts.shape[0] - 1):
        n = starts[s + 1] - starts[s]
        for h in range(heads):
            keys = qkv[starts[s]].ctypes.data + 4 * (d + h * size)
            for t in range(starts[s], starts[s + 1]):
                attend(
                    qkv[t].ctypes.data + 4 * h * size, keys, keys + 4 * d, path.ctypes.data, qkv.strides[0], n,
                    weights.ctypes.data, out[t].ctypes.data + 4 * h * size, size,
                )  # fmt: skip


@compiled()
def put(keys_values: Any, bias: Any, starts: Any, first: int, out: Any) -> None:
    """Copy sources' keys and values, (tokens, 2 d) without their `bias`, to places from `first` on in `out`, as in `Sources`."""
    heads, size = out.shape[2], out.shape[4]
    for s in range(starts.shape[0] - 1):
        for t in range(starts[s], starts[s + 1]):
            for part in range(2):
                for h in range(heads):
                    begin = (part * heads + h) * size
                    for i in range(size):
                        out[part, first + s, h, t - starts[s], i] = keys_values[t, begin + i] + bias[begin + i]
