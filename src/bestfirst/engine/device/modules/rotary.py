# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""Rotary positions: angles that are looked up, queries and keys that are turned in one launch, where the model does just that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import triton
import triton.language as tl

from ..kernels.matmul import power

DEVICES = {"cuda"}
Way = Callable[..., Any]


def same(mine: torch.Tensor, its: torch.Tensor, tolerance: float) -> bool:
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return False
    mine, its = mine.float(), its.float()
    return bool(((mine - its).abs() <= tolerance * (its.abs() + its.abs().mean())).all())


class Angles:
    """Cosines and sines of positions, which a module computes in ten launches: looked up in what it has made of all of them."""

    def __init__(self, module: Any) -> None:
        self._module = ref(module)
        self._tables: dict[Any, list[torch.Tensor]] = {}  # the latest last: graphs may be looking at those before
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
        """Whether these are what the module itself computes."""
        own: Any = self._module()
        places = torch.tensor([[3], [0], [7]], device=model.device)
        x = torch.zeros(3, 1, 4, device=model.device, dtype=model.dtype)
        try:
            self.positions = 8
            mine, its = self(x, places), own(x, places)
            return len(mine) == 2 and all(torch.equal(*each) for each in zip(mine, its, strict=True))
        except Exception:  # another signature
            return False
        finally:
            self.positions = 0
            self._tables.clear()


def rotary_of(own: Way, model: Any, tolerance: float) -> Way | None:
    """A file's function that turns queries and keys, in one launch, where it turns halves of the head against each other."""

    def turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **others: Any) -> Any:
        usual = not more and not others and q.device.type in DEVICES and q.dim() == 4 and q.shape[2] == 1 and cos.shape[1] == 1
        if not usual or cos.dim() != 3 or cos.shape[2] != q.shape[3] or q.stride(3) != 1 or k.stride(3) != 1:
            return own(q, k, cos, sin, *more, **others)
        return rotate(q, k, cos.expand(len(q), -1, -1), sin.expand(len(q), -1, -1))

    dice = torch.Generator(model.device).manual_seed(0)
    q, k, cos, sin = (
        torch.randn(*size, device=model.device, dtype=model.dtype, generator=dice)
        for size in ((3, 4, 1, 32), (3, 2, 1, 32), (3, 1, 32), (3, 1, 32))
    )
    try:
        found = zip(turned(q, k, cos, sin), own(q, k, cos, sin), strict=True)
        agree = all(same(mine, its, 2 * tolerance) for mine, its in found)
    except Exception:  # another signature
        return None
    turned.own = own  # type: ignore[attr-defined]
    return turned if agree else None


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k (rows, heads, 1, size), turned by angles (rows, 1, size)."""
    R, H, _, D = q.shape
    turned_q, turned_k = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    turn[(R, H + k.shape[1])](
        q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), cos, cos.stride(0), sin, sin.stride(0), turned_q, turned_k,
        H, k.shape[1], D, DP=power(D), num_warps=1,
    )  # fmt: skip
    return turned_q, turned_k


@triton.jit
def turn(q, q_row, q_head, k, k_row, k_head, cos, cos_row, sin, sin_row, out_q, out_k, H, HK, D, DP: tl.constexpr):
    """One row and head, of the queries' first, then of the keys'."""
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    other = tl.where(d < D // 2, d + D // 2, d - D // 2)
    sign = tl.where(d < D // 2, -1.0, 1.0)
    c = tl.load(cos + r * cos_row + d, mask=d < D, other=0.0).to(tl.float32)
    s = tl.load(sin + r * sin_row + d, mask=d < D, other=0.0).to(tl.float32) * sign
    if h < H:
        at = q + r * q_row + h * q_head
        to = out_q + (r * H + h) * D
    else:
        at = k + r * k_row + (h - H) * k_head
        to = out_k + (r * HK + h - H) * D
    x = tl.load(at + d, mask=d < D, other=0.0)
    y = tl.load(at + other, mask=d < D, other=0.0)
    kind = x.dtype
    a = (x.to(tl.float32) * c).to(kind).to(tl.float32)  # rounded wherever the model rounds
    b = (y.to(tl.float32) * s).to(kind).to(tl.float32)
    tl.store(to + d, a + b, mask=d < D)
