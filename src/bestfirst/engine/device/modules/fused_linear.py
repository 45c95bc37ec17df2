"""FusedLinear: linear modules with the same input as one matmul (QKV; gate and up).

Small matmuls cost more in launches than in arithmetic. No weight is stored twice: the weights of a group are moved side by side,
and each parameter, still the same object with the same numbers, points into that memory. Each has a storage object of its own,
because savers take parameters that share a storage for tied weights and leave one out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.nn import functional as F

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class FusedLinear:
    """A group of linear modules and the memory that their weights share. Holds only weak references to the modules."""

    def __init__(self, parts: list[Any], weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._parts = [ref(part) for part in parts]
        self.sizes = [int(part.out_features) for part in parts]
        self._weight, self._bias = weight, bias
        self._input: Any = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    @property
    def parts(self) -> list[Any]:
        return [part() for part in self._parts]

    def in_place(self) -> bool:
        """Whether the parameters still lie where they were put: the model was not moved and got no other parameters."""
        pairs = [(self._weight, [part.weight for part in self.parts])]
        if self._bias is not None:
            pairs.append((self._bias, [part.bias for part in self.parts]))
        for fused, parameters in pairs:
            places = [part.data_ptr() for part in fused.split(self.sizes)]
            if [each.data_ptr() for each in parameters] != places or parameters[0].dtype != fused.dtype:
                return False
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of all modules for x, concatenated in the last dimension."""
        if self.in_place():
            return F.linear(x, self._weight, self._bias)
        return torch.cat([F.linear(x, part.weight, part.bias) for part in self.parts], -1)

    def forward_of(self, index: int) -> Any:
        """Replaces `forward` of one module: the first that is called with an input computes the outputs of all."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            if self._input is not x:
                self._input, self._outputs = x, self(x).split(self.sizes, -1)
            out = self._outputs[index]
            if index == len(self.sizes) - 1:
                self._input, self._outputs = None, ()
            return out

        return forward


_fused: WeakKeyDictionary[Any, FusedLinear] = WeakKeyDictionary()  # by the first module of a group


def fused_groups(model: Any) -> Iterator[FusedLinear]:
    """The groups of a model that can be fused. Their weights are moved the first time; groups that memory is too short for are
    left out."""
    owners: dict[int, int] = {}  # of each parameter
    for module in model.modules():
        for each in module._parameters.values():
            owners[id(each)] = owners.get(id(each), 0) + 1
    moved = False
    try:
        for module in model.modules():
            for names in GROUPS:
                parts: list[Any] = [getattr(module, name, None) for name in names]
                if not _can_fuse(parts, owners):
                    continue
                if (known := _fused.get(parts[0])) is None or known.parts != parts or not known.in_place():
                    bias = None if parts[0].bias is None else _move_together([part.bias for part in parts])
                    known = _fused[parts[0]] = FusedLinear(parts, _move_together([part.weight for part in parts]), bias)
                    moved = True
                yield known
    except (RuntimeError, BufferError, TypeError):  # no memory, or none that can be shared: the others stay as they are
        return
    finally:
        if moved and model.device.type == "cuda":
            torch.cuda.empty_cache()  # the freed pieces are too small for larger tensors


def _can_fuse(parts: list[Any], owners: dict[int, int]) -> bool:
    """Whether these are plain linear modules with inputs of the same size, whose weights no other module has."""
    if any(type(part) is not torch.nn.Linear for part in parts) or len({part.in_features for part in parts}) > 1:
        return False
    if len({part.bias is None for part in parts}) > 1:
        return False
    own = [each for part in parts for each in (part.weight, part.bias) if each is not None]
    plain = all(type(each) is torch.nn.Parameter and each.is_contiguous() and owners[id(each)] == 1 for each in own)
    if not plain or len({(each.dtype, each.device) for each in own}) > 1 or any(each.is_inference() for each in own):
        return False
    return all(each.untyped_storage().nbytes() == each.numel() * each.itemsize for each in own)


def _move_together(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Move parameters side by side, each with a storage object of its own; returns the memory that they share."""
    with torch.inference_mode(False), torch.no_grad():
        fused = torch.cat([each.detach() for each in parameters])
        places = [torch.from_dlpack(part) for part in fused.split([len(each) for each in parameters])]
        for each, place in zip(parameters, places, strict=True):
            each.data = place
    return fused
