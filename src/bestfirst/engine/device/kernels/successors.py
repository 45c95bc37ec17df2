"""Top-k of each row's logits, over the vocabulary or a trie's children, stored as log-probabilities in its node's entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous
from .answers import ENDS, INF, OPEN, RULES, WIDTH
from .beam_lists import count_not_above

GROUP = 64  # tokens per group whose maximum is kept


def token_bitmap(tokens: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Tokens as a bitmap for `lse_and_maxima`: one int64 per group of 64 tokens, one bit per token."""
    bits = np.zeros(-(-vocabulary // GROUP), np.uint64)
    for token in tokens:
        bits[token // GROUP] |= np.uint64(1 << token % GROUP)
    return torch.from_numpy(bits.view(np.int64))


@triton.jit
def lse_and_maxima(
    logits, logits_row, total, maxima, banned, counters, V,
    ANY_BANNED: tl.constexpr, EDITED: tl.constexpr, G: tl.constexpr, C: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Log-sum-exp of a row in use, and the maximum of each of its G groups of C logits. `banned` (a bitmap) become -inf. EDITED:
    rows are log-probabilities already; their log-sum-exp counts as 0."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0).to(tl.int64)
    if r < tl.load(counters):
        group = tl.arange(0, G)
        at = group[:, None] * C + tl.arange(0, C)[None, :]
        x = tl.load(logits + r * logits_row + at, mask=at < V, other=-INF).to(tl.float32)
        if EDITED:
            tl.store(total + r, 0.0)
        else:
            peak = tl.max(tl.max(x, 1), 0)
            sum_all = peak + tl.log(tl.sum(tl.sum(tl.exp(x - peak), 1), 0))
            if sum_all != sum_all:
                tl.store(counters + 6, 1)
            tl.store(total + r, sum_all)
        if ANY_BANNED:
            bits = tl.load(banned + group, mask=group * C < V, other=0)
            is_banned = ((bits[:, None] >> tl.arange(0, C)[None, :]) & 1) != 0
            x = tl.where(is_banned, -INF, x)
            tl.store(logits + r * logits_row + at, x, mask=is_banned)
        tl.store(maxima + r * G + group, tl.max(x, 1))


@triton.jit
def keep_best(
    logits, logits_row, total, maxima, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt,
    V, W, P, G: tl.constexpr, C: tl.constexpr, WP: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Top-k of a row, k its input's width, ties to the smaller token. Within the prompt: its next token, with log-probability 0.
    Each round finds the best group among the maxima and rescans that group alone. Tokens taken are overwritten in `logits`."""
    wait_for_previous(OVERLAP)
    r = tl.program_id(0)
    if r < tl.load(counters):
        row = logits + r.to(tl.int64) * logits_row
        group = tl.arange(0, G)
        lane = tl.arange(0, C)
        group_max = tl.load(maxima + r.to(tl.int64) * G + group)
        j = tl.arange(0, WP)
        best = tl.full([WP], -INF, tl.float32)
        tokens = tl.zeros([WP], tl.int32)
        i = 0
        n_wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        while i < n_wanted:
            top = tl.max(group_max, 0)
            g = tl.min(tl.where(group_max == top, group, G - 1), 0)
            tl.debug_barrier()
            group_logits = tl.load(row + g * C + lane, mask=g * C + lane < V, other=-INF).to(tl.float32)
            at = tl.min(tl.where(group_logits == top, lane, C - 1), 0)
            tl.store(row + g * C + lane, tl.full([C], -INF, tl.float32), mask=(lane == at) & (g * C + lane < V))
            group_max = tl.where(group == g, tl.max(tl.where(lane == at, -INF, group_logits), 0), group_max)
            best = tl.where(j == i, top, best)
            tokens = tl.where(j == i, tl.minimum(g * C + at, V - 1), tokens)
            i += 1
        write_entries(best, tokens, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def write_entries(best, tokens, total, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP: tl.constexpr):
    """Store the entries of a row's node from its best logits and their tokens, or from the prompt while the row is within it."""
    j = tl.arange(0, WP)
    t = tl.load(row_length + r)
    forced = t + 1 < P
    tokens = tl.where(forced, tl.load(prompt + tl.where(forced, t + 1, 0)), tokens)
    log_p = tl.minimum(best - total, 0.0)
    log_p = tl.where(forced, tl.where(j == 0, 0.0, -INF), log_p)
    ends_flag = tl.load(ends + tokens, mask=j < W, other=0).to(tl.int32) * ENDS
    e = tl.load(row_node + r).to(tl.int64) * W + j
    tl.store(logprob + e, log_p, mask=j < W)
    tl.store(token + e, tokens | tl.where(forced, 0, ends_flag), mask=j < W)
    tl.store(child + e, tl.full([WP], OPEN, tl.int32), mask=j < W)


@triton.jit
def keep_given(best, which, total, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP: tl.constexpr):
    """As `keep_best`, from a top-k computed elsewhere: sorted logits and tokens (rows, W), and their log-sum-exp (rows,)."""
    r = tl.program_id(0)
    j = tl.arange(0, WP)
    top = tl.load(best + r * W + j, mask=j < W, other=-INF)
    tokens = tl.load(which + r * W + j, mask=j < W, other=0).to(tl.int32)
    write_entries(top, tokens, tl.load(total + r), r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def lse_and_maxima_part(
    logits, logits_row, sums, maxima, banned, counters, V, P, ANY_BANNED: tl.constexpr, G: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """As `lse_and_maxima`, for one part of a row: large vocabularies are read by P programs per row."""
    r = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if r < tl.load(counters):
        group = part * G + tl.arange(0, G)
        at = group[:, None] * C + tl.arange(0, C)[None, :]
        x = tl.load(logits + r * logits_row + at, mask=at < V, other=-INF).to(tl.float32)
        peak = tl.max(tl.max(x, 1), 0)
        low = tl.where(peak > -INF, peak, 0.0)
        tl.store(sums + r * P + part, low + tl.log(tl.sum(tl.sum(tl.exp(x - low), 1), 0)))
        if ANY_BANNED:
            bits = tl.load(banned + group, mask=group * C < V, other=0)
            is_banned = ((bits[:, None] >> tl.arange(0, C)[None, :]) & 1) != 0
            x = tl.where(is_banned, -INF, x)
            tl.store(logits + r * logits_row + at, x, mask=is_banned)
        tl.store(maxima + r * P * G + group, tl.max(x, 1))


@triton.jit
def sum_lse(sums, total, counters, P, EDITED: tl.constexpr, PP: tl.constexpr):
    """A row's log-sum-exp from those of its parts. EDITED: it counts as 0, as in `lse_and_maxima`."""
    r = tl.program_id(0)
    if r < tl.load(counters):
        part = tl.arange(0, PP)
        x = tl.load(sums + r * P + part, mask=part < P, other=-INF)
        peak = tl.max(x, 0)
        sum_all = peak + tl.log(tl.sum(tl.exp(x - peak), 0))
        if EDITED:
            sum_all = tl.zeros_like(sum_all)
        if sum_all != sum_all:
            tl.store(counters + 6, 1)
        tl.store(total + r, sum_all)


NO_KEY = tl.constexpr(-(1 << 63))
INT32_MAX = tl.constexpr((1 << 31) - 1)


@triton.jit
def trie_child(place, w, trie_tokens, trie_first):
    """The child of trie node `place` that token w leads to; w must be one of its children."""
    low = tl.load(trie_first + place)
    high = tl.load(trie_first + place + 1)
    while low < high:
        mid = (low + high) // 2
        less = tl.load(trie_tokens + mid) < w
        low = tl.where(less, mid + 1, low)
        high = tl.where(less, high, mid)
    return low


@triton.jit
def pack_key(x, w):
    """Pack logit and token into one int64 that sorts by greater logit, then smaller token; `NO_KEY` for -inf."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ INT32_MAX, bits)  # integers that sort as the floats do
    return tl.where(x > -INF, (bits.to(tl.int64) << 32) | (w ^ INT32_MAX).to(tl.int64), NO_KEY)


@triton.jit
def unpack_key(key):
    """Logit and token of a key; -inf and 0 for `NO_KEY`."""
    bits = (key >> 32).to(tl.int32)
    bits = tl.where(bits < 0, bits ^ INT32_MAX, bits)
    ok = key > NO_KEY
    return tl.where(ok, bits.to(tl.float32, bitcast=True), -INF), tl.where(ok, (key & INT32_MAX).to(tl.int32) ^ INT32_MAX, 0)


@triton.jit
def locate_children(r, row_length, row_entry, row_node, token, trie_first, trie_tokens, trie_items, node_place, eos, W, P):
    """Find the row's place in the trie and store it with its node. Returns its first child, the number of children, that number
    plus the tokens that may end an output there, and whether an item ends there."""
    e = tl.load(row_entry + r)
    place = 0
    if tl.load(row_length + r) >= P:
        place = trie_child(tl.load(node_place + e // W), tl.load(token + e) & (ENDS - 1), trie_tokens, trie_first)
    tl.store(node_place + tl.load(row_node + r), place)
    first_child = tl.load(trie_first + place)
    n_children = tl.load(trie_first + place + 1) - first_child
    item = tl.load(trie_items + place) >= 0
    return first_child, n_children, n_children + tl.where(item, tl.load(eos), 0), item


@triton.jit
def candidate_keys(i, row, first_child, n_children, n_candidates, item, trie_tokens, eos, ends):
    """Keys of the i-th candidates: children, then those that end an output; a token of both kinds is one of the latter."""
    of_trie = i < n_children
    ending = (i >= n_children) & (i < n_candidates)
    w = tl.load(trie_tokens + first_child + i, mask=of_trie, other=0)
    w = tl.where(ending, tl.load(eos + 1 + i - n_children, mask=ending, other=0), w)
    duplicate = of_trie & item & (tl.load(ends + w, mask=of_trie, other=0) != 0)
    x = tl.load(row + w, mask=(of_trie | ending) & (duplicate == 0), other=-INF).to(tl.float32) + 0.0
    return pack_key(x, w)


@triton.jit
def keep_children(
    logits, logits_row, total, counters, row_input, rules, row_node, row_length, logprob, token, child, ends, prompt, row_entry,
    trie_tokens, trie_first, trie_items, node_place, eos, V, W, P, WP: tl.constexpr, LANES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """As `keep_best`, over a row's children in the trie, plus the tokens that end an output where an item ends. Up to FEW
    candidates are sorted at once. Of more, the best WP so far are sorted together with the next ones, LANES in all; if WP alone
    is at least LANES, sorted batches of LANES are merged into the best so far, which are kept among the entries."""
    r = tl.program_id(0)
    if r < tl.load(counters):
        first_child, n_children, n_candidates, item = locate_children(
            r, row_length, row_entry, row_node, token, trie_first, trie_tokens, trie_items, node_place, eos, W, P
        )
        row = logits + r.to(tl.int64) * logits_row
        sum_all = tl.load(total + r)
        n_wanted = tl.load(rules + tl.load(row_input + r) * RULES + WIDTH)
        first = tl.load(row_node + r).to(tl.int64) * W
        if n_candidates <= FEW:
            f = tl.arange(0, FEW)
            keys = tl.sort(candidate_keys(f, row, first_child, n_children, n_candidates, item, trie_tokens, eos, ends), 0, True)
            x, w = unpack_key(tl.where(f < n_wanted, keys, NO_KEY))
            write_entries(x, w, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, FEW)
            rest = FEW + tl.arange(0, WP)
            tl.store(logprob + first + rest, tl.full([WP], -INF, tl.float32), mask=rest < W)
        elif WP < LANES:
            j = tl.arange(0, LANES)
            best = tl.full([LANES], NO_KEY, tl.int64)
            seen = 0
            while seen < n_candidates:
                fresh = (seen == 0) | (j >= WP)
                i = tl.where(fresh, tl.where(seen == 0, j, seen + j - WP), n_candidates)
                key = candidate_keys(i, row, first_child, n_children, n_candidates, item, trie_tokens, eos, ends)
                best = tl.sort(tl.where(fresh, key, best), 0, True)
                seen += tl.where(seen == 0, LANES, LANES - WP)
            logit, tokens = unpack_key(tl.where(j < n_wanted, best, NO_KEY))
            write_entries(logit, tokens, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, LANES)
        else:
            lanes = tl.arange(0, LANES)
            m = 0
            seen = 0
            while seen < n_candidates:
                key = candidate_keys(seen + lanes, row, first_child, n_children, n_candidates, item, trie_tokens, eos, ends)
                m = merge_keys(tl.sort(key, 0, True), logprob + first, token + first, child + first, m, W, LANES)
                seen += LANES
            j = tl.arange(0, WP)
            logit = tl.load(logprob + first + j, mask=(j < m) & (j < n_wanted), other=-INF)
            tokens = tl.load(token + first + j, mask=j < m, other=0)
            tl.debug_barrier()
            write_entries(logit, tokens, sum_all, r, row_node, row_length, logprob, token, child, ends, prompt, W, P, WP)


@triton.jit
def merge_keys(key, logit, token, places, m, W, LANES: tl.constexpr):
    """Merge sorted keys into the m best so far, of which at most W are kept; returns their new number. `places`: scratch space,
    one number per key (W is more than LANES)."""
    lanes = tl.arange(0, LANES)
    valid = key > NO_KEY
    before = tl.zeros_like(lanes)
    high = tl.where(valid, m, 0)
    while tl.max(high - before, 0) > 0:
        mid = (before + high) // 2
        searching = before < high
        x = tl.load(logit + mid, mask=searching, other=-INF)
        ahead = pack_key(x, tl.load(token + mid, mask=searching, other=0)) > key
        before = tl.where(searching & ahead, mid + 1, before)
        high = tl.where(searching & (ahead == 0), mid, high)
    tl.debug_barrier()
    tl.store(places + lanes, before, mask=valid)
    tl.debug_barrier()
    n_new = tl.sum(valid.to(tl.int32), 0)
    start = tl.cdiv(m, LANES) * LANES - LANES
    while start >= 0:  # from the end, since members only move back
        at = start + lanes
        to = at + count_not_above(places, n_new, at)
        x = tl.load(logit + at, mask=at < m, other=-INF)
        w = tl.load(token + at, mask=at < m, other=0)
        tl.debug_barrier()
        tl.store(logit + to, x, mask=(at < m) & (to < W))
        tl.store(token + to, w, mask=(at < m) & (to < W))
        start -= LANES
    x, w = unpack_key(key)
    tl.store(logit + before + lanes, x, mask=valid & (before + lanes < W))
    tl.store(token + before + lanes, w, mask=valid & (before + lanes < W))
    tl.debug_barrier()
    return tl.minimum(W, m + n_new)
