"""row_top: as `kernels.top`, where a row's logits stand together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .compiled import compiled
from .kernels import LOWEST, REORDER, _exp, _largest, _take, f32

BLOCK = 64  # tokens whose largest is known, and whose sum is taken by itself, which keeps the whole accurate


@compiled(fastmath=REORDER)
def row_top(x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The largest log-probabilities of each row's log-softmax, best first, ties by token; NaN where they are not finite.

    `x` (rows, vocabulary) logits, used up; `banned` tokens, which count in the sum but are not taken; `values`, `tokens` (rows,
    k), -inf where there are fewer.
    """
    vocabulary = x.shape[1]
    maxima = np.empty((vocabulary + BLOCK - 1) // BLOCK, f32)
    for r in range(x.shape[0]):
        row = x[r]
        for b in range(maxima.shape[0]):
            maxima[b] = _largest(row[b * BLOCK : min(vocabulary, (b + 1) * BLOCK)])
        largest = max(_largest(maxima), LOWEST)
        whole = largest + f32(math.log(_sum(row, largest)))
        for token in banned:
            if 0 <= token < vocabulary:
                row[token] = -np.inf
                b = token // BLOCK
                maxima[b] = _largest(row[b * BLOCK : min(vocabulary, (b + 1) * BLOCK)])
        _take(row, maxima, BLOCK, values[r], tokens[r])
        for j in range(values.shape[1]):
            values[r, j] = min(values[r, j] - whole, f32(0)) if whole < f32(np.inf) else f32(np.nan)


@njit(fastmath=REORDER)
def _sum(x: Any, largest: Any) -> Any:
    """Of exp(x - largest)."""
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        part = f32(0)
        for i in range(first, min(x.shape[0], first + BLOCK)):
            part += _exp(x[i] - largest)
        total += part
    return total
