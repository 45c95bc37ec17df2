"""Tops: log-sum-exp and the top-k tokens of each row, among all or those that a trie allows. Conventions as in `kernels`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from . import search_plan as s
from .code import ints, longs
from .kernels import REORDER, _exp, _largest, compiled, f32
from .search_state import search_at

SUMMED = ROW_BLOCK = 64  # tokens per block: blocks are summed separately, for accuracy, and have their maxima kept
LOWEST = f32(-3.0e38)


@compiled(fastmath=REORDER)
def row_top(x: Any, vocabulary: int, banned: Any, values: Any, tokens: Any) -> None:
    """As `top`, for contiguous rows of logits: `x` (rows, vocabulary or more)."""
    maxima = np.empty((vocabulary + ROW_BLOCK - 1) // ROW_BLOCK, f32)
    for r in range(x.shape[0]):
        row = x[r, :vocabulary]
        for b in range(maxima.shape[0]):
            maxima[b] = _largest(row[b * ROW_BLOCK : min(vocabulary, (b + 1) * ROW_BLOCK)])
        largest = max(_largest(maxima), LOWEST)
        logsumexp = largest + f32(math.log(_row_sum_of_exp(row, largest)))
        for token in banned:
            if 0 <= token < vocabulary:
                row[token] = -np.inf
                b = token // ROW_BLOCK
                maxima[b] = _largest(row[b * ROW_BLOCK : min(vocabulary, (b + 1) * ROW_BLOCK)])
        _select(row, maxima, ROW_BLOCK, values[r], tokens[r])
        _normalise(values[r], logsumexp)


@compiled(fastmath=REORDER)
def allowed_top(x: Any, banned: Any, allowed: Any, ends: Any, values: Any, tokens: Any) -> None:
    """The top-k log-probabilities of each column's log-softmax among its allowed tokens, best first, ties by token.

    `x` (vocabulary, rows or more) logits, overwritten; `banned` tokens count in the sum but are not taken; row r may have the
    tokens allowed[ends[r - 1] : ends[r]], in order; `values`, `tokens` (rows, k), -inf where there are fewer, NaN where logits
    are not finite. After the log-sum-exp only allowed tokens are read: in a trie they are few.
    """
    logsumexps = column_logsumexps(x)
    begin = 0
    for r in range(values.shape[0]):
        top_of_allowed(x[:, r], allowed[begin : ends[r]], banned, logsumexps[r], values[r], tokens[r])
        begin = ends[r]


@compiled(fastmath=REORDER)
def top_of_allowed(x: Any, own: Any, banned: Any, logsumexp: Any, values: Any, tokens: Any) -> None:
    """The best of a row's allowed tokens `own`, given all its logits `x`, overwritten, and their log-sum-exp `logsumexp`."""
    for token in banned:
        if 0 <= token < x.shape[0]:
            x[token] = -np.inf
    found = np.empty(own.shape[0], f32)
    for j in range(own.shape[0]):
        found[j] = x[own[j]]
    _select(found, found, 1, values, tokens)
    for j in range(values.shape[0]):
        tokens[j] = own[tokens[j]] if j < found.shape[0] else 0
    _normalise(values, logsumexp)


@compiled(fastmath=REORDER)
def column_logsumexps(x: Any) -> Any:
    """The log-sum-exp of each column."""
    vocabulary, rows = x.shape
    largest, logsumexps = np.empty(rows, f32), np.empty(rows, f32)
    for r in range(rows):
        largest[r] = LOWEST
    for token in range(vocabulary):
        for r in range(rows):
            largest[r] = x[token, r] if x[token, r] > largest[r] else largest[r]
    totals = _sums_of_exp(x, largest)
    for r in range(rows):
        logsumexps[r] = largest[r] + f32(math.log(totals[r]))
    return logsumexps


