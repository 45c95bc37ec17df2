# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""FusedModules: one launch for modules that make many small ones.

In a small step most launches are norms, activations and rotary positions; then come sums that feed a norm, and matmuls of the
same input (`fused_linear`). No module is replaced by its name alone: each fused version is compared with the module itself on
random numbers, and used only if they agree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any
from weakref import ref

import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode
from triton.language.extra import libdevice

from ...steps.step_check import precise
from ..kernels.matmul import power
from .fused_linear import FusedLinear, fused_groups
from .rotary import DEVICES, Angles, Forward, rotary_of, same

T5_NORMS = ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm")
ROTARY = "apply_rotary_pos_emb"
REORDERED = 1e-4  # tolerance for matmuls that sum in another order
Sum = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # two operands and their sum, not computed yet
_active = local()  # `sums`: the DeferredSums of this thread while fused versions are installed


class FusedModules:
    """The fused versions of a model's modules on its device. Holds only weak references to the modules."""

    def __init__(self, model: Any) -> None:
        self._forwards: list[tuple[Any, Forward]] = []  # a module, and its fused `forward`
        self._rotary: list[tuple[Any, Forward, Forward]] = []  # a Python module, its own function and the fused one
        self._angles: list[Angles] = []
        if model.device.type not in DEVICES:
            return
        tolerance = 1e-5 if precise(model) else 2e-2
        fused = {} if model.config.is_encoder_decoder else {id(each.parts[0]): each for each in fused_groups(model)}
        with torch.inference_mode():
            for module in model.modules():
                if type(module).__name__.endswith("RotaryEmbedding") and (angles := Angles(module)).agrees(model):
                    self._angles.append(angles)
                    self._forwards.append((ref(module), angles))
                if (forward := _fused_forward(module, model, tolerance, fused)) is not None:
                    self._forwards.append((ref(module), forward))
            for each in fused.values():
                if len(each.sizes) == 3 and _agrees(each, model, max(tolerance, REORDERED)):
                    self._forwards += [(ref(part), each.forward_of(i)) for i, part in enumerate(each.parts)]
            for file in {sys.modules[type(module).__module__] for module in model.modules()}:
                own = getattr(file, ROTARY, None)
                own = getattr(own, "own", own)
                if own is not None and (turned := rotary_of(own, model, tolerance)) is not None:
                    self._rotary.append((file, own, turned))

    def extend_to(self, positions: int) -> None:
        """Prepare rotary tables for so many positions."""
        for each in self._angles:
            each.positions = max(each.positions, positions)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the context is open, modules run their fused versions."""
        modules = [(module(), forward) for module, forward in self._forwards]
        try:
            for module, forward in modules:
                module.forward = forward
            for file, _, fused in self._rotary:
                setattr(file, ROTARY, fused)
            with DeferredSums() as _active.sums:
                yield
                _active.sums.take(None)
        finally:
            _active.sums = None
            for module, _ in modules:
                vars(module).pop("forward", None)
            for file, own, _ in self._rotary:
                setattr(file, ROTARY, own)


class DeferredSums(TorchFunctionMode):
    """Delays each sum until its value is used: a norm then computes it in its own launch (`rms_norm`)."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: Sum | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in METADATA:
            self.take(None)
        if func in ADDS and not kwargs and _same_layout(*args):
            self._pending = (*args, torch.empty_like(args[0]))
            return self._pending[2]
        return func(*args, **(kwargs or {}))

    def take(self, x: torch.Tensor | None) -> Sum | None:
        """The pending sum if its result is x; the caller then has to compute it. Any other pending sum is computed now."""
        pending, self._pending = self._pending, None
        if pending is not None and pending[2] is not x:
            torch.add(pending[0], pending[1], out=pending[2])
            return None
        return pending


