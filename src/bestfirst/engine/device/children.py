# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Children: each row's best successors among those of a trie, of which a node's children are a slice: one lookup a row."""

from __future__ import annotations

import triton
import triton.language as tl

from .answers import ENDS, INF, RULES, WIDTH
from .successors import write

LOWEST = tl.constexpr(-(1 << 63))
LAST = tl.constexpr((1 << 31) - 1)


@triton.jit
def child_of(place, w, trie_tokens, trie_first):
    """The child of node `place` of the trie that token w leads to: it is there, since w was one of its children."""
    low = tl.load(trie_first + place)
    high = tl.load(trie_first + place + 1)
    while low < high:
        half = (low + high) // 2
        less = tl.load(trie_tokens + half) < w
        low = tl.where(less, half + 1, low)
        high = tl.where(less, high, half)
    return low


@triton.jit
def keep_children(
    logits, logits_row, total, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt, row_entry,
    trie_tokens, trie_first, trie_items, node_place, eos, V, W, P, WP: tl.constexpr,
):  # fmt: skip
    """As `successors.keep_best`, of a row's children in the trie, and of what ends an output where an item ends.

    Logit and token are one number, by which all are sorted: the WP best so far and the next WP together.
    """
    r = tl.program_id(0)
    if r < tl.load(counters):
        t = tl.load(row_length + r)
        e = tl.load(row_entry + r)
        place = 0
        if t >= P:
            place = child_of(tl.load(node_place + e // W), tl.load(token + e) & (ENDS - 1), trie_tokens, trie_first)
        tl.store(node_place + tl.load(row_node + r), place)
        begin = tl.load(trie_first + place)
        many = tl.load(trie_first + place + 1) - begin
        item = tl.load(trie_items + place) >= 0
        every = many + tl.where(item, tl.load(eos), 0)
        row = logits + r.to(tl.int64) * logits_row
        j = tl.arange(0, 2 * WP)
        best = tl.full([2 * WP], LOWEST, tl.int64)
        seen = 0
        while seen < every:
            fresh = (seen == 0) | (j >= WP)
            i = tl.where(seen == 0, j, seen + j - WP)
            of_trie = fresh & (i < many)
            ending = fresh & (i >= many) & (i < every)
            w = tl.load(trie_tokens + begin + i, mask=of_trie, other=0)
            w = tl.where(ending, tl.load(eos + 1 + i - many, mask=ending, other=0), w)
            twice = of_trie & item & (tl.load(ends + w, mask=of_trie, other=0) != 0)
            x = tl.load(row + w, mask=(of_trie | ending) & (twice == 0), other=-INF).to(tl.float32) + 0.0
            bits = x.to(tl.int32, bitcast=True)
            bits = tl.where(bits < 0, bits ^ LAST, bits)  # in the order of the numbers
            key = tl.where(x > -INF, (bits.to(tl.int64) << 32) | (w ^ LAST).to(tl.int64), LOWEST)
            best = tl.sort(tl.where(fresh, key, best), 0, True)
            seen += tl.where(seen == 0, 2 * WP, WP)
        bits = (best >> 32).to(tl.int32)
        bits = tl.where(bits < 0, bits ^ LAST, bits)
        wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        value = tl.where((best > LOWEST) & (j < wanted), bits.to(tl.float32, bitcast=True), -INF)
        which = tl.where(best > LOWEST, (best & LAST).to(tl.int32) ^ LAST, 0)
        write(value, which, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, 2 * WP)
