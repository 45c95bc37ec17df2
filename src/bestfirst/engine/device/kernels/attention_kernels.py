# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Kernels of attention on the tree, which read keys and values where they lie: that of a BART-like model's rows (`attend`), and
those of models that run by their own modules (`tree_attention` launches them and says what they do)."""

from __future__ import annotations

import triton
import triton.language as tl

from ..cuda_graphs import wait_for_previous


@triton.jit
def capped(x, cap, CAP: tl.constexpr):
    """x, softly kept between -cap and cap."""
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
    """One part of an input's tokens, for all of its rows and the G query heads of one key head. OWN: they are what stands before
    the rows' own tokens, so that a window may end among them."""
    s = tl.program_id(0)
    part = tl.program_id(1)
    h = tl.program_id(2)
    many = tl.load(grant + s) * G
    length = tl.load(source_length + s)
    if (many > 0) & (part * SIZE < length):
        begin = tl.load(first + s)
        start = tl.load(source_start + s).to(tl.int64)
        end = tl.minimum(part * SIZE + SIZE, length)
        d = tl.arange(0, DP)
        e = tl.arange(0, EP)
        lanes = tl.arange(0, STEP)
        i0 = 0
        while i0 < many:
            i = i0 + tl.arange(0, QUERIES)
            row = (begin + i // G).to(tl.int64)
            head = h * G + i % G
            there = i < many
            query = tl.load(
                q + row[:, None] * q_row + head[:, None] * q_head + d[None, :],
                mask=there[:, None] & (d[None, :] < D), other=0.0,
            )  # fmt: skip
            peak = tl.full([QUERIES], -1e30, tl.float32)
            total = tl.zeros([QUERIES], tl.float32)
            mean = tl.zeros([QUERIES, EP], tl.float32)
            if OWN:
                place = length + tl.load(row_length + row, mask=there, other=0)
            at = part * SIZE
            while at < end:
                c = at + lanes
                cell = (start + c) * (H // G) + h
                k = tl.load(keys + cell[:, None] * D + d[None, :], mask=(c[:, None] < end) & (d[None, :] < D), other=0.0)
                x = tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale
                x = capped(x, cap, CAP)
                seen = c[None, :] < end
                if OWN:
                    seen = seen & (place[:, None] - c[None, :] < window)
                x = tl.where(seen, x, -1e30)
                most = tl.maximum(peak, tl.max(x, 1))
                fade = tl.exp(peak - most)
                x = tl.where(seen, tl.exp(x - most[:, None]), 0.0)
                v = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < end) & (e[None, :] < E), other=0.0)
                mean = mean * fade[:, None] + tl.dot(x.to(v.dtype), v, input_precision=PRECISION)
                total = total * fade + tl.sum(x, 1)
                peak = most
                at += STEP
            to = (part * R + row) * H + head
            tl.store(peaks + to, peak, mask=there)
            tl.store(totals + to, total, mask=there)
            tl.store(means + to[:, None] * E + e[None, :], mean, mask=there[:, None] & (e[None, :] < E))
            i0 += QUERIES


