# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Editing on the device: `Edits` of each row's input, done to its log-probabilities, by its ancestors where they lie."""

from __future__ import annotations

import triton
import triton.language as tl

from ... import logits_edits
from .answers import INF, PROGRAM, RULES

BAN, FORCE, NO_REPEAT, BIAS, PENALTY, SCALE, NORMALIZE = (tl.constexpr(i) for i in range(7))
HEAD, FIELDS = tl.constexpr(logits_edits.HEAD), tl.constexpr(logits_edits.FIELDS)
PROGRAMS = 8  # different ones that jobs may have at a time


@triton.jit
def log_sum_exp(row, V, BLOCK: tl.constexpr):
    """Of V numbers."""
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
def subtract(source, row, amount, divisor, V, BLOCK: tl.constexpr):
    """V numbers, divided and less an amount, go to `row`."""
    lanes = tl.arange(0, BLOCK)
    at = 0
    while at < V:
        x = tl.load(source + at + lanes, mask=at + lanes < V, other=-INF).to(tl.float32)
        tl.store(row + at + lanes, x / divisor - amount, mask=at + lanes < V)
        at += BLOCK


@triton.jit
def so_far(i, there, before, b, path, node_token):
    """The i-th of the tokens so far, where it is `there`: the first b are `before`, the others on the path."""
    early = tl.load(before + i, mask=there & (i < b), other=0)
    node = tl.load(path + i - b, mask=there & (i >= b), other=0)
    return tl.where(i < b, early, tl.load(node_token + node, mask=there & (i >= b), other=0))


@triton.jit
def complete(row, data, many, longest, whole, before, b, path, node_token, n, V, BLOCK: tl.constexpr):
    """Add to the last tokens of `many` sequences, where the n tokens so far end in what precedes them."""
    at = 0
    while at < many:
        i = at + tl.arange(0, BLOCK)
        length = tl.load(data + i, mask=i < many, other=0)
        match = (i < many) & (length <= n + whole)
        back = 0
        while back < tl.minimum(longest - 1, n):
            w = so_far(n - 1 - back, back < n, before, b, path, node_token)
            match = match & ((tl.load(data + (3 + back) * many + i, mask=i < many, other=0) == w) | (length < back + 2))
            back += 1
        last = tl.load(data + many + i, mask=match, other=0)
        match = match & (last < V)
        bias = tl.load(data + 2 * many + i, mask=match, other=0).to(tl.float32, bitcast=True)
        x = tl.load(row + last, mask=match, other=0.0)
        tl.debug_barrier()  # all is read before any of it is overwritten
        tl.store(row + last, x + bias, mask=match)
        at += BLOCK


@triton.jit
def no_repeat(row, size, before, b, path, node_token, n, V, LP: tl.constexpr):
    """Ban what would complete an n-gram of this size for the second time; there are n tokens so far."""
    at = 0
    while at + size <= n:
        i = at + tl.arange(0, LP)
        match = i + size <= n
        j = 0
        while j < size - 1:
            now = so_far(n - size + 1 + j, size <= n, before, b, path, node_token)
            match = match & (so_far(i + j, match, before, b, path, node_token) == now)
            j += 1
        w = so_far(i + size - 1, match, before, b, path, node_token)
        tl.store(row + w, tl.full([LP], -INF, tl.float32), mask=match & (w < V))
        at += LP


@triton.jit
def among(w, data, count):
    """Whether each of some numbers is among `count` that are sorted."""
    low = tl.zeros_like(w)
    high = low + count
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        less = (low < high) & (tl.load(data + middle, mask=middle < high, other=0) < w)
        low = tl.where(less, middle + 1, low)
        high = tl.where(less, high, middle)
    return tl.load(data + low, mask=low < count, other=-1) == w


@triton.jit
def multiply(row, w, there, factor):
    """Multiply the log-probabilities of tokens `w`, which may come more than once; what is not negative is divided."""
    x = tl.load(row + w, mask=there, other=0.0)
    tl.debug_barrier()
    tl.store(row + w, tl.where(x < 0, x * factor, x / factor), mask=there)


@triton.jit
def edit(
    logits, logits_row, out, out_row, counters, row_node, row_input, row_length, rules, programs, given, paths, node_token,
    V, L, P, CODE, GIVEN, LP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's log-probabilities, with the edits of its input, into `out` (rows, V). Within the prompt there are none."""
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
        mine = given + s * GIVEN
        many = tl.where((program > 0) & (t + 1 >= P), tl.load(code), 0)
        raw = (many > 0) & (tl.load(code + 2) != 0)
        subtract(logits + r * logits_row, row, tl.where(raw, 0.0, total), 1.0, V, BLOCK)
        place = tl.where(many > 0, tl.load(code + 1), -1)
        before = mine + tl.load(mine + place, mask=place >= 0, other=0)
        b = tl.load(mine + place + 1, mask=place >= 0, other=0)
        n = b + t + 1
        o = 0
        while o < many:
            tl.debug_barrier()  # what the operation before has written is there
            field = code + HEAD + o * FIELDS
            kind = tl.load(field)
            first = tl.load(field + 1)
            second = tl.load(field + 2)
            start = tl.load(field + 3)
            count = tl.load(field + 4)
            own = tl.load(field + 5)
            data = code + start
            if own != 0:
                data = mine + tl.load(mine + start)
                count = tl.load(mine + start + 1)
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
                no_repeat(row, first, before, b, path, node_token, n, V, LP)
            if kind == BIAS:
                complete(row, data, count // (2 + first), first, second, before, b, path, node_token, n, V, BLOCK)
            if kind == PENALTY:
                factor = first.to(tl.float32, bitcast=True)
                at = 0
                while at < count:
                    w = tl.load(data + at + lanes, mask=at + lanes < count, other=V)
                    multiply(row, w, w < V, factor)
                    at += BLOCK
                i = tl.arange(0, LP)
                there = (i >= second) & (i <= t)
                w = tl.load(node_token + tl.load(path + i, mask=there, other=0), mask=there, other=V)
                multiply(row, w, (w < V) & (among(w, data, count) == 0), factor)
            if kind == SCALE:
                subtract(row, row, 0.0, first.to(tl.float32, bitcast=True), V, BLOCK)
            if kind == NORMALIZE:
                again = log_sum_exp(row, V, BLOCK)
                subtract(row, row, tl.where(again == again, again, 0.0), 1.0, V, BLOCK)  # where nothing may come, nothing does
            o += 1
