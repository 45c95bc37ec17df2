# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""Shortcuts: what modules do in many small launches, in one. Norms, activations and rotary positions are most of a small step.

None is trusted by name: each is held against the module itself on random numbers, and taken only where they agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
import triton
import triton.language as tl

from ..steps.trial import precise
from .products import power

ROTARY = "apply_rotary_pos_emb"
Way = Callable[..., Any]


class Shortcuts:
    """The shortcuts that a model's modules can take on its device. Does not keep the model in memory."""

    def __init__(self, model: Any) -> None:
        self._ways: list[tuple[Any, Way]] = []  # a module, and what takes the place of its `forward`
        self._rotary: list[tuple[Any, Way, Way]] = []  # a file, its own function and ours
        if model.device.type != "cuda":
            return
        tolerance = 1e-5 if precise(model) else 2e-2
        with torch.inference_mode():
            for module in model.modules():
                if (way := _way_of(module, model, tolerance)) is not None:
                    self._ways.append((ref(module), way))
            for file in {sys.modules[type(module).__module__] for module in model.modules()}:
                own = getattr(file, ROTARY, None)
                own = getattr(own, "own", own)
                if own is not None and (mine := _rotary_of(own, model, tolerance)) is not None:
                    self._rotary.append((file, own, mine))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this lasts modules take their shortcuts."""
        modules = [(module(), way) for module, way in self._ways]
        try:
            for module, way in modules:
                module.forward = way
            for file, _, mine in self._rotary:
                setattr(file, ROTARY, mine)
            yield
        finally:
            for module, _ in modules:
                vars(module).pop("forward", None)
            for file, own, _ in self._rotary:
                setattr(file, ROTARY, own)


def _way_of(module: Any, model: Any, tolerance: float) -> Way | None:
    """A shortcut for this module that gives what it gives."""
    weight = getattr(module, "weight", None)
    parts = dict(module.named_children())
    if weight is not None and weight.dim() == 1 and "RMSNorm" in type(module).__name__ + _t5(module):
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
        ways: list[Way] = [_norm(ref(module), eps, offset, early) for offset in (0.0, 1.0) for early in (True, False)]
        size = len(weight)
    elif type(module).__name__ == "NewGELUActivation":
        ways, size = [new_gelu], 64
    elif {"gate_proj", "up_proj", "down_proj", "act_fn"} == set(parts):
        ways, size = [_gated(ref(module), gelu) for gelu in (False, True)], module.gate_proj.in_features
    else:
        return None
    x = torch.randn(5, 1, size, device=model.device, dtype=model.dtype, generator=torch.Generator(model.device).manual_seed(0))
    return next((way for way in ways if _same(way(x), module(x), tolerance)), None)


def _t5(module: Any) -> str:
    return "RMSNorm" if type(module).__name__ in ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm") else ""


def _same(mine: torch.Tensor, its: torch.Tensor, tolerance: float) -> bool:
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return False
    mine, its = mine.float(), its.float()
    return bool(((mine - its).abs() <= tolerance * (its.abs() + its.abs().mean())).all())


# -- norms and activations ---------------------------------------------------------------------------------------------------


def _norm(module: Any, eps: float, offset: float, early: bool) -> Way:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, module().weight, eps, offset, early)

    return forward


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, early: bool) -> torch.Tensor:
    """x over its root mean square, times weight + offset; `early`: rounded before the weight comes, as Llama does it."""
    D = x.shape[-1]
    rows = x.reshape(-1, D)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    norm_rows[(len(rows),)](
        rows, rows.stride(0), weight, out, eps, offset, D, EARLY=early, DP=power(D), num_warps=1 if D <= 256 else 4
    )  # fmt: skip
    return out


@triton.jit
def norm_rows(x, stride, weight, out, eps, offset, D, EARLY: tl.constexpr, DP: tl.constexpr):
    """A row a program."""
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    z = tl.load(x + r * stride + d, mask=d < D, other=0.0)
    y = z.to(tl.float32)
    y = y * (1.0 / tl.sqrt(tl.sum(y * y, 0) / D + eps))
    if EARLY:
        y = y.to(z.dtype).to(tl.float32)
    y = y * (tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32) + offset)
    tl.store(out + r * D + d, y, mask=d < D)


def new_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU by tanh as GPT-2's module writes it, rounded wherever that rounds."""
    out, x = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.contiguous()
    gelu_as_written[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024, num_warps=4)
    return out


@triton.jit
def gelu_as_written(x, out, N, BLOCK: tl.constexpr):
    """A block of numbers a program."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(x + i, mask=i < N, other=0.0)
    kind = raw.dtype
    z = raw.to(tl.float32)
    a = (z * z * z).to(kind).to(tl.float32)
    a = (0.044715 * a).to(kind).to(tl.float32)
    a = (z + a).to(kind).to(tl.float32)
    a = (0.7978845608028654 * a).to(kind).to(tl.float32)
    a = (1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)).to(kind).to(tl.float32)
    a = (1.0 + a).to(kind).to(tl.float32)
    half = (0.5 * z).to(kind).to(tl.float32)
    tl.store(out + i, half * a, mask=i < N)


def _gated(module: Any, gelu: bool) -> Way:
    def forward(x: torch.Tensor) -> torch.Tensor:
        own = module()
        return own.down_proj(gated(own.gate_proj(x), own.up_proj(x), gelu))

    return forward


def gated(gate: torch.Tensor, up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """The activation of `gate`, SiLU or the tanh form of GELU, times `up`; both contiguous."""
    out = torch.empty_like(gate)
    activate[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), GELU=gelu, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def activate(gate, up, out, N, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """A block of numbers a program."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(gate + i, mask=i < N, other=0.0)
    x = raw.to(tl.float32)
    if GELU:
        z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * z) + 1.0))
    else:
        x = x / (1.0 + tl.exp(-x))
    x = x.to(raw.dtype).to(tl.float32)
    tl.store(out + i, x * tl.load(up + i, mask=i < N, other=0.0).to(tl.float32), mask=i < N)


# -- rotary positions --------------------------------------------------------------------------------------------------------


def _rotary_of(own: Way, model: Any, tolerance: float) -> Way | None:
    """A file's function that turns queries and keys, in one launch, where it turns halves of the head against each other."""

    def turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **others: Any) -> Any:
        usual = not more and not others and q.is_cuda and q.dim() == 4 and q.shape[2] == 1 and cos.shape[1] == 1
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
        agree = all(_same(mine, its, 2 * tolerance) for mine, its in found)
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