@compiled(fastmath=REORDER)
def top(x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The top-k log-probabilities of each column's log-softmax, best first, ties by token; NaN where they are not finite.

    `x` (vocabulary, rows or more) logits, overwritten; `banned` tokens count in the sum but are not taken; `values`, `tokens`
    (rows, k), -inf where there are fewer. Only blocks whose maximum is among the k largest are read again.
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
    totals = _sums_of_exp(x, largest)
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
        _select(x[:, r], maxima[:, r], block, values[r], tokens[r])
        logsumexp = largest[r] + f32(math.log(totals[r]))
        _normalise(values[r], logsumexp)


@njit(inline="always", fastmath=REORDER)
def _normalise(logits: Any, logsumexp: Any) -> None:
    """Logits to log-probabilities, in place, given the log-sum-exp."""
    for j in range(logits.shape[0]):
        logits[j] = min(logits[j] - logsumexp, f32(0)) if logsumexp < f32(np.inf) else f32(np.nan)


@njit(inline="always", fastmath=REORDER)
def _block_maxima(x: Any, block: int) -> Any:
    """The maxima of blocks of tokens, (blocks, rows)."""
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
def _sums_of_exp(x: Any, largest: Any) -> Any:
    """The sum of exp(x - largest) of each column."""
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
def _select(x: Any, maxima: Any, block: int, best: Any, tokens: Any) -> None:
    """The k largest of x (vocabulary,), best first, given the maxima of its blocks."""
    k, vocabulary = best.shape[0], x.shape[0]
    threshold = f32(-np.inf)  # a lower bound of the k-th largest
    if k < maxima.shape[0]:
        threshold = _nth_largest(_contiguous(maxima), k)
    elif k < vocabulary:
        threshold = _nth_largest(_contiguous(x), k)
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
def _contiguous(x: Any) -> Any:
    """A contiguous copy."""
    copy = np.empty(x.shape[0], f32)
    for i in range(x.shape[0]):
        copy[i] = x[i]
    return copy


@njit
def _nth_largest(x: Any, n: int) -> Any:
    """The n-th largest of x, by quickselect, which reorders x."""
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


@njit(fastmath=REORDER)
def _row_sum_of_exp(x: Any, largest: Any) -> Any:
    """The sum of exp(x - largest)."""
    total = 0.0
    for first in range(0, x.shape[0], ROW_BLOCK):
        part = f32(0)
        for i in range(first, min(x.shape[0], first + ROW_BLOCK)):
            part += _exp(x[i] - largest)
        total += part
    return total


# -- the top-k of compiled searches, some of which may be restricted to a `Trie` -------------------------------------------
# A scored hypothesis has a state: the trie node that it has reached. A node's children are a slice of sorted tokens.

NO_ITEM = -1


@compiled()
def find_trie_states(e: Any, rows: int) -> bool:
    """Find the trie state of each row. Returns whether any row is restricted to a trie."""
    search_of, node_of = ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,))
    states = ints(e[s.ROW_STATES_AT], (rows,))
    restricted = False
    for r in range(rows):
        h = search_at(e, search_of[r])
        states[r] = 0
        if h[s.TRIE_AT] == 0:
            continue
        restricted = True
        nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
        parent = nodes[node_of[r], s.PARENT]
        if parent >= 0:
            row = nodes[parent, s.ROW]
            states[r] = trie_child(h, ints(h[s.STATES_AT], (row + 1,))[row], nodes[node_of[r], s.TOKEN])
    return restricted


@compiled()
def trie_child(h: Any, node: int, token: int) -> int:
    """The child of a trie node by one of its tokens."""
    first = ints(h[s.FIRST_AT], (node + 2,))
    low, high = first[node], first[node + 1]
    tokens = ints(h[s.TRIE_AT], (high,))
    while low + 1 < high:
        middle = (low + high) // 2
        if tokens[middle] <= token:
            low = middle
        else:
            high = middle
    return low


@compiled()
def allowed(e: Any, r: int, own: Any) -> int:
    """Write the tokens that may follow a row into `own`, in order. Returns their number."""
    h = search_at(e, ints(e[s.ROW_SEARCHES_AT], (r + 1,))[r])
    if h[s.TRIE_AT] == 0:
        for token in range(e[s.VOCABULARY]):
            own[token] = token
        return e[s.VOCABULARY]
    node = ints(e[s.ROW_STATES_AT], (r + 1,))[r]
    first = ints(h[s.FIRST_AT], (node + 2,))
    at, last = first[node], first[node + 1]
    tokens = ints(h[s.TRIE_AT], (last,))
    ends = longs(h[s.TRIE_ENDS_AT], (h[s.TRIE_ENDS] if ints(h[s.ITEMS_AT], (node + 1,))[node] != NO_ITEM else 0,))
    n = 0
    for end in ends:
        while at < last and tokens[at] < end:
            own[n] = tokens[at]
            n, at = n + 1, at + 1
        if at < last and tokens[at] == end:
            at += 1
        own[n] = end
        n += 1
    for i in range(at, last):
        own[n] = tokens[i]
        n += 1
    return n


@compiled(fastmath=REORDER)
def top_of_allowed_rows(e: Any, x: Any, logsumexps: Any, banned: Any, values: Any, tokens: Any) -> None:
    """As `allowed_top`, of logits (rows, vocabulary or more) whose log-sum-exps `logsumexps` are known."""
    own = np.empty(e[s.VOCABULARY], np.int32)
    for r in range(values.shape[0]):
        top_of_allowed(x[r], own[: allowed(e, r, own)], banned, logsumexps[r], values[r], tokens[r])


@compiled(fastmath=REORDER)
def top_of_rows(e: Any, x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The top-k of each row of `x` (rows, vocabulary or more)."""
    rows, vocabulary = values.shape[0], e[s.VOCABULARY]
    if not find_trie_states(e, rows):
        row_top(x, vocabulary, banned, values, tokens)
        return
    turned = np.empty((vocabulary, rows), f32)  # so that sums are rounded as in `NativeDecoder.best`
    for r in range(rows):
        for token in range(vocabulary):
            turned[token, r] = x[r, token]
    top_of_allowed_rows(e, x, column_logsumexps(turned), banned, values, tokens)


@compiled(fastmath=REORDER)
def top_of_columns(e: Any, x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The top-k of each column of `x` (vocabulary, rows or more)."""
    if not find_trie_states(e, values.shape[0]):
        top(x, banned, values, tokens)
        return
    top_of_allowed_rows(e, x.T, column_logsumexps(x), banned, values, tokens)
