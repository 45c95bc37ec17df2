"""Attention over the tree of hypotheses: keys and values are read from the KV cache in place, by node or by source token.

`attend` serves BART-like models, whose cache holds all layers of a token together; the others serve models that run by their own
modules (`tree_attention` launches them and describes the scheme; for short contexts, `near_attention`). All use an online
softmax: `peak` is the running maximum, `total` the sum of exp(x - peak), `acc` the sum of values weighted by that. Shapes: q
(rows, heads, D), keys (cells, key heads, D), values (cells, key heads, E); G query heads share a key head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous


@triton.jit
def capped(x, cap, CAP: tl.constexpr):
    """Soft cap: cap * tanh(x / cap)."""
    if CAP:
        x = x / cap
        x = cap * (1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
    return x


@triton.jit
def read_source(
    q, q_row, q_head, keys, values, first, grant, source_start, source_length, row_length, peaks, totals, means,
    scale, cap, window, R, OWN: tl.constexpr, CAP: tl.constexpr, G: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, QUERIES: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial attention over one part of an input's source tokens, for all its rows and the G query heads of a key head: `peaks`
    and `totals` (parts, rows, heads), and in `means` (parts, rows, heads, E) the weighted sums of values, not yet
    divided. OWN: the source precedes the rows' own tokens, so a window may end in it."""
    s = tl.program_id(0)
    part = tl.program_id(1)
    h = tl.program_id(2)
    n_queries = tl.load(grant + s) * G
    length = tl.load(source_length + s)
    if (n_queries > 0) & (part * SIZE < length):
        begin = tl.load(first + s)
        start = tl.load(source_start + s).to(tl.int64)
        end = tl.minimum(part * SIZE + SIZE, length)
        d = tl.arange(0, DP)
        e = tl.arange(0, EP)
        lanes = tl.arange(0, STEP)
        first_query = 0
        while first_query < n_queries:
            i = first_query + tl.arange(0, QUERIES)
            row = (begin + i // G).to(tl.int64)
            head = h * G + i % G
            valid = i < n_queries
            query = tl.load(
                q + row[:, None] * q_row + head[:, None] * q_head + d[None, :],
                mask=valid[:, None] & (d[None, :] < D), other=0.0,
            )  # fmt: skip
            peak = tl.full([QUERIES], -1e30, tl.float32)
            total = tl.zeros([QUERIES], tl.float32)
            acc = tl.zeros([QUERIES, EP], tl.float32)
            if OWN:
                position = length + tl.load(row_length + row, mask=valid, other=0)
            at = part * SIZE
            while at < end:
                c = at + lanes
                cell = (start + c) * (H // G) + h
                k = tl.load(keys + cell[:, None] * D + d[None, :], mask=(c[:, None] < end) & (d[None, :] < D), other=0.0)
                x = tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale
                x = capped(x, cap, CAP)
                seen = c[None, :] < end
                if OWN:
                    seen = seen & (position[:, None] - c[None, :] < window)
                x = tl.where(seen, x, -1e30)
                new_peak = tl.maximum(peak, tl.max(x, 1))
                rescale = tl.exp(peak - new_peak)
                x = tl.where(seen, tl.exp(x - new_peak[:, None]), 0.0)
                v = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < end) & (e[None, :] < E), other=0.0)
                acc = acc * rescale[:, None] + tl.dot(x.to(v.dtype), v, input_precision=PRECISION)
                total = total * rescale + tl.sum(x, 1)
                peak = new_peak
                at += STEP
            to = (part * R + row) * H + head
            tl.store(peaks + to, peak, mask=valid)
            tl.store(totals + to, total, mask=valid)
            tl.store(means + to[:, None] * E + e[None, :], acc, mask=valid[:, None] & (e[None, :] < E))
            first_query += QUERIES


