"""Logits processors on the device: the `Edits` of an input, applied to the log-probabilities of its rows."""

from __future__ import annotations

import triton
import triton.language as tl

from ... import logits_edits
from .answers import INF, PROGRAM, RULES

BAN, FORCE, NO_REPEAT, BIAS, PENALTY, SCALE, NORMALIZE = (tl.constexpr(i) for i in range(7))
HEAD, FIELDS = tl.constexpr(logits_edits.HEAD), tl.constexpr(logits_edits.FIELDS)
PROGRAMS = 8  # different edits that jobs in flight may have


@triton.jit
def log_sum_exp(row, V, BLOCK: tl.constexpr):
    """Log-sum-exp of V numbers."""
    lanes = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], -INF, tl.float32)
    at = 0
    while at < V:
        peak = tl.maximum(peak, tl.load(row + at + lanes, mask=at + lanes < V, other=-INF).to(tl.float32))
        at += BLOCK
    top = tl.max(peak, 0)
    total = tl.zeros([BLOCK], tl.float32)
    at = 0
    while at < V:
        total += tl.exp(tl.load(row + at + lanes, mask=at + lanes < V, other=-INF).to(tl.float32) - top)
        at += BLOCK
    return top + tl.log(tl.sum(total, 0))


@triton.jit
def divide_and_subtract(source, row, amount, divisor, V, BLOCK: tl.constexpr):
    """row = source / divisor - amount, of V numbers."""
    lanes = tl.arange(0, BLOCK)
    at = 0
    while at < V:
        x = tl.load(source + at + lanes, mask=at + lanes < V, other=-INF).to(tl.float32)
        tl.store(row + at + lanes, x / divisor - amount, mask=at + lanes < V)
        at += BLOCK


@triton.jit
def history_token(i, valid, before, b, path, node_token):
    """The i-th previous token where `valid`: the first b come from `before`, the others from the path."""
    old_token = tl.load(before + i, mask=valid & (i < b), other=0)
    node = tl.load(path + i - b, mask=valid & (i >= b), other=0)
    return tl.where(i < b, old_token, tl.load(node_token + node, mask=valid & (i >= b), other=0))


@triton.jit
def add_sequence_bias(row, data, n_sequences, longest, allow_whole, before, b, path, node_token, n, V, BLOCK: tl.constexpr):
    """Add a bias to the last w of each sequence whose other tokens are the last of the n previous ones; with `allow_whole`
    = 1, they may be all of them."""
    at = 0
    while at < n_sequences:
        i = at + tl.arange(0, BLOCK)
        length = tl.load(data + i, mask=i < n_sequences, other=0)
        match = (i < n_sequences) & (length <= n + allow_whole)
        back = 0
        while back < tl.minimum(longest - 1, n):
            w = history_token(n - 1 - back, back < n, before, b, path, node_token)
            match = match & (
                (tl.load(data + (3 + back) * n_sequences + i, mask=i < n_sequences, other=0) == w) | (length < back + 2)
            )
            back += 1
        last = tl.load(data + n_sequences + i, mask=match, other=0)
        match = match & (last < V)
        bias = tl.load(data + 2 * n_sequences + i, mask=match, other=0).to(tl.float32, bitcast=True)
        x = tl.load(row + last, mask=match, other=0.0)
        tl.debug_barrier()  # all reads before any write
        tl.store(row + last, x + bias, mask=match)
        at += BLOCK


@triton.jit
def ban_repeated_ngrams(row, size, before, b, path, node_token, n, V, LP: tl.constexpr):
    """Ban tokens that would complete an n-gram of length `size` a second time; there are n previous tokens."""
    at = 0
    while at + size <= n:
        i = at + tl.arange(0, LP)
        match = i + size <= n
        j = 0
        while j < size - 1:
            suffix_token = history_token(n - size + 1 + j, size <= n, before, b, path, node_token)
            match = match & (history_token(i + j, match, before, b, path, node_token) == suffix_token)
            j += 1
        banned = history_token(i + size - 1, match, before, b, path, node_token)
        tl.store(row + banned, tl.full([LP], -INF, tl.float32), mask=match & (banned < V))
        at += LP


@triton.jit
def is_in_sorted(tokens, data, count):
    """Whether each token is among `count` sorted ones."""
    low = tl.zeros_like(tokens)
    high = low + count
    while tl.max(high - low, 0) > 0:
        mid = (low + high) // 2
        less = (low < high) & (tl.load(data + mid, mask=mid < high, other=0) < tokens)
        low = tl.where(less, mid + 1, low)
        high = tl.where(less, high, mid)
    return tl.load(data + low, mask=low < count, other=-1) == tokens