@triton.jit
def store_rows(
    used, k, k_row, k_head, v, v_row, v_head, keys, values, row_node, H,
    D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """The key and value of one row and head of H go to the row's node, before any other row reads them there."""
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
    """One row and key head. OWN: its key and value go to its node, and it reads the nodes on its path. SOURCE: what the parts of
    its input gave is added, AT_ONCE of them at a time."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    g = tl.arange(0, GP)
    head = h * G + g
    there = g < G
    mean = tl.zeros([GP, EP], tl.float32)
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
                q + r * q_row + head[:, None] * q_head + d[None, :], mask=there[:, None] & (d[None, :] < D), other=0.0
            )
            peak = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
            peak = capped(peak, cap, CAP)
            if BIAS:
                peak += tl.load(bias + head * bias_head, mask=there, other=0.0).to(tl.float32)
            total += 1.0
            mean += value.to(tl.float32)[None, :]
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
                    far = bias + head[:, None] * bias_head + (t - c)[None, :]
                    x += tl.load(far, mask=there[:, None] & (c[None, :] < t), other=0.0).to(tl.float32)
                seen = (c[None, :] < t) & ((t - c)[None, :] < window)
                x = tl.where(seen, x, -1e30)
                most = tl.maximum(peak, tl.max(x, 1))
                fade = tl.exp(peak - most)
                x = tl.where(seen, tl.exp(x - most[:, None]), 0.0)
                vs = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < t) & (e[None, :] < E), other=0.0)
                mean = mean * fade[:, None] + tl.dot(x.to(vs.dtype), vs, input_precision=PRECISION)
                total = total * fade + tl.sum(x, 1)
                peak = most
                at += STEP
        if SOURCE:
            length = tl.load(source_length + tl.load(row_input + r))
            part = 0
            while part * SIZE < length:
                some = part + tl.arange(0, AT_ONCE)
                given = (some * SIZE < length)[:, None] & there[None, :]
                at_part = (some[:, None] * R + r) * H + head[None, :]
                other = tl.load(peaks + at_part, mask=given, other=-1e30)
                most = tl.maximum(peak, tl.max(other, 0))
                fade = tl.exp(peak - most)
                weight = tl.where(given, tl.exp(other - most[None, :]), 0.0)
                total = total * fade + tl.sum(weight * tl.load(totals + at_part, mask=given, other=0.0), 0)
                cells = means + at_part[:, :, None] * E + e[None, None, :]
                its = tl.load(cells, mask=given[:, :, None] & (e[None, None, :] < E), other=0.0)
                mean = mean * fade[:, None] + tl.sum(weight[:, :, None] * its, 0)
                peak = most
                part += AT_ONCE
        if SINKS:
            sink = tl.load(sinks + head, mask=there, other=-1e30).to(tl.float32)
            most = tl.maximum(peak, sink)
            fade = tl.exp(peak - most)
            total = total * fade + tl.exp(sink - most)
            mean = mean * fade[:, None]
        mean = mean / tl.maximum(total, 1e-30)[:, None]
    to = (r * H + head)[:, None] * E + e[None, :]
    tl.store(out + to, mean, mask=there[:, None] & (e[None, :] < E))


@triton.jit
def read_packed(
    used, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, number, starts, bias, bias_head, sinks, out, scale, cap, window,
    T, CAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr, G: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, QUERIES: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """Tokens of several inputs, one input behind the other: each reads those of its own input up to itself."""
    i0 = tl.program_id(0) * QUERIES
    many = tl.load(used)
    h = tl.program_id(1)
    i = i0 + tl.arange(0, QUERIES)
    there = i < many
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    mean = tl.zeros([QUERIES, EP], tl.float32)
    if i0 < many:
        row = i.to(tl.int64)
        begin = tl.load(starts + tl.load(number + i, mask=there, other=0))
        query = tl.load(q + row[:, None] * q_row + h * q_head + d[None, :], mask=there[:, None] & (d[None, :] < D), other=0.0)
        peak = tl.full([QUERIES], -1e30, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        lanes = tl.arange(0, STEP)
        end = tl.minimum(i0 + QUERIES, many)
        first = tl.min(tl.where(there, tl.maximum(begin, i - window + 1), 1 << 30), 0)
        at = first
        while (at < end) & (end - first <= NEAR):  # the greatest product first, as torch rounds weights of short contexts
            c = at + lanes
            cell = c.to(tl.int64)
            ks = tl.load(
                k + cell[:, None] * k_row + (h // G) * k_head + d[None, :], mask=(c[:, None] < end) & (d[None, :] < D), other=0.0
            )
            x = capped(tl.dot(query, tl.trans(ks), input_precision=PRECISION) * scale, cap, CAP)
            seen = (c[None, :] >= begin[:, None]) & (c[None, :] <= i[:, None]) & (i[:, None] - c[None, :] < window)
            if BIAS:
                x += tl.load(bias + h * bias_head + (i[:, None] - c[None, :]), mask=seen, other=0.0).to(tl.float32)
            peak = tl.maximum(peak, tl.max(tl.where(seen, x, -1e30), 1))
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
            seen = (c[None, :] >= begin[:, None]) & (c[None, :] <= i[:, None]) & (i[:, None] - c[None, :] < window)
            if BIAS:
                x += tl.load(bias + h * bias_head + (i[:, None] - c[None, :]), mask=seen, other=0.0).to(tl.float32)
            x = tl.where(seen, x, -1e30)
            most = tl.maximum(peak, tl.max(x, 1))
            fade = tl.exp(peak - most)
            x = tl.where(seen, tl.exp(x - most[:, None]), 0.0)
            vs = tl.load(
                v + cell[:, None] * v_row + (h // G) * v_head + e[None, :], mask=(c[:, None] < end) & (e[None, :] < E), other=0.0
            )
            mean = mean * fade[:, None] + tl.dot(x.to(vs.dtype), vs, input_precision=PRECISION)
            total = total * fade + tl.sum(x, 1)
            peak = most
            at += STEP
        if SINKS:
            sink = tl.load(sinks + h).to(tl.float32)
            most = tl.maximum(peak, sink)
            fade = tl.exp(peak - most)
            total = total * fade + tl.exp(sink - most)
            mean = mean * fade[:, None]
        mean = mean / tl.maximum(total, 1e-30)[:, None]
    to = (i.to(tl.int64) * H + h)[:, None] * E + e[None, :]
    tl.store(out + to, mean, mask=(i[:, None] < T) & (e[None, :] < E))


@triton.jit
def attend(
    used, q, q_stride, memory, memory_stride, layer, row_node, row_input, row_length, paths, source_start, source_length,
    out, scale, L, H, D, OWN: tl.constexpr, FIRST: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """One row and head, of the first `used` rows. `memory`: (tokens, layers, 2, H D), keys then values. FIRST: the greatest
    product is found first, and weights are rounded below it, as torch rounds those of short contexts.

    OWN: q holds the row's own key and value too; these go to its node, and its ancestors are the nodes on its path.
    Otherwise: to the `source_length` tokens of its input, which lie side by side from `source_start` on.
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
            own = tl.load(row + 2 * width, mask=valid, other=0.0)
            tl.store(memory + new * memory_stride + at, key, mask=valid)
            tl.store(memory + new * memory_stride + at + width, own, mask=valid)
            count = tl.load(row_length + r)
            most = tl.sum(query * key.to(tl.float32), 0)
            total = tl.full([], 1.0, tl.float32)
            mean = own.to(tl.float32)
            first = new * L
        else:
            s = tl.load(row_input + r).to(tl.int64)
            count = tl.load(source_length + s)
            most = tl.full([], -1e30, tl.float32)
            total = tl.full([], 0.0, tl.float32)
            mean = tl.zeros([DP], tl.float32)
            first = tl.load(source_start + s).to(tl.int64)
        lanes = tl.arange(0, BLOCK)
        t = 0
        if FIRST:
            peak = most
            while t < count:
                there = t + lanes < count
                cells = first + t + lanes
                if OWN:
                    cells = tl.load(paths + cells, mask=there, other=0).to(tl.int64)
                where = memory + cells[:, None] * memory_stride + at[None, :]
                keys = tl.load(where, mask=there[:, None] & valid[None, :], other=0.0).to(tl.float32)
                peak = tl.maximum(peak, tl.max(tl.where(there, tl.sum(keys * query[None, :], 1), -1e30), 0))
                t += BLOCK
            if OWN:
                total = tl.exp(most - peak)
                mean = total.to(memory.dtype.element_ty).to(tl.float32) * mean
            most = peak
            t = 0
        while t < count:
            there = t + lanes < count
            cells = first + t + lanes
            if OWN:
                cells = tl.load(paths + cells, mask=there, other=0).to(tl.int64)
            where = memory + cells[:, None] * memory_stride + at[None, :]
            both = there[:, None] & valid[None, :]
            keys = tl.load(where, mask=both, other=0.0).to(tl.float32)
            values = tl.load(where + width, mask=both, other=0.0)
            weights = tl.where(there, tl.sum(keys * query[None, :], 1), -1e30)
            peak = tl.maximum(most, tl.max(weights, 0))
            fade = tl.exp(most - peak)
            weights = tl.where(there, tl.exp(weights - peak), 0.0)
            rounded = weights.to(values.dtype).to(tl.float32)  # as factors of half precision are
            mean = mean * fade + tl.sum(rounded[:, None] * values.to(tl.float32), 0)
            total = total * fade + tl.sum(weights, 0)
            most = peak
            t += BLOCK
        tl.store(out + r.to(tl.int64) * width + h * D + d, mean / tl.maximum(total, 1e-30), mask=valid)
