# ruff: noqa: N806  capitals are sizes
"""Attention of rows over their tree: over the tokens of their input, shared by all rows of that input, and over their ancestors.

Keys and values are read in place, (tokens, heads, size) per layer; nothing is gathered. With short contexts, each row reads its
whole context in one launch (`read_near`). Otherwise, as in split-KV decoding, an input's tokens are read in parts of `PART`, each
once for all rows and query heads of the input, and `read_path` merges these partial softmaxes (peak, total, and weighted
sum of values) with the row's own path. There the order of summation depends on the row's own context alone; the choice between
the two ways may depend on the number of rows, unless `TreeRows.fixed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels.attention_kernels import read_packed, read_path, read_source, store_rows
from ..kernels.matmul import power
from ..kernels.near_attention import read_near

NEAR = 128  # inputs and outputs of at most so many tokens are read by each row for itself
FEW = 128  # rows that do so in fp32; in half precision any number does, because torch rounds so
PART = 128  # tokens of an input per program
BLOCK = 32  # tokens per iteration; twice as many where they are small
SMALL = 1024  # accumulators of a key head up to which one warp merges several parts at once: of 2,000 tokens, 9 us instead of 22


@dataclass
class Kind:
    """What a model's attention computes: scale and soft cap of scores, sliding window, bias by distance, attention sinks."""

    scale: float
    cap: float = 0.0  # 0: none
    window: int = 1 << 30  # visible tokens, the row's own included
    bias: torch.Tensor | None = None  # (heads, distances)
    sinks: torch.Tensor | None = None  # (heads,): logits of the weight that goes to no token


Memory = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer, (tokens, heads, size) each."""


@dataclass
class TreeRows:
    """The rows of a step: the node, input and length of each, and the range of each input's rows (`grant` from `first` on)."""

    used: torch.Tensor
    node: torch.Tensor
    input: torch.Tensor
    length: torch.Tensor
    paths: torch.Tensor
    first: torch.Tensor
    grant: torch.Tensor
    source_start: torch.Tensor
    source_length: torch.Tensor
    room: int  # most tokens of an input
    most: int  # most rows of an input, drafts aside: a tile size depends on it
    fixed: bool = False  # whether the way a row is read may depend on its own context alone (`deterministic`)
    chained: bool = False  # whether some rows are ancestors of others


def attend_tree(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: Memory | None, source: Memory | None, rows: TreeRows, kind: Kind
) -> torch.Tensor:
    """Attention of q (rows, heads, 1, size) over `memory`, the nodes' KV cache, and `source`, the inputs'; either may be None.
    Stores each row's key and value at its node in `memory`, and attends to its path there. Returns (rows, heads, value size)."""
    cache = memory or source
    assert cache is not None
    (_, key_heads, size), value_size = cache[0].shape, cache[1].shape[2]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    R, H = q.shape[:2]
    G, parts = H // key_heads, -(-rows.room // PART)
    sizes = {"G": G, "H": H, "D": size, "E": value_size, "DP": max(16, power(size)), "EP": max(16, power(value_size))}
    step = BLOCK if q.dtype == torch.float32 or q.shape[-1] > 128 else 2 * BLOCK
    loop: dict[str, int | str] = {"STEP": step, "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32"}
    out = torch.empty(R, H, value_size, dtype=q.dtype, device=q.device)
    bias, sinks = (q if x is None else x for x in (kind.bias, kind.sinks))
    flags: dict[str, int] = {"CAP": kind.cap != 0, "BIAS": kind.bias is not None, "SINKS": kind.sinks is not None}
    flags |= {"OWN": memory is not None, "SOURCE": source is not None, "GP": max(16, power(G))}
    rows_of = (rows.used, q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1))
    if memory is not None and rows.chained:  # else each row stores its own, which no other row of this step reads
        store_rows[(R, key_heads)](
            rows.used, k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1), *memory, rows.node, key_heads,
            D=size, E=value_size, DP=sizes["DP"], EP=sizes["EP"], num_warps=1,
        )  # fmt: skip
    context = max(rows.room * (source is not None), rows.paths.shape[1] * (memory is not None))
    if context <= NEAR and not rows.fixed and (R <= FEW or q.dtype != torch.float32):
        read_near[(R, key_heads)](
            *rows_of, *cache, *(source or cache), rows.node, rows.input, rows.length, rows.paths, rows.source_start,
            rows.source_length, bias, bias.stride(0), sinks, out, kind.scale, kind.cap, kind.window, rows.paths.shape[1],
            **flags, **sizes, **loop, num_warps=4, num_stages=2,
        )  # fmt: skip
        return out
    peaks = totals = means = out
    if source is not None:
        peaks, totals = (torch.empty(parts, R, H, device=q.device) for _ in range(2))
        means = torch.empty(parts, R, H, value_size, device=q.device)
        read_source[(len(rows.source_length), parts, key_heads)](
            q, q.stride(0), q.stride(1), *source, rows.first, rows.grant, rows.source_start, rows.source_length, rows.length,
            peaks, totals, means, kind.scale, kind.cap, kind.window, R,
            OWN=memory is not None, CAP=kind.cap != 0, QUERIES=max(16, min(64, power(rows.most * G))), SIZE=PART, **sizes,
            **loop, num_warps=4, num_stages=2,
        )  # fmt: skip
    accumulators = flags["GP"] * sizes["EP"]
    small, warps = accumulators <= SMALL, 1 if accumulators <= SMALL else 2 if accumulators <= 2 * SMALL else 4
    read_path[(R, key_heads)](
        *rows_of, *cache, rows.node, rows.input, rows.length, rows.paths, rows.source_length, peaks, totals, means,
        bias, bias.stride(0), sinks, out, kind.scale, kind.cap, kind.window, R, rows.paths.shape[1],
        **flags, **sizes, **loop, SIZE=PART, AT_ONCE=4 if small else 1, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: torch.Tensor, number: torch.Tensor, starts: torch.Tensor, kind: Kind
) -> torch.Tensor:
    """Causal attention of q (tokens, heads, 1, size) among packed prompts: each token attends within its input, its `number`."""
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