ADDS = {torch.add, torch.Tensor.add, torch.Tensor.__add__}
METADATA = {getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device")} | {torch.Tensor.size, torch.Tensor.dim}
"""Reads of a pending sum that do not need its value."""


def _same_layout(a: Any, b: Any) -> bool:
    """Whether two arguments are contiguous floating-point tensors of the same shape, dtype and device."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.device == b.device and a.is_floating_point() and a.is_contiguous() and b.is_contiguous()


def _fused_forward(module: Any, model: Any, tolerance: float, fused: dict[int, FusedLinear]) -> Forward | None:
    """A replacement for `forward` of this module whose outputs agree with it, or None."""
    weight, name = getattr(module, "weight", None), type(module).__name__
    children = dict(module.named_children())
    if isinstance(weight, torch.Tensor) and weight.dim() == 1 and (name in T5_NORMS or "RMSNorm" in name):
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
        forwards: list[Forward] = [_norm(ref(module), eps, offset, early) for offset in (0.0, 1.0) for early in (True, False)]
        size = len(weight)
    elif name == "NewGELUActivation":
        forwards, size = [partial(new_gelu, twice=twice) for twice in (True, False)], 64
    elif {"gate_proj", "up_proj", "down_proj", "act_fn"} == set(children):
        gate_and_up = fused.get(id(module.gate_proj))
        forwards, size = [_gated(ref(module), gelu, gate_and_up) for gelu in (False, True)], module.gate_proj.in_features
        tolerance = max(tolerance, REORDERED)
    else:
        return None
    x = torch.randn(64, 1, size, device=model.device, dtype=model.dtype, generator=torch.Generator(model.device).manual_seed(0))
    expected, outputs = module(x), [forward(x) for forward in forwards]
    # Of those that agree, the one with the fewest unequal numbers rounds as the module does: in half precision several are close.
    agreeing = [(int((out != expected).sum()), i) for i, out in enumerate(outputs) if same(out, expected, tolerance)]
    return forwards[min(agreeing)[1]] if agreeing else None


def _agrees(fused: FusedLinear, model: Any, tolerance: float) -> bool:
    """Whether the fused matmul of a group agrees with those of its modules."""
    parts = fused.parts
    x = torch.randn(5, 1, parts[0].in_features, device=model.device, dtype=model.dtype)
    return same(fused(x), torch.cat([part(x) for part in parts], -1), tolerance)


# -- norms and activations ---------------------------------------------------------------------------------------------------


def _norm(module: Any, eps: float, offset: float, early: bool) -> Forward:
    def forward(x: torch.Tensor) -> torch.Tensor:
        sums = getattr(_active, "sums", None)
        return rms_norm(x, module().weight, eps, offset, early, None if sums is None else sums.take(x))

    return forward


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, early: bool, added: Sum | None = None
) -> torch.Tensor:
    """x / rms(x) * (weight + offset); `early`: rounded before the multiplication with the weight, as in Llama. `added`: x is a
    pending sum of two tensors, (first, second, x), which is computed here."""
    D = x.shape[-1]
    if added is not None or x.is_contiguous():
        inner, outer_row, row = 1, D, D
    elif x.dim() in (3, 4) and x.shape[1] == 1 and x.stride(-1) == 1:  # rows, or their heads, that are slices of wider rows
        inner, outer_row, row = (x.shape[2], x.stride(0), x.stride(2)) if x.dim() == 4 else (1, x.stride(0), 0)
    else:
        x = x.contiguous()
        inner, outer_row, row = 1, D, D
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first, second, _ = added or (x, x, x)
    norm_rows[(x.numel() // D,)](
        first, second, x, outer_row, row, inner, weight, out, eps, offset, D,
        ADD=added is not None, EARLY=early, DP=power(D), num_warps=1 if D <= 256 else 4,
    )  # fmt: skip
    return out


@triton.jit
def norm_rows(
    first, second, x, outer_row, row, inner, weight, out, eps, offset, D,
    ADD: tl.constexpr, EARLY: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One row per program: `inner` rows are `row` apart, groups of them `outer_row`. ADD: store x = first + second."""
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    at = (r // inner) * outer_row + (r % inner) * row + d
    z = tl.load(first + at, mask=d < D, other=0.0)
    if ADD:
        z = (z.to(tl.float32) + tl.load(second + at, mask=d < D, other=0.0).to(tl.float32)).to(z.dtype)
        tl.store(x + at, z, mask=d < D)
    y = z.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / D + eps)
    if EARLY:
        y = y.to(z.dtype).to(tl.float32)
    y = y * (tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32) + offset)
    tl.store(out + r * D + d, y, mask=d < D)


@triton.jit
def tanh(x, CUDA: tl.constexpr):
    """As torch computes it on this device."""
    if CUDA:
        return libdevice.tanh(x)
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


def new_gelu(x: torch.Tensor, twice: bool) -> torch.Tensor:
    """GELU by tanh as GPT-2's module computes it, rounded after each operation; `twice`: a cube is two multiplications."""
    out, x = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.contiguous()
    sizes = {"TWICE": twice, "CUDA": x.is_cuda, "BLOCK": 1024}
    gelu_as_written[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), **sizes, num_warps=4)
    return out


@triton.jit
def gelu_as_written(x, out, N, TWICE: tl.constexpr, CUDA: tl.constexpr, BLOCK: tl.constexpr):
    """One block of numbers per program."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(x + i, mask=i < N, other=0.0)
    kind = raw.dtype
    z = raw.to(tl.float32)
    a = z * z
    if TWICE:
        a = a.to(kind).to(tl.float32)
    a = (a * z).to(kind).to(tl.float32)
    a = (0.044715 * a).to(kind).to(tl.float32)
    a = (z + a).to(kind).to(tl.float32)
    a = (0.7978845608028654 * a).to(kind).to(tl.float32)
    a = tanh(a, CUDA).to(kind).to(tl.float32)
    a = (1.0 + a).to(kind).to(tl.float32)
    half = (0.5 * z).to(kind).to(tl.float32)
    tl.store(out + i, half * a, mask=i < N)


def _gated(module: Any, gelu: bool, fused: FusedLinear | None) -> Forward:
    def forward(x: torch.Tensor) -> torch.Tensor:
        own = module()
        gate, up = (own.gate_proj(x), own.up_proj(x)) if fused is None else fused(x).chunk(2, -1)
        return own.down_proj(gated(gate, up, gelu))

    return forward


def gated(gate: torch.Tensor, up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """act(gate) * up, act being SiLU or the tanh form of GELU; the rows of both have the same stride."""
    out, N = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device), gate.shape[-1]
    row = gate.stride(-2)
    activate[(gate.numel() // N, triton.cdiv(N, 1024))](
        gate, up, row, out, N, GELU=gelu, CUDA=gate.is_cuda, BLOCK=1024, num_warps=4
    )  # fmt: skip
    return out


@triton.jit
def activate(gate, up, row, out, N, GELU: tl.constexpr, CUDA: tl.constexpr, BLOCK: tl.constexpr):
    """One block of a row per program."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(gate + r * row + i, mask=i < N, other=0.0)
    x = raw.to(tl.float32)
    if GELU:
        z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (1.0 + tanh(z, CUDA))
    elif CUDA:
        x = tl.div_rn(x, 1.0 + libdevice.exp(-x))  # as torch computes it on this device
    else:
        x = x / (1.0 + tl.exp(-x))
    x = x.to(raw.dtype).to(tl.float32)
    tl.store(out + r * N + i, x * tl.load(up + r * row + i, mask=i < N, other=0.0).to(tl.float32), mask=i < N)