@triton.jit
def apply_penalty(row, tokens, valid, factor):
    """Repetition penalty: multiply negative log-probabilities of `tokens` (duplicates allowed) by `factor`, divide the others."""
    x = tl.load(row + tokens, mask=valid, other=0.0)
    tl.debug_barrier()
    tl.store(row + tokens, tl.where(x < 0, x * factor, x / factor), mask=valid)


@triton.jit
def edit(
    logits, logits_row, out, out_row, counters, row_node, row_input, row_length, rules, programs, given, paths, node_token,
    V, L, P, CODE, GIVEN, LP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write each row's log-probabilities, edited by its input's operations, to `out` (rows, V). Within the prompt, unedited."""
    r = tl.program_id(0).to(tl.int64)
    if r < tl.load(counters):
        lanes = tl.arange(0, BLOCK)
        row = out + r * out_row
        total = log_sum_exp(logits + r * logits_row, V, BLOCK)
        if total != total:
            tl.store(counters + 6, 1)
        s = tl.load(row_input + r).to(tl.int64)
        t = tl.load(row_length + r)
        path = paths + tl.load(row_node + r).to(tl.int64) * L
        program = tl.load(rules + s * RULES + PROGRAM)
        code = programs + tl.maximum(program - 1, 0).to(tl.int64) * CODE
        own_given = given + s * GIVEN
        n_operations = tl.where((program > 0) & (t + 1 >= P), tl.load(code), 0)
        raw = (n_operations > 0) & (tl.load(code + 2) != 0)
        divide_and_subtract(logits + r * logits_row, row, tl.where(raw, 0.0, total), 1.0, V, BLOCK)
        place = tl.where(n_operations > 0, tl.load(code + 1), -1)
        before = own_given + tl.load(own_given + place, mask=place >= 0, other=0)
        n_before = tl.load(own_given + place + 1, mask=place >= 0, other=0)
        n = n_before + t + 1
        operation = 0
        while operation < n_operations:
            tl.debug_barrier()  # the previous operation's writes are visible
            field = code + HEAD + operation * FIELDS
            kind = tl.load(field)
            first = tl.load(field + 1)
            second = tl.load(field + 2)
            start = tl.load(field + 3)
            count = tl.load(field + 4)
            own = tl.load(field + 5)
            data = code + start
            if own != 0:
                data = own_given + tl.load(own_given + start)
                count = tl.load(own_given + start + 1)
            if (kind == BAN) & (t + 1 >= first) & (t + 1 <= second):
                at = 0
                while at < count:
                    w = tl.load(data + at + lanes, mask=at + lanes < count, other=V)
                    tl.store(row + w, tl.full([BLOCK], -INF, tl.float32), mask=w < V)
                    at += BLOCK
            if (kind == FORCE) & (t + 1 == first):
                at = 0
                while at < V:
                    tl.store(row + at + lanes, tl.full([BLOCK], -INF, tl.float32), mask=at + lanes < V)
                    at += BLOCK
                tl.debug_barrier()
                w = tl.load(data + lanes, mask=lanes < count, other=V)
                tl.store(row + w, tl.zeros([BLOCK], tl.float32), mask=w < V)
            if kind == NO_REPEAT:
                ban_repeated_ngrams(row, first, before, n_before, path, node_token, n, V, LP)
            if kind == BIAS:
                add_sequence_bias(row, data, count // (2 + first), first, second, before, n_before, path, node_token, n, V, BLOCK)
            if kind == PENALTY:
                factor = first.to(tl.float32, bitcast=True)
                at = 0
                while at < count:
                    w = tl.load(data + at + lanes, mask=at + lanes < count, other=V)
                    apply_penalty(row, w, w < V, factor)
                    at += BLOCK
                i = tl.arange(0, LP)
                valid = (i >= second) & (i <= t)
                w = tl.load(node_token + tl.load(path + i, mask=valid, other=0), mask=valid, other=V)
                apply_penalty(row, w, (w < V) & (is_in_sorted(w, data, count) == 0), factor)
            if kind == SCALE:
                divide_and_subtract(row, row, 0.0, first.to(tl.float32, bitcast=True), V, BLOCK)
            if kind == NORMALIZE:
                new_total = log_sum_exp(row, V, BLOCK)
                # A row that is all -inf stays so.
                divide_and_subtract(row, row, tl.where(new_total == new_total, new_total, 0.0), 1.0, V, BLOCK)
            operation += 1
