"""Kernels: what lies between the matrix products of a step, compiled for this machine's CPU (numba).

Each is one pass over memory where torch needs several operations, and none of them pads: a row looks at its own ancestors and
its own source, where they lie. float32, one thread, no Python lock. Indices are not checked here (`Rows.check` does that); NaN
stays NaN. `tests/engine/test_native.py` holds every one of them against torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from .compiled import compiled

f32 = np.float32
i32 = np.int32

REORDER = {"reassoc", "contract", "nsz", "arcp"}  # sums may be taken in any order: that is what makes them fast

SUMMED = 64  # tokens whose sum is taken by itself, which keeps the whole accurate
LOWEST = f32(-3.0e38)


@intrinsic
def _as_float(context: Any, x: Any) -> Any:
    """The float32 with the bits of an int32."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target.get_value_type(types.float32))

    return types.float32(types.int32), generate


@njit(inline="always", fastmath=REORDER)
def _exp(x: Any) -> Any:
    """e^x for x <= 0 (NaN for NaN), to a few units in the last place; plain arithmetic, so that loops are vectorised."""
    x = f32(-87.0) if x < f32(-87.0) else x
    n = f32(math.floor(x * f32(1.44269504) + f32(0.5)))
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * _as_float((i32(n) + i32(127)) << i32(23))  # type: ignore[call-arg]


@njit(inline="always", fastmath=REORDER)
def _logistic(x: Any) -> Any:
    """1 / (1 + e^-x); NaN for NaN."""
    e = _exp(-abs(x))
    return (f32(1) if x >= f32(0) else e) / (f32(1) + e)


@njit(inline="always", fastmath=REORDER)
def _dot(a: Any, b: Any) -> Any:
    total = f32(0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@njit(fastmath=REORDER | {"nnan"})
def _largest(x: Any) -> Any:
    """With NaN among them, anything. A function of its own: inlined, it would be compiled as its caller, where NaN stays NaN."""
    largest = x[0]
    for i in range(1, x.shape[0]):
        largest = x[i] if x[i] > largest else largest
    return largest


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


@njit(inline="always", fastmath=REORDER)
def _normalise(x: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    """One row. `out` may be `x`."""
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
    """The layer normalisation of x (rows, d)."""
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
    """Each token's embedding times `scale`, and its position's: (tokens, d)."""
    for r in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[r, i] = embedding[tokens[r], i] * scale + table[positions[r], i]


@compiled(fastmath=REORDER)
def top(x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The largest log-probabilities of each column's log-softmax, best first, ties by token; NaN where they are not finite.

    `x` (vocabulary, rows or more) logits, used up; `banned` tokens, which count in the sum but are not taken; `values`, `tokens`
    (rows, k), -inf where there are fewer. Of a row, only blocks whose largest is among the k largest are looked at again.
    """
    vocabulary, rows = x.shape
    block = 64 if values.shape[1] < 32 else 16
    maxima = _block_maxima(x, block)
    largest = np.empty(rows, f32)
    for r in range(rows):
        largest[r] = LOWEST
    for b in range(maxima.shape[0]):
        for r in range(rows):
            largest[r] = maxima[b, r] if maxima[b, r] > largest[r] else largest[r]
    totals = _sums(x, largest)
    for token in banned:
        if token < 0 or token >= vocabulary:
            continue
        b = token // block
        for r in range(rows):
            x[token, r] = -np.inf
            maxima[b, r] = -np.inf
            for each in range(b * block, min(vocabulary, (b + 1) * block)):
                maxima[b, r] = x[each, r] if x[each, r] > maxima[b, r] else maxima[b, r]
    for r in range(values.shape[0]):
        _take(x[:, r], maxima[:, r], block, values[r], tokens[r])
        whole = largest[r] + f32(math.log(totals[r]))
        for j in range(values.shape[1]):
            values[r, j] = min(values[r, j] - whole, f32(0)) if whole < f32(np.inf) else f32(np.nan)


@njit(inline="always", fastmath=REORDER)
def _block_maxima(x: Any, block: int) -> Any:
    vocabulary, rows = x.shape
    maxima = np.empty(((vocabulary + block - 1) // block, rows), f32)
    for token in range(vocabulary):
        most = maxima[token // block]
        if token % block == 0:
            for r in range(rows):
                most[r] = -np.inf
        for r in range(rows):
            most[r] = x[token, r] if x[token, r] > most[r] else most[r]
    return maxima


@njit(inline="always", fastmath=REORDER)
def _sums(x: Any, largest: Any) -> Any:
    """Of exp(x - largest)."""
    vocabulary, rows = x.shape
    totals, block = np.empty(rows, np.float64), np.empty(rows, f32)
    for r in range(rows):
        totals[r] = 0
        block[r] = 0
    for token in range(vocabulary):
        for r in range(rows):
            block[r] += _exp(x[token, r] - largest[r])
        if token % SUMMED == SUMMED - 1 or token == vocabulary - 1:
            for r in range(rows):
                totals[r] += block[r]
                block[r] = f32(0)
    return totals


@njit(inline="always")
def _take(x: Any, maxima: Any, block: int, best: Any, tokens: Any) -> None:
    """The k largest of x (vocabulary,), where `maxima` are its blocks' largest."""
    k, vocabulary = best.shape[0], x.shape[0]
    threshold = f32(-np.inf)  # none of them is less
    if k < maxima.shape[0]:
        threshold = _nth_largest(_copied(maxima), k)
    elif k < vocabulary:
        threshold = _nth_largest(_copied(x), k)
    for j in range(k):
        best[j] = -np.inf
        tokens[j] = 0
    found = 0
    for b in range(maxima.shape[0]):
        if maxima[b] < threshold or maxima[b] == -np.inf:
            continue
        for token in range(b * block, min(vocabulary, (b + 1) * block)):
            value = x[token]
            if value < threshold or value == -np.inf or (found == k and value <= best[k - 1]):
                continue
            j = found if found < k else k - 1
            while j > 0 and best[j - 1] < value:
                best[j] = best[j - 1]
                tokens[j] = tokens[j - 1]
                j -= 1
            best[j] = value
            tokens[j] = token
            found = min(found + 1, k)


@njit
def _copied(x: Any) -> Any:
    """A copy, in a row."""
    copy = np.empty(x.shape[0], f32)
    for i in range(x.shape[0]):
        copy[i] = x[i]
    return copy


@njit
def _nth_largest(x: Any, n: int) -> Any:
    """By quickselect; `x` is reordered."""
    low, high, want = 0, x.shape[0] - 1, n - 1
    while low < high:
        pivot = x[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while x[i] > pivot:
                i += 1
            while x[j] < pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if want <= j:
            high = j
        elif want >= i:
            low = i
        else:
            break
    return x[want]
