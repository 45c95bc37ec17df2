# ruff: noqa: ANN001, ANN201, N803, N806  a kernel's arguments are pointers and numbers; capitals are sizes
"""FusedModules: what modules do in many small launches, in one. Norms, activations and rotary positions are most of a small step,
then sums that are normed next, and products of the same input (`fused_linear`).

None is trusted by name: each is held against the module itself on random numbers, and taken only where they agree.
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
from .fused_linear import FusedLinear, groups
from .rotary import DEVICES, Angles, Way, rotary_of, same

T5_NORMS = ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm")
ROTARY = "apply_rotary_pos_emb"
SUMMED = 1e-4  # how far apart products may be that are summed in another order
Sum = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_now = local()  # sums while shortcuts are taken


class FusedModules:
    """The shortcuts that a model's modules can take on its device. Does not keep the model in memory."""

    def __init__(self, model: Any) -> None:
        self._ways: list[tuple[Any, Way]] = []  # a module, and what takes the place of its `forward`
        self._rotary: list[tuple[Any, Way, Way]] = []  # a file, its own function and ours
        self._angles: list[Angles] = []
        if model.device.type not in DEVICES:
            return
        tolerance = 1e-5 if precise(model) else 2e-2
        joined = {} if model.config.is_encoder_decoder else {id(each.parts[0]): each for each in groups(model)}
        with torch.inference_mode():
            for module in model.modules():
                if type(module).__name__.endswith("RotaryEmbedding") and (angles := Angles(module)).agrees(model):
                    self._angles.append(angles)
                    self._ways.append((ref(module), angles))
                if (way := _way_of(module, model, tolerance, joined)) is not None:
                    self._ways.append((ref(module), way))
            for each in joined.values():
                if len(each.sizes) == 3 and _agrees(each, model, max(tolerance, SUMMED)):
                    self._ways += [(ref(part), each.forward_of(i)) for i, part in enumerate(each.parts)]
            for file in {sys.modules[type(module).__module__] for module in model.modules()}:
                own = getattr(file, ROTARY, None)
                own = getattr(own, "own", own)
                if own is not None and (mine := rotary_of(own, model, tolerance)) is not None:
                    self._rotary.append((file, own, mine))

    def reach(self, positions: int) -> None:
        """There will be so many positions."""
        for each in self._angles:
            each.positions = max(each.positions, positions)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this lasts modules take their shortcuts."""
        modules = [(module(), way) for module, way in self._ways]
        try:
            for module, way in modules:
                module.forward = way
            for file, _, mine in self._rotary:
                setattr(file, ROTARY, mine)
            with DeferredSums() as _now.sums:
                yield
                _now.sums.take(None)
        finally:
            _now.sums = None
            for module, _ in modules:
                vars(module).pop("forward", None)
            for file, own, _ in self._rotary:
                setattr(file, ROTARY, own)


class DeferredSums(TorchFunctionMode):
    """A sum waits until somebody looks at it: a norm takes it in its own launch."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Sum | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in OUTLINES:
            self.take(None)
        if func in ADDS and not kwargs and _alike(*args):
            self._waiting = (*args, torch.empty_like(args[0]))
            return self._waiting[2]
        return func(*args, **(kwargs or {}))

    def take(self, x: torch.Tensor | None) -> Sum | None:
        """The sum that waits, if it is x: whoever asks has to take it. Any other is taken now."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[2] is not x:
            torch.add(waiting[0], waiting[1], out=waiting[2])
            return None
        return waiting


ADDS = {torch.add, torch.Tensor.add, torch.Tensor.__add__}
OUTLINES = {getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device")} | {torch.Tensor.size, torch.Tensor.dim}
"""What may be asked of a tensor whose numbers are not there yet."""


def _alike(a: Any, b: Any) -> bool:
    """Whether these are rows of the same kind."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.device == b.device and a.is_floating_point() and a.is_contiguous() and b.is_contiguous()


