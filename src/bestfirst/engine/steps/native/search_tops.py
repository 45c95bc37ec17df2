"""Search tops: how the hypotheses of compiled searches may go on, which is anything, or what a `Trie` has below them.

A scored hypothesis has a state, the trie's node that it has reached. Nodes' children are a slice, one lookup a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import search_plan as s
from . import tops
from .kernels import REORDER, compiled, f32
from .memory_views import ints, longs
from .search_nodes import search_at

NO_ITEM = -1


@compiled()
def follow(e: Any, rows: int) -> bool:
    """Find the state of each row. Whether any is under a trie."""
    whose, which = ints(e[s.ROW_SEARCHES_AT], (rows,)), ints(e[s.ROW_NODES_AT], (rows,))
    states = ints(e[s.ROW_STATES_AT], (rows,))
    some = False
    for r in range(rows):
        h = search_at(e, whose[r])
        states[r] = 0
        if h[s.TRIE_AT] == 0:
            continue
        some = True
        nodes = ints(h[s.NODES_AT], (h[s.NODES], 5))
        parent = nodes[which[r], s.PARENT]
        if parent >= 0:
            row = nodes[parent, s.ROW]
            states[r] = child(h, ints(h[s.STATES_AT], (row + 1,))[row], nodes[which[r], s.TOKEN])
    return some


@compiled()
def child(h: Any, node: int, token: int) -> int:
    """Where a token leads that is one of the node's."""
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
    """Put the tokens that a row may go on with into `own`, in order; returns how many."""
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
def best_allowed(e: Any, x: Any, wholes: Any, banned: Any, values: Any, tokens: Any) -> None:
    """As `tops.allowed_top`, of logits (rows, vocabulary or more) of which the log-sum-exp is known."""
    own = np.empty(e[s.VOCABULARY], np.int32)
    found = np.empty(e[s.VOCABULARY], f32)
    for r in range(values.shape[0]):
        n = allowed(e, r, own)
        for j in range(n):
            found[j] = x[r, own[j]]
            for token in banned:
                if token == own[j]:
                    found[j] = -np.inf
        tops.take_allowed(found[:n], own, wholes[r], values[r], tokens[r])


@compiled(fastmath=REORDER)
def of_rows(e: Any, x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The best tokens of each row, `x` (rows, vocabulary or more) being its logits."""
    rows, vocabulary = values.shape[0], e[s.VOCABULARY]
    if not follow(e, rows):
        tops.row_top(x, vocabulary, banned, values, tokens)
        return
    turned = np.empty((vocabulary, rows), f32)  # sums are rounded as they are in `NativeDecoder.best`
    for r in range(rows):
        for token in range(vocabulary):
            turned[token, r] = x[r, token]
    best_allowed(e, x, tops.column_wholes(turned), banned, values, tokens)


@compiled(fastmath=REORDER)
def of_columns(e: Any, x: Any, banned: Any, values: Any, tokens: Any) -> None:
    """The same, where `x` is (vocabulary, rows or more)."""
    if not follow(e, values.shape[0]):
        tops.top(x, banned, values, tokens)
        return
    best_allowed(e, x.T, tops.column_wholes(x), banned, values, tokens)
