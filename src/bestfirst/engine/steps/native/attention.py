"""Attention: of rows to their ancestors and sources, where they lie, and of an encoder's tokens to their own. As `kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .kernels import REORDER, _exp, _largest, compiled, f32


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
    weights = np.empty(paths.shape[1], f32)
    for r in range(rows):
        mine = pool[slots[r]]
        for i in range(d):
            qkv[r, i] = (qkv[r, i] + bias[i]) * scale
        for i in range(2 * d):
            mine[i] = qkv[r, d + i] + bias[d + i]
    for r in range(rows):
        n = positions[r] + 1
        path = paths[slots[r]]
        w = weights[:n]
        for h in range(heads):
            first, last = h * size, (h + 1) * size
            q = qkv[r, first:last]
            for j in range(n):
                w[j] = _dot(q, pool[path[j], first:last])
            _softmax(w)
            o = out[r, first:last]
            for i in range(size):
                o[i] = f32(0)
            for j in range(n):
                v = pool[path[j], d + first : d + last]
                for i in range(size):
                    o[i] += w[j] * v[i]


@compiled(fastmath=REORDER)
def cross_attention(q: Any, bias: Any, keys_values: Any, lengths: Any, places: Any, scale: Any, out: Any) -> None:
    """Attention of each row to its source.

    `q` (rows, d) without its `bias`; `keys_values` (2, sources, heads, length, size); `lengths` (sources,); `places` (rows,).
    """
    rows, d = out.shape
    heads, size = keys_values.shape[2], keys_values.shape[4]
    weights = np.empty(keys_values.shape[3], f32)
    scaled = np.empty(d, f32)
    for r in range(rows):
        place = places[r]
        n = lengths[place]
        w = weights[:n]
        for i in range(d):
            scaled[i] = (q[r, i] + bias[i]) * scale
        for h in range(heads):
            keys, values = keys_values[0, place, h], keys_values[1, place, h]
            mine = scaled[h * size : (h + 1) * size]
            for j in range(n):
                w[j] = _dot(mine, keys[j])
            _softmax(w)
            o = out[r, h * size : (h + 1) * size]
            for i in range(size):
                o[i] = f32(0)
            for j in range(n):
                for i in range(size):
                    o[i] += w[j] * values[j, i]


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
    for s in range(starts.shape[0] - 1):
        begin, end = starts[s], starts[s + 1]
        w = np.empty(end - begin, f32)
        for h in range(heads):
            first, last = h * size, (h + 1) * size
            for t in range(begin, end):
                q = qkv[t, first:last]
                for j in range(end - begin):
                    w[j] = _dot(q, qkv[begin + j, d + first : d + last])
                _softmax(w)
                o = out[t, first:last]
                for i in range(size):
                    o[i] = f32(0)
                for j in range(end - begin):
                    v = qkv[begin + j, 2 * d + first : 2 * d + last]
                    for i in range(size):
                        o[i] += w[j] * v[i]


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