def _way_of(module: Any, model: Any, tolerance: float, joined: dict[int, FusedLinear]) -> Way | None:
    """A shortcut for this module that gives what it gives."""
    weight, name = getattr(module, "weight", None), type(module).__name__
    parts = dict(module.named_children())
    if isinstance(weight, torch.Tensor) and weight.dim() == 1 and (name in T5_NORMS or "RMSNorm" in name):
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
        ways: list[Way] = [_norm(ref(module), eps, offset, early) for offset in (0.0, 1.0) for early in (True, False)]
        size = len(weight)
    elif name == "NewGELUActivation":
        ways, size = [partial(new_gelu, twice=twice) for twice in (True, False)], 64
    elif {"gate_proj", "up_proj", "down_proj", "act_fn"} == set(parts):
        both = joined.get(id(module.gate_proj))
        ways, size = [_gated(ref(module), gelu, both) for gelu in (False, True)], module.gate_proj.in_features
        tolerance = max(tolerance, SUMMED)
    else:
        return None
    x = torch.randn(64, 1, size, device=model.device, dtype=model.dtype, generator=torch.Generator(model.device).manual_seed(0))
    its, found = module(x), [way(x) for way in ways]
    # Of those that agree, the one that rounds as the module does: in half precision others are near, too.
    good = [(int((mine != its).sum()), i) for i, mine in enumerate(found) if same(mine, its, tolerance)]
    return ways[min(good)[1]] if good else None


def _agrees(joined: FusedLinear, model: Any, tolerance: float) -> bool:
    """Whether the products of a group are those of its parts."""
    parts = joined.parts
    x = torch.randn(5, 1, parts[0].in_features, device=model.device, dtype=model.dtype)
    return same(joined(x), torch.cat([part(x) for part in parts], -1), tolerance)


# -- norms and activations ---------------------------------------------------------------------------------------------------


def _norm(module: Any, eps: float, offset: float, early: bool) -> Way:
    def forward(x: torch.Tensor) -> torch.Tensor:
        sums = getattr(_now, "sums", None)
        return rms_norm(x, module().weight, eps, offset, early, None if sums is None else sums.take(x))

    return forward


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, early: bool, added: Sum | None = None
) -> torch.Tensor:
    """x over its root mean square, times weight + offset; `early`: rounded before the weight comes, as Llama does it. `added`: x
    is the last of these, not there yet, and the sum of the others."""
    D = x.shape[-1]
    if added is not None or x.is_contiguous():
        inner, outer_row, row = 1, D, D
    elif x.dim() in (3, 4) and x.shape[1] == 1 and x.stride(-1) == 1:  # rows, or their heads, that are part of something wider
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
    """A row a program; `inner` of them are `row` apart, then comes the next `outer_row`. ADD: x is first + second, and kept."""
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
    """As torch computes it there."""
    if CUDA:
        return libdevice.tanh(x)
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


def new_gelu(x: torch.Tensor, twice: bool) -> torch.Tensor:
    """GELU by tanh as GPT-2's module writes it, rounded wherever that rounds; `twice`: a cube is two products."""
    out, x = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.contiguous()
    sizes = {"TWICE": twice, "CUDA": x.is_cuda, "BLOCK": 1024}
    gelu_as_written[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), **sizes, num_warps=4)
    return out


@triton.jit
def gelu_as_written(x, out, N, TWICE: tl.constexpr, CUDA: tl.constexpr, BLOCK: tl.constexpr):
    """A block of numbers a program."""
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


def _gated(module: Any, gelu: bool, joined: FusedLinear | None) -> Way:
    def forward(x: torch.Tensor) -> torch.Tensor:
        own = module()
        gate, up = (own.gate_proj(x), own.up_proj(x)) if joined is None else joined(x).chunk(2, -1)
        return own.down_proj(gated(gate, up, gelu))

    return forward


def gated(gate: torch.Tensor, up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """The activation of `gate`, SiLU or the tanh form of GELU, times `up`; both of rows that are equally far apart."""
    out, N = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device), gate.shape[-1]
    row = gate.stride(-2)
    activate[(gate.numel() // N, triton.cdiv(N, 1024))](
        gate, up, row, out, N, GELU=gelu, CUDA=gate.is_cuda, BLOCK=1024, num_warps=4
    )  # fmt: skip
    return out


@triton.jit
def activate(gate, up, row, out, N, GELU: tl.constexpr, CUDA: tl.constexpr, BLOCK: tl.constexpr):
    """A block of a row a program."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(gate + r * row + i, mask=i < N, other=0.0)
    x = raw.to(tl.float32)
    if GELU:
        z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (1.0 + tanh(z, CUDA))
    elif CUDA:
        x = tl.div_rn(x, 1.0 + libdevice.exp(-x))  # as torch computes it there
    else:
        x = x / (1.0 + tl.exp(-x))
    x = x.to(raw.dtype).to(tl.float32)
    tl.store(out + r * N + i, x * tl.load(up + r * row + i, mask=i < N, other=0.0).to(tl.float32), mask=i < N)
