"""Attention: of rows to their ancestors and sources, where they lie, and of an encoder's tokens to their own. As `kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .heads import look
from .kernels import REORDER, compiled, f32
from .registers import LANES


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
