# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""Attention of rows to their tree: to the tokens of their input, which all rows of an input read together, and to their
ancestors.

Nothing is gathered: keys and values are read where they lie, (tokens, heads, size) a layer. Where contexts are short, each row
reads its own in one launch (`read_near`). Otherwise an input's tokens are read in parts of `PART`, each once for all rows and
query heads of that input; what a part gives (a peak, a total, a mean) is put together with what the row's own path gives. Which
numbers are added in which order depends on the row's own context alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..kernels.attention_kernels import capped, read_packed, read_path, read_source, store_rows
from ..kernels.matmul import power

NEAR = 128  # tokens that inputs, or outputs, may have for each row to read all of its own
FEW = 128  # rows that do so where that rounds nothing otherwise
PART = 128  # tokens of an input that one program reads
BLOCK = 32  # tokens at a time; twice as many where they are small
SMALL = 1024  # numbers of a key head's queries that one warp holds of several parts at once: of 2,000 tokens, 9 us instead of 22


@dataclass
class Kind:
    """What a model asks of its attention: how products are scaled and capped, how far back it looks, a bias by distance."""

    scale: float
    cap: float = 0.0  # 0: none
    window: int = 1 << 30  # tokens that are seen, the row's own included
    bias: torch.Tensor | None = None  # (heads, distances)
    sinks: torch.Tensor | None = None  # (heads,): what is left to no token


Memory = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer, (tokens, heads, size) each."""


@dataclass
class TreeRows:
    """The rows of a step: who they are, what they read, and which of them are an input's (`grant` of them from `first` on)."""

    used: torch.Tensor
    node: torch.Tensor
    input: torch.Tensor
    length: torch.Tensor
    paths: torch.Tensor
    first: torch.Tensor
    grant: torch.Tensor
    source_start: torch.Tensor
    source_length: torch.Tensor
    room: int  # tokens that an input may have
    most: int  # rows that an input may have
    fixed: bool = False  # whether nothing but a row's own context may decide how it is read
    chained: bool = False  # whether some of them are the ancestors of others