@triton.jit
def store_rows(
    used, k, k_row, k_head, v, v_row, v_head, keys, values, row_node, H,
    D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """Store the key and value of one row and head at the row's node, before any other row reads them there."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    if r < tl.load(used):
        d = tl.arange(0, DP)
        e = tl.arange(0, EP)
        cell = tl.load(row_node + r).to(tl.int64) * H + h
        tl.store(keys + cell * D + d, tl.load(k + r * k_row + h * k_head + d, mask=d < D, other=0.0), mask=d < D)
        tl.store(values + cell * E + e, tl.load(v + r * v_row + h * v_head + e, mask=e < E, other=0.0), mask=e < E)


@triton.jit
def read_path(
    used, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, keys, values, row_node, row_input, row_length, paths,
    source_length, peaks, totals, means, bias, bias_head, sinks, out, scale, cap, window, R, L,
    OWN: tl.constexpr, SOURCE: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr, G: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr, SIZE: tl.constexpr,
    STEP: tl.constexpr, AT_ONCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and key head. OWN: store the row's key and value at its node and attend to its path. SOURCE: add the partial
    results of `read_source`, AT_ONCE parts at a time."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    g = tl.arange(0, GP)
    head = h * G + g
    valid = g < G
    acc = tl.zeros([GP, EP], tl.float32)
    total = tl.zeros([GP], tl.float32)
    if r < tl.load(used):
        peak = tl.full([GP], -1e30, tl.float32)
        t = tl.load(row_length + r)
        if OWN:
            new = tl.load(row_node + r).to(tl.int64)
            key = tl.load(k + r * k_row + h * k_head + d, mask=d < D, other=0.0)
            value = tl.load(v + r * v_row + h * v_head + e, mask=e < E, other=0.0)
            tl.store(keys + (new * (H // G) + h) * D + d, key, mask=d < D)
            tl.store(values + (new * (H // G) + h) * E + e, value, mask=e < E)
            query = tl.load(
                q + r * q_row + head[:, None] * q_head + d[None, :], mask=valid[:, None] & (d[None, :] < D), other=0.0
            )
            peak = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
            peak = capped(peak, cap, CAP)
            if BIAS:
                peak += tl.load(bias + head * bias_head, mask=valid, other=0.0).to(tl.float32)
            total += 1.0
            acc += value.to(tl.float32)[None, :]
            lanes = tl.arange(0, STEP)
            at = tl.maximum(0, t - window + 1) // STEP * STEP
            while at < t:
                c = at + lanes
                node = tl.load(paths + new * L + c, mask=c < t, other=0).to(tl.int64)
                cell = node * (H // G) + h
                ks = tl.load(keys + cell[:, None] * D + d[None, :], mask=(c[:, None] < t) & (d[None, :] < D), other=0.0)
                x = tl.dot(query, tl.trans(ks), input_precision=PRECISION) * scale
                x = capped(x, cap, CAP)
                if BIAS:
                    bias_at = bias + head[:, None] * bias_head + (t - c)[None, :]
                    x += tl.load(bias_at, mask=valid[:, None] & (c[None, :] < t), other=0.0).to(tl.float32)
                seen = (c[None, :] < t) & ((t - c)[None, :] < window)
                x = tl.where(seen, x, -1e30)
                new_peak = tl.maximum(peak, tl.max(x, 1))
                rescale = tl.exp(peak - new_peak)
                x = tl.where(seen, tl.exp(x - new_peak[:, None]), 0.0)
                vs = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < t) & (e[None, :] < E), other=0.0)
                acc = acc * rescale[:, None] + tl.dot(x.to(vs.dtype), vs, input_precision=PRECISION)
                total = total * rescale + tl.sum(x, 1)
                peak = new_peak
                at += STEP
        if SOURCE:
            length = tl.load(source_length + tl.load(row_input + r))
            part = 0
            while part * SIZE < length:
                parts = part + tl.arange(0, AT_ONCE)
                valid_part = (parts * SIZE < length)[:, None] & valid[None, :]
                at_part = (parts[:, None] * R + r) * H + head[None, :]
                part_peak = tl.load(peaks + at_part, mask=valid_part, other=-1e30)
                new_peak = tl.maximum(peak, tl.max(part_peak, 0))
                rescale = tl.exp(peak - new_peak)
                weight = tl.where(valid_part, tl.exp(part_peak - new_peak[None, :]), 0.0)
                total = total * rescale + tl.sum(weight * tl.load(totals + at_part, mask=valid_part, other=0.0), 0)
                cells = means + at_part[:, :, None] * E + e[None, None, :]
                part_acc = tl.load(cells, mask=valid_part[:, :, None] & (e[None, None, :] < E), other=0.0)
                acc = acc * rescale[:, None] + tl.sum(weight[:, :, None] * part_acc, 0)
                peak = new_peak
                part += AT_ONCE
        if SINKS:
            sink = tl.load(sinks + head, mask=valid, other=-1e30).to(tl.float32)
            new_peak = tl.maximum(peak, sink)
            rescale = tl.exp(peak - new_peak)
            total = total * rescale + tl.exp(sink - new_peak)
            acc = acc * rescale[:, None]
        acc = acc / tl.maximum(total, 1e-30)[:, None]
    to = (r * H + head)[:, None] * E + e[None, :]
    tl.store(out + to, acc, mask=valid[:, None] & (e[None, :] < E))


@triton.jit
def read_packed(
    used, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, input_of, starts, bias, bias_head, sinks, out, scale, cap, window,
    T, CAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr, G: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, QUERIES: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """Causal attention among packed prompts: each token attends to those of its own input, up to itself. NEAR: up to so many
    tokens the peak is found in a first sweep."""
    first_query = tl.program_id(0) * QUERIES
    n_tokens = tl.load(used)
    h = tl.program_id(1)
    i = first_query + tl.arange(0, QUERIES)
    valid = i < n_tokens
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    acc = tl.zeros([QUERIES, EP], tl.float32)
    if first_query < n_tokens:
        row = i.to(tl.int64)
        begin = tl.load(starts + tl.load(input_of + i, mask=valid, other=0))
        query = tl.load(q + row[:, None] * q_row + h * q_head + d[None, :], mask=valid[:, None] & (d[None, :] < D), other=0.0)
        peak = tl.full([QUERIES], -1e30, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        lanes = tl.arange(0, STEP)
        end = tl.minimum(first_query + QUERIES, n_tokens)
        first = tl.min(tl.where(valid, tl.maximum(begin, i - window + 1), 1 << 30), 0)
        at = first
        while (at < end) & (end - first <= NEAR):  # find the peak first: torch rounds weights of short contexts below it
            c = at + lanes
            cell = c.to(tl.int64)
            ks = tl.load(
                k + cell[:, None] * k_row + (h // G) * k_head + d[None, :], mask=(c[:, None] < end) & (d[None, :] < D), other=0.0
            )
            x = capped(tl.dot(query, tl.trans(ks), input_precision=PRECISION) * scale, cap, CAP)
            visible = (c[None, :] >= begin[:, None]) & (c[None, :] <= i[:, None]) & (i[:, None] - c[None, :] < window)
            if BIAS:
                x += tl.load(bias + h * bias_head + (i[:, None] - c[None, :]), mask=visible, other=0.0).to(tl.float32)
            peak = tl.maximum(peak, tl.max(tl.where(visible, x, -1e30), 1))
            at += STEP
        at = first
        while at < end:
            c = at + lanes
            cell = c.to(tl.int64)
            ks = tl.load(
                k + cell[:, None] * k_row + (h // G) * k_head + d[None, :], mask=(c[:, None] < end) & (d[None, :] < D), other=0.0
            )
            x = tl.dot(query, tl.trans(ks), input_precision=PRECISION) * scale
            x = capped(x, cap, CAP)
            visible = (c[None, :] >= begin[:, None]) & (c[None, :] <= i[:, None]) & (i[:, None] - c[None, :] < window)
            if BIAS:
                x += tl.load(bias + h * bias_head + (i[:, None] - c[None, :]), mask=visible, other=0.0).to(tl.float32)
            x = tl.where(visible, x, -1e30)
            new_peak = tl.maximum(peak, tl.max(x, 1))
            rescale = tl.exp(peak - new_peak)
            x = tl.where(visible, tl.exp(x - new_peak[:, None]), 0.0)
            vs = tl.load(
                v + cell[:, None] * v_row + (h // G) * v_head + e[None, :], mask=(c[:, None] < end) & (e[None, :] < E), other=0.0
            )
            acc = acc * rescale[:, None] + tl.dot(x.to(vs.dtype), vs, input_precision=PRECISION)
            total = total * rescale + tl.sum(x, 1)
            peak = new_peak
            at += STEP
        if SINKS:
            sink = tl.load(sinks + h).to(tl.float32)
            new_peak = tl.maximum(peak, sink)
            rescale = tl.exp(peak - new_peak)
            total = total * rescale + tl.exp(sink - new_peak)
            acc = acc * rescale[:, None]
        acc = acc / tl.maximum(total, 1e-30)[:, None]
    to = (i.to(tl.int64) * H + h)[:, None] * E + e[None, :]
    tl.store(out + to, acc, mask=(i[:, None] < T) & (e[None, :] < E))


@triton.jit
def attend(
    used, q, q_stride, memory, memory_stride, layer, row_node, row_input, row_length, paths, source_start, source_length,
    out, scale, L, H, D, OWN: tl.constexpr, FIRST: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """One row and head of the first `used` rows. `memory`: (tokens, layers, 2, H D), keys then values. FIRST: find the greatest
    score in a first sweep, and round the weights below it, as torch does for short contexts.

    OWN: q holds the row's key and value, too; store them at its node and attend to its path. Otherwise: attend to the
    `source_length` tokens of its input, contiguous from `source_start`.
    """
    wait_for_previous(OVERLAP)
    r = tl.program_id(0)
    if r < tl.load(used):
        h = tl.program_id(1)
        d = tl.arange(0, DP)
        valid = d < D
        width = H * D
        at = layer * 2 * width + h * D + d
        row = q + r.to(tl.int64) * q_stride + h * D + d
        query = tl.load(row, mask=valid, other=0.0).to(tl.float32) * scale
        if OWN:
            new = tl.load(row_node + r).to(tl.int64)
            key = tl.load(row + width, mask=valid, other=0.0)
            value = tl.load(row + 2 * width, mask=valid, other=0.0)
            tl.store(memory + new * memory_stride + at, key, mask=valid)
            tl.store(memory + new * memory_stride + at + width, value, mask=valid)
            count = tl.load(row_length + r)
            running_peak = tl.sum(query * key.to(tl.float32), 0)
            total = tl.full([], 1.0, tl.float32)
            acc = value.to(tl.float32)
            first = new * L
        else:
            s = tl.load(row_input + r).to(tl.int64)
            count = tl.load(source_length + s)
            running_peak = tl.full([], -1e30, tl.float32)
            total = tl.full([], 0.0, tl.float32)
            acc = tl.zeros([DP], tl.float32)
            first = tl.load(source_start + s).to(tl.int64)
        lanes = tl.arange(0, BLOCK)
        t = 0
        if FIRST:
            peak = running_peak
            while t < count:
                in_context = t + lanes < count
                cells = first + t + lanes
                if OWN:
                    cells = tl.load(paths + cells, mask=in_context, other=0).to(tl.int64)
                pointers = memory + cells[:, None] * memory_stride + at[None, :]
                keys = tl.load(pointers, mask=in_context[:, None] & valid[None, :], other=0.0).to(tl.float32)
                peak = tl.maximum(peak, tl.max(tl.where(in_context, tl.sum(keys * query[None, :], 1), -1e30), 0))
                t += BLOCK
            if OWN:
                total = tl.exp(running_peak - peak)
                acc = total.to(memory.dtype.element_ty).to(tl.float32) * acc
            running_peak = peak
            t = 0
        while t < count:
            in_context = t + lanes < count
            cells = first + t + lanes
            if OWN:
                cells = tl.load(paths + cells, mask=in_context, other=0).to(tl.int64)
            pointers = memory + cells[:, None] * memory_stride + at[None, :]
            both = in_context[:, None] & valid[None, :]
            keys = tl.load(pointers, mask=both, other=0.0).to(tl.float32)
            values = tl.load(pointers + width, mask=both, other=0.0)
            weights = tl.where(in_context, tl.sum(keys * query[None, :], 1), -1e30)
            peak = tl.maximum(running_peak, tl.max(weights, 0))
            rescale = tl.exp(running_peak - peak)
            weights = tl.where(in_context, tl.exp(weights - peak), 0.0)
            rounded = weights.to(values.dtype).to(tl.float32)  # as operands of a half precision matmul are
            acc = acc * rescale + tl.sum(rounded[:, None] * values.to(tl.float32), 0)
            total = total * rescale + tl.sum(weights, 0)
            running_peak = peak
            t += BLOCK
        tl.store(out + r.to(tl.int64) * width + h * D + d, acc / tl.maximum(total, 1e-30), mask=valid)
