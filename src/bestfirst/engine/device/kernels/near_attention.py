"""Attention over the tree of hypotheses where contexts are short: one launch reads a row's source and its path.

`tree_attention` launches it and describes the scheme; shapes are those of `attention_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_kernels import capped


@triton.jit
def masked_scores(
    query, keys, cell, valid_key, visible, valid, d, bias, bias_at, scale, cap,
    CAP: tl.constexpr, BIAS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scaled, capped and biased scores (queries, cells), -1e30 where not `visible`."""
    k = tl.load(keys + cell[:, None] * D + d[None, :], mask=valid_key[:, None] & (d[None, :] < D), other=0.0)
    x = capped(tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale, cap, CAP)
    if BIAS:
        x += tl.load(bias + bias_at, mask=valid[:, None] & valid_key[None, :], other=0.0).to(tl.float32)
    return tl.where(visible, x, -1e30)


@triton.jit
def read_near(
    used, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, keys, values, source_keys, source_values,
    row_node, row_input, row_length, paths, source_start, source_length, bias, bias_head, sinks, out, scale, cap, window, L,
    OWN: tl.constexpr, SOURCE: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr, G: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and key head with a short context, in two sweeps: the first finds the greatest score, the second rounds the weights
    below it, as torch's attention does for contexts of one block, so in half precision the bits are the same. OWN: store the
    row's key and value at its node and attend to its path. SOURCE: attend to its input, which precedes its path."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    g = tl.arange(0, GP)
    head = h * G + g
    valid = g < G
    lanes = tl.arange(0, STEP)
    acc = tl.zeros([GP, EP], tl.float32)
    if r < tl.load(used):
        query = tl.load(q + r * q_row + head[:, None] * q_head + d[None, :], mask=valid[:, None] & (d[None, :] < D), other=0.0)
        t = tl.load(row_length + r)
        new = tl.load(row_node + r).to(tl.int64)
        peak = tl.full([GP], -1e30, tl.float32)
        total = tl.zeros([GP], tl.float32)
        last = 0
        first = 0
        start = new * 0
        if SOURCE:
            s = tl.load(row_input + r)
            last = tl.load(source_length + s)
            start = tl.load(source_start + s).to(tl.int64)
        first_ancestor = 0
        if OWN:
            first = tl.maximum(0, last + t - window + 1) // STEP * STEP
            first_ancestor = tl.maximum(0, t - window + 1) // STEP * STEP
            key = tl.load(k + r * k_row + h * k_head + d, mask=d < D, other=0.0)
            value = tl.load(v + r * v_row + h * v_head + e, mask=e < E, other=0.0)
            tl.store(keys + (new * (H // G) + h) * D + d, key, mask=d < D)
            tl.store(values + (new * (H // G) + h) * E + e, value, mask=e < E)
            own = capped(tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale, cap, CAP)
            if BIAS:
                own += tl.load(bias + head * bias_head, mask=valid, other=0.0).to(tl.float32)
            peak = own
        if SINKS:
            sink = tl.load(sinks + head, mask=valid, other=-1e30).to(tl.float32)
            peak = tl.maximum(peak, sink)
        for sweep in tl.static_range(2):  # the first finds the greatest score
            if SOURCE:
                at = first
                while at < last:
                    c = at + lanes
                    visible = (c < last)[None, :] & (valid[:, None] | True)
                    if OWN:
                        visible = visible & (last + t - c < window)[None, :]
                    cell = (start + c) * (H // G) + h
                    x = masked_scores(
                        query, source_keys, cell, c < last, visible, valid, d, bias, head[:, None], scale, cap,
                        CAP, False, D, PRECISION,
                    )  # fmt: skip
                    if sweep == 0:
                        peak = tl.maximum(peak, tl.max(x, 1))
                    else:
                        x = tl.where(visible, tl.exp(x - peak[:, None]), 0.0)
                        w = tl.load(
                            source_values + cell[:, None] * E + e[None, :], mask=(c[:, None] < last) & (e[None, :] < E), other=0.0
                        )
                        acc += tl.dot(x.to(w.dtype), w, input_precision=PRECISION)
                        total += tl.sum(x, 1)
                    at += STEP
            if OWN:
                at = first_ancestor
                while at < t:
                    c = at + lanes
                    node = tl.load(paths + new * L + c, mask=c < t, other=0).to(tl.int64)
                    cell = node * (H // G) + h
                    visible = ((c < t) & (t - c < window))[None, :] & (valid[:, None] | True)
                    bias_at = head[:, None] * bias_head + (t - c)[None, :]
                    x = masked_scores(
                        query, keys, cell, c < t, visible, valid, d, bias, bias_at, scale, cap, CAP, BIAS, D, PRECISION
                    )
                    if sweep == 0:
                        peak = tl.maximum(peak, tl.max(x, 1))
                    else:
                        x = tl.where(visible, tl.exp(x - peak[:, None]), 0.0)
                        w = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < t) & (e[None, :] < E), other=0.0)
                        acc += tl.dot(x.to(w.dtype), w, input_precision=PRECISION)
                        total += tl.sum(x, 1)
                    at += STEP
        if OWN:
            weight = tl.exp(own - peak)
            total += weight
            acc += weight.to(value.dtype).to(tl.float32)[:, None] * value.to(tl.float32)[None, :]
        if SINKS:
            total += tl.exp(sink - peak)
        acc = acc / tl.maximum(total, 1e-30)[:, None]
    to = (r * H + head)[:, None] * E + e[None, :]
    tl.store(out + to, acc, mask=valid[:, None] & (e[None, :] < E))