def attend_tree(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: Memory | None, source: Memory | None, rows: TreeRows, kind: Kind
) -> torch.Tensor:
    """Of q (rows, heads, 1, size): what each row reads of its path in `memory`, where its key and value go, and of its input in
    `source`; (rows, heads, value size)."""
    its = memory or source
    assert its is not None
    (_, key_heads, size), value_size = its[0].shape, its[1].shape[2]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    R, H = q.shape[:2]
    G, parts = H // key_heads, -(-rows.room // PART)
    sizes = {"G": G, "H": H, "D": size, "E": value_size, "DP": max(16, power(size)), "EP": max(16, power(value_size))}
    more = {"SIZE": PART, "STEP": block(q), "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32"}
    out = torch.empty(R, H, value_size, dtype=q.dtype, device=q.device)
    bias, sinks = (q if x is None else x for x in (kind.bias, kind.sinks))
    flags: dict[str, int] = {"CAP": kind.cap != 0, "BIAS": kind.bias is not None, "SINKS": kind.sinks is not None}
    flags |= {"OWN": memory is not None, "SOURCE": source is not None, "GP": max(16, power(G))}
    rows_of = (rows.used, q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1))
    if memory is not None and rows.chained:  # else each row stores its own, which nobody reads yet
        store_rows[(R, key_heads)](
            rows.used, k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1), *memory, rows.node, key_heads,
            D=size, E=value_size, DP=sizes["DP"], EP=sizes["EP"], num_warps=1,
        )  # fmt: skip
    context = max(rows.room * (source is not None), rows.paths.shape[1] * (memory is not None))
    if context <= NEAR and not rows.fixed and (R <= FEW or q.dtype != torch.float32):
        read_near[(R, key_heads)](
            *rows_of, *its, *(source or its), rows.node, rows.input, rows.length, rows.paths, rows.source_start,
            rows.source_length, bias, bias.stride(0), sinks, out, kind.scale, kind.cap, kind.window, rows.paths.shape[1],
            **flags, **sizes, STEP=more["STEP"], PRECISION=more["PRECISION"], num_warps=4, num_stages=2,
        )  # fmt: skip
        return out
    peaks = totals = means = out
    if source is not None:
        peaks, totals = (torch.empty(parts, R, H, device=q.device) for _ in range(2))
        means = torch.empty(parts, R, H, value_size, device=q.device)
        read_source[(len(rows.source_length), parts, key_heads)](
            q, q.stride(0), q.stride(1), *source, rows.first, rows.grant, rows.source_start, rows.source_length, rows.length,
            peaks, totals, means, kind.scale, kind.cap, kind.window, R,
            OWN=memory is not None, CAP=kind.cap != 0, QUERIES=max(16, min(64, power(rows.most * G))), **sizes, **more,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    held = flags["GP"] * sizes["EP"]
    small, warps = held <= SMALL, 1 if held <= SMALL else 2 if held <= 2 * SMALL else 4
    read_path[(R, key_heads)](
        *rows_of, *its, rows.node, rows.input, rows.length, rows.paths, rows.source_length, peaks, totals, means,
        bias, bias.stride(0), sinks, out, kind.scale, kind.cap, kind.window, R, rows.paths.shape[1],
        **flags, **sizes, **more, AT_ONCE=4 if small else 1, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


def block(q: torch.Tensor) -> int:
    """Tokens that are read at a time."""
    return BLOCK if q.dtype == torch.float32 or q.shape[-1] > 128 else 2 * BLOCK


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: torch.Tensor, number: torch.Tensor, starts: torch.Tensor, kind: Kind
) -> torch.Tensor:
    """Of q (tokens, heads, 1, size): what each token reads of its own input, which is its `number`, up to itself."""
    T, H, _, size = q.shape
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    value_size = v.shape[3]
    out = torch.empty(T, H, value_size, dtype=q.dtype, device=q.device)
    bias, sinks = (q if x is None else x for x in (kind.bias, kind.sinks))
    read_packed[(-(-T // 64), H)](
        used, q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1), number, starts,
        bias, bias.stride(0), sinks, out, kind.scale, kind.cap, kind.window, T,
        CAP=kind.cap != 0, BIAS=kind.bias is not None, SINKS=kind.sinks is not None,
        G=H // k.shape[1], H=H, D=size, E=value_size, DP=max(16, power(size)), EP=max(16, power(value_size)),
        QUERIES=64, STEP=BLOCK, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        NEAR=0 if q.dtype == torch.float32 else 2 * NEAR, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


# -- a row whose whole context is near ---------------------------------------------------------------------------------------

# The greatest product is found first, and weights are rounded below it, as torch's own attention does it for contexts of one
# block: in half precision the numbers are then the same, not merely as good.


@triton.jit
def products(
    query, keys, cell, at_key, seen, there, d, bias, far, scale, cap,
    CAP: tl.constexpr, BIAS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of some queries and the keys of some cells, as attention compares them; `seen` (queries, cells) leaves out the others."""
    k = tl.load(keys + cell[:, None] * D + d[None, :], mask=at_key[:, None] & (d[None, :] < D), other=0.0)
    x = capped(tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale, cap, CAP)
    if BIAS:
        x += tl.load(bias + far, mask=there[:, None] & at_key[None, :], other=0.0).to(tl.float32)
    return tl.where(seen, x, -1e30)


@triton.jit
def read_near(
    used, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, keys, values, source_keys, source_values,
    row_node, row_input, row_length, paths, source_start, source_length, bias, bias_head, sinks, out, scale, cap, window, L,
    OWN: tl.constexpr, SOURCE: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr, G: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and key head. OWN: its key and value go to its node, and it reads the nodes on its path. SOURCE: it reads its
    input, which stands before its path if it has one."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    e = tl.arange(0, EP)
    g = tl.arange(0, GP)
    head = h * G + g
    there = g < G
    lanes = tl.arange(0, STEP)
    mean = tl.zeros([GP, EP], tl.float32)
    if r < tl.load(used):
        query = tl.load(q + r * q_row + head[:, None] * q_head + d[None, :], mask=there[:, None] & (d[None, :] < D), other=0.0)
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
        begin = 0
        if OWN:
            first = tl.maximum(0, last + t - window + 1) // STEP * STEP
            begin = tl.maximum(0, t - window + 1) // STEP * STEP
            key = tl.load(k + r * k_row + h * k_head + d, mask=d < D, other=0.0)
            value = tl.load(v + r * v_row + h * v_head + e, mask=e < E, other=0.0)
            tl.store(keys + (new * (H // G) + h) * D + d, key, mask=d < D)
            tl.store(values + (new * (H // G) + h) * E + e, value, mask=e < E)
            own = capped(tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale, cap, CAP)
            if BIAS:
                own += tl.load(bias + head * bias_head, mask=there, other=0.0).to(tl.float32)
            peak = own
        if SINKS:
            sink = tl.load(sinks + head, mask=there, other=-1e30).to(tl.float32)
            peak = tl.maximum(peak, sink)
        for turn in tl.static_range(2):  # the first finds the greatest product
            if SOURCE:
                at = first
                while at < last:
                    c = at + lanes
                    seen = (c < last)[None, :] & (there[:, None] | True)
                    if OWN:
                        seen = seen & (last + t - c < window)[None, :]
                    cell = (start + c) * (H // G) + h
                    x = products(
                        query, source_keys, cell, c < last, seen, there, d, bias, head[:, None], scale, cap,
                        CAP, False, D, PRECISION,
                    )  # fmt: skip
                    if turn == 0:
                        peak = tl.maximum(peak, tl.max(x, 1))
                    else:
                        x = tl.where(seen, tl.exp(x - peak[:, None]), 0.0)
                        w = tl.load(
                            source_values + cell[:, None] * E + e[None, :], mask=(c[:, None] < last) & (e[None, :] < E), other=0.0
                        )
                        mean += tl.dot(x.to(w.dtype), w, input_precision=PRECISION)
                        total += tl.sum(x, 1)
                    at += STEP
            if OWN:
                at = begin
                while at < t:
                    c = at + lanes
                    node = tl.load(paths + new * L + c, mask=c < t, other=0).to(tl.int64)
                    cell = node * (H // G) + h
                    seen = ((c < t) & (t - c < window))[None, :] & (there[:, None] | True)
                    far = head[:, None] * bias_head + (t - c)[None, :]
                    x = products(query, keys, cell, c < t, seen, there, d, bias, far, scale, cap, CAP, BIAS, D, PRECISION)
                    if turn == 0:
                        peak = tl.maximum(peak, tl.max(x, 1))
                    else:
                        x = tl.where(seen, tl.exp(x - peak[:, None]), 0.0)
                        w = tl.load(values + cell[:, None] * E + e[None, :], mask=(c[:, None] < t) & (e[None, :] < E), other=0.0)
                        mean += tl.dot(x.to(w.dtype), w, input_precision=PRECISION)
                        total += tl.sum(x, 1)
                    at += STEP
        if OWN:
            weight = tl.exp(own - peak)
            total += weight
            mean += weight.to(value.dtype).to(tl.float32)[:, None] * value.to(tl.float32)[None, :]
        if SINKS:
            total += tl.exp(sink - peak)
        mean = mean / tl.maximum(total, 1e-30)[:, None]
    to = (r * H + head)[:, None] * E + e[None, :]
    tl.store(out + to, mean, mask=there[:, None] & (e[None, :] < E))
