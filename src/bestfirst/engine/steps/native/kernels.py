"""Kernels: what lies between a step's matmuls (norms, activations, embeddings), and a checksum, compiled by numba.

Each is one pass over memory where torch needs several operations, and none pads: a row reads its own ancestors and its own source
in place. float32, one thread, without the GIL. Indices are not checked here (`Rows.check` does that); NaN stays NaN.
`tests/engine/test_native.py` compares each kernel with torch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

compiled = partial(njit, error_model="numpy")  # division by zero gives inf or NaN, no exception
f32 = np.float32
i32 = np.int32
u32 = np.uint32

REORDER = {"reassoc", "contract", "nsz", "arcp"}  # sums in any order, so that they can be vectorised


@intrinsic
def _as_float(context: Any, x: Any) -> Any:
    """The float32 that has an int32's bits."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target.get_value_type(types.float32))

    return types.float32(types.int32), generate


@njit(inline="always", fastmath=REORDER)
def _exp(x: Any) -> Any:
    """e^x for x <= 0 (NaN for NaN), to a few units in the last place; plain arithmetic, so that loops are vectorised."""
    x = f32(-87.0) if x < f32(-87.0) else x
    power = i32(x * f32(1.44269504) - f32(0.5))  # truncation rounds to nearest, as x is not positive
    n = f32(power)
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * _as_float((power + i32(127)) << i32(23))  # type: ignore[call-arg]


@njit(inline="always", fastmath=REORDER)
def _logistic(x: Any) -> Any:
    """1 / (1 + e^-x); NaN for NaN."""
    e = _exp(-abs(x))
    return (f32(1) if x >= f32(0) else e) / (f32(1) + e)


@njit(fastmath=REORDER | {"nnan"})
def _largest(x: Any) -> Any:
    """The maximum; undefined with NaN among them. Not inlined: it would take over the caller's fastmath flags, which keep NaN."""
    largest = x[0]
    for i in range(1, x.shape[0]):
        largest = x[i] if x[i] > largest else largest
    return largest


@njit(inline="always", fastmath=REORDER)
def _normalise(x: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    """Layer normalisation of one row. `out` may be `x`."""
    d = x.shape[0]
    total = f32(0)
    for i in range(d):
        total += x[i]
    mean = total / f32(d)
    squares = f32(0)
    for i in range(d):
        squares += (x[i] - mean) * (x[i] - mean)
    factor = f32(1) / math.sqrt(squares / f32(d) + epsilon)
    for i in range(d):
        out[i] = (x[i] - mean) * factor * weight[i] + shift[i]


@compiled(fastmath=REORDER)
def norm(x: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    """Layer normalisation of x (rows, d)."""
    for r in range(x.shape[0]):
        _normalise(x[r], weight, shift, epsilon, out[r])


@compiled(fastmath=REORDER)
def add_norm(x: Any, y: Any, bias: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    """x += y + bias, and out = its layer normalisation. (rows, d) each; `out` may be `x`."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += y[r, i] + bias[i]
        _normalise(x[r], weight, shift, epsilon, out[r])


@compiled(fastmath=REORDER)
def relu(x: Any, bias: Any) -> None:
    """max(0, x + bias), in place; NaN stays NaN."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[r, i] + bias[i]
            x[r, i] = f32(0) if v < f32(0) else v


@compiled(fastmath=REORDER)
def gelu(x: Any, bias: Any) -> None:
    """v Phi(v) of v = x + bias, in place, by erf: Abramowitz and Stegun 7.1.26, off by less than 2e-7."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[r, i] + bias[i]
            a = abs(v) * f32(0.70710678)
            t = f32(1) / (f32(1) + f32(0.3275911) * a)
            p = f32(1.061405429) * t - f32(1.453152027)
            p = p * t + f32(1.421413741)
            p = p * t - f32(0.284496736)
            p = p * t + f32(0.254829592)
            tail = f32(0.5) * p * t * _exp(-a * a)  # Phi(-|v|)
            x[r, i] = v * tail if v < f32(0) else v - v * tail


@compiled(fastmath=REORDER)
def gelu_tanh(x: Any, bias: Any) -> None:
    """v / (1 + e^(-2u)), u = sqrt(2 / pi) (v + 0.044715 v^3), of v = x + bias, in place: the tanh form."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[r, i] + bias[i]
            x[r, i] = v * _logistic(f32(1.5957691216) * (v + f32(0.044715) * v * v * v))


@compiled(fastmath=REORDER)
def silu(x: Any, bias: Any) -> None:
    """v / (1 + e^-v) of v = x + bias, in place."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[r, i] + bias[i]
            x[r, i] = v * _logistic(v)


@compiled(fastmath=REORDER)
def embed(tokens: Any, positions: Any, embedding: Any, scale: Any, table: Any, out: Any) -> None:
    """out (tokens, d) = the token's embedding * scale + the position's embedding."""
    for r in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[r, i] = embedding[tokens[r], i] * scale + table[positions[r], i]


@compiled(fastmath=REORDER)
def activate(x: Any, bias: Any, kind: int) -> None:
    """The activation with this number (`parts.KINDS`), in place."""
    if kind == 0:
        relu(x, bias)
    elif kind == 1:
        gelu(x, bias)
    elif kind == 2:
        gelu_tanh(x, bias)
    else:
        silu(x, bias)


@compiled()
def mixed(numbers: Any, out: Any) -> None:
    """A checksum of integers (n,) that depends on each value and its position; two differ but for a chance of one in 2^32."""
    total = np.uint64(0)
    for i in range(numbers.shape[0]):
        x = (u32(numbers[i]) ^ u32(i)) * u32(0x9E3779B1)  # mixed by products and shifts, so that changes do not cancel out
        x = (x ^ (x >> u32(15))) * u32(0x85EBCA77)
        total += np.uint64(x)
    out[0] = total
