# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""Rotary positions: cosines and sines from a table, queries and keys rotated in one launch, where a model does just that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import triton
import triton.language as tl

from ..kernels.matmul import power

DEVICES = {"cuda"}
Forward = Callable[..., Any]


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Whether shapes and dtypes are equal and values within the tolerance, relative to magnitude plus mean magnitude of b."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.float(), b.float()
    return bool(((a - b).abs() <= tolerance * (b.abs() + b.abs().mean())).all())


class Angles:
    """Replaces `forward` of a rotary embedding: instead of ten launches, looks cosines and sines up in what the module itself
    computed for all positions up to `positions`."""

    def __init__(self, module: Any) -> None:
        self._module = ref(module)
        self._tables: dict[Any, list[torch.Tensor]] = {}  # the last one is in use; CUDA graphs may hold earlier ones
        self.positions = 0

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor, *more: Any, **others: Any) -> Any:
        own: Any = self._module()
        if position_ids.dim() != 2 or position_ids.shape[1] != 1 or not self.positions:
            return type(own).forward(own, x, position_ids, *more, **others)
        tables = self._tables.setdefault((x.dtype, *more, *others.items()), [])
        if not tables or len(tables[-1]) < self.positions:
            places = torch.arange(self.positions, device=position_ids.device)[None]
            both = type(own).forward(own, x[:1], places, *more, **others)  # (1, positions, size) each
            tables.append(torch.stack(both, 2)[0])
        return tables[-1][position_ids].unbind(2)  # (rows, 1, size)

    def agrees(self, model: Any) -> bool:
        """Whether a table gives exactly what the module computes."""
        own: Any = self._module()
        places = torch.tensor([[3], [0], [7]], device=model.device)
        x = torch.zeros(3, 1, 4, device=model.device, dtype=model.dtype)
        try:
            self.positions = 8
            found, expected = self(x, places), own(x, places)
            return len(found) == 2 and all(torch.equal(*each) for each in zip(found, expected, strict=True))
        except Exception:  # another signature
            return False
        finally:
            self.positions = 0
            self._tables.clear()


def rotary_of(own: Forward, model: Any, tolerance: float) -> Forward | None:
    """A fused version of a model's `apply_rotary_pos_emb`, which rotates the halves of a head against each other; None if the
    model's own function does something else. Other calls than it knows go to that function."""

    def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **others: Any) -> Any:
        known = not more and not others and q.device.type in DEVICES and q.dim() == 4 and q.shape[2] == 1 and cos.shape[1] == 1
        if not known or cos.dim() != 3 or cos.shape[2] != q.shape[3] or q.stride(3) != 1 or k.stride(3) != 1:
            return own(q, k, cos, sin, *more, **others)
        return rotate(q, k, cos.expand(len(q), -1, -1), sin.expand(len(q), -1, -1))

    dice = torch.Generator(model.device).manual_seed(0)
    q, k, cos, sin = (
        torch.randn(*size, device=model.device, dtype=model.dtype, generator=dice)
        for size in ((3, 4, 1, 32), (3, 2, 1, 32), (3, 1, 32), (3, 1, 32))
    )
    try:
        pairs = zip(rotated(q, k, cos, sin), own(q, k, cos, sin), strict=True)
        agree = all(same(mine, expected, 2 * tolerance) for mine, expected in pairs)
    except Exception:  # another signature
        return None
    rotated.own = own  # type: ignore[attr-defined]
    return rotated if agree else None


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k (rows, heads, 1, size), rotated by angles (rows, 1, size)."""
    R, H, _, D = q.shape
    out_q, out_k = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    rotate_halves[(R, H + k.shape[1])](
        q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), cos, cos.stride(0), sin, sin.stride(0), out_q, out_k,
        H, k.shape[1], D, DP=power(D), num_warps=1,
    )  # fmt: skip
    return out_q, out_k


@triton.jit
def rotate_halves(q, q_row, q_head, k, k_row, k_head, cos, cos_row, sin, sin_row, out_q, out_k, H, HK, D, DP: tl.constexpr):
    """One row and head per program, of the queries first, then of the keys."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
    sign = tl.where(d < D // 2, -1.0, 1.0)
    c = tl.load(cos + r * cos_row + d, mask=d < D, other=0.0).to(tl.float32)
    s = tl.load(sin + r * sin_row + d, mask=d < D, other=0.0).to(tl.float32) * sign
    if h < H:
        source = q + r * q_row + h * q_head
        out = out_q + (r * H + h) * D
    else:
        source = k + r * k_row + (h - H) * k_head
        out = out_k + (r * HK + h - H) * D
    x = tl.load(source + d, mask=d < D, other=0.0)
    y = tl.load(source + partner, mask=d < D, other=0.0)
    dtype = x.dtype
    own_term = (x.to(tl.float32) * c).to(dtype).to(tl.float32)  # round where the model rounds
    partner_term = (y.to(tl.float32) * s).to(dtype).to(tl.float32)
    tl.store(out + d, own_term + partner_term, mask=d < D)
