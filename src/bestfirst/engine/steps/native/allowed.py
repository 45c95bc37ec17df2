"""allowed_top: as `kernels.top`, where each row may go on with tokens of its own only (a trie, a grammar)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .compiled import compiled
from .kernels import LOWEST, REORDER, _nth_largest, _sums, f32


@compiled(fastmath=REORDER)
def allowed_top(x: Any, banned: Any, allowed: Any, ends: Any, values: Any, tokens: Any) -> None:
    """The largest log-probabilities of each column's log-softmax among its allowed tokens, best first, ties by token.

    `x` (vocabulary, rows or more) logits, used up; `banned` tokens count in the sum but are not taken; row r may have the tokens
    allowed[ends[r - 1] : ends[r]], in order; `values`, `tokens` (rows, k), -inf where there are fewer, NaN where logits are not
    finite. Only what is allowed is looked at twice: little is, in a trie.
    """
    vocabulary, rows = x.shape
    largest = np.full(rows, LOWEST, f32)
    for token in range(vocabulary):
        for r in range(rows):
            largest[r] = x[token, r] if x[token, r] > largest[r] else largest[r]
    totals = _sums(x, largest)
    for token in banned:
        if 0 <= token < vocabulary:
            x[token] = -np.inf
    k = values.shape[1]
    begin = 0
    for r in range(values.shape[0]):
        own = allowed[begin : ends[r]]
        begin = ends[r]
        found = np.empty(own.shape[0], f32)
        for j in range(own.shape[0]):
            found[j] = x[own[j], r]
        order = _order(found, k)
        whole = largest[r] + f32(math.log(totals[r]))
        values[r] = -np.inf
        tokens[r] = 0
        for j in range(order.shape[0]):
            tokens[r, j] = own[order[j]]
            values[r, j] = min(found[order[j]] - whole, f32(0))
        if not whole < f32(np.inf):
            values[r] = np.nan


@compiled()
def _order(x: Any, k: int) -> Any:
    """Where the k largest of x are, largest first, of equals the first."""
    n = x.shape[0]
    if n <= k:
        return np.argsort(-x, kind="mergesort")
    threshold = _nth_largest(x.copy(), k)
    chosen = np.empty(k, np.int64)
    above = 0
    for j in range(n):
        above += x[j] > threshold
    left, count = k - above, 0
    for j in range(n):
        if x[j] > threshold or (x[j] == threshold and left > 0):
            left -= x[j] == threshold
            chosen[count] = j
            count += 1
    chosen = chosen[:count]
    return chosen[np.argsort(-x[chosen], kind="mergesort")]
