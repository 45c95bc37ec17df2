"""FusedLinear: linear modules that are given the same input, as one product: queries, keys and values; gate and up.

Small products cost their launches more than their numbers. No weight is kept twice: those of a group are laid side by side in
memory, and each module's parameter, the same object with the same numbers as before, is told to lie there. It has a storage of
its own all the same: who saves a model takes what shares one for tied weights, and leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.nn import functional as F

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class FusedLinear:
    """A group of linear modules, and the memory that their weights share. Does not keep the modules in memory."""

    def __init__(self, parts: list[Any], weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._parts = [ref(part) for part in parts]
        self.sizes = [int(part.out_features) for part in parts]
        self._weight, self._bias = weight, bias
        self._given: Any = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    @property
    def parts(self) -> list[Any]:
        return [part() for part in self._parts]

    def in_place(self) -> bool:
        """Whether the parameters still are where they were laid: nobody has moved the model or given it others."""
        pairs = [(self._weight, [part.weight for part in self.parts])]
        if self._bias is not None:
            pairs.append((self._bias, [part.bias for part in self.parts]))
        for together, some in pairs:
            places = [part.data_ptr() for part in together.split(self.sizes)]
            if [each.data_ptr() for each in some] != places or some[0].dtype != together.dtype:
                return False
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What all of them make of x, one behind the other in the last dimension."""
        if self.in_place():
            return F.linear(x, self._weight, self._bias)
        return torch.cat([F.linear(x, part.weight, part.bias) for part in self.parts], -1)

    def forward_of(self, index: int) -> Any:
        """In place of the `forward` of one of them: the first that is given something asks for all."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            if self._given is not x:
                self._given, self._outputs = x, self(x).split(self.sizes, -1)
            out = self._outputs[index]
            if index == len(self.sizes) - 1:
                self._given, self._outputs = None, ()
            return out

        return forward


_joined: WeakKeyDictionary[Any, FusedLinear] = WeakKeyDictionary()  # by the first module of a group


def groups(model: Any) -> Iterator[FusedLinear]:
    """Those of a model that can be joined. Weights are moved once, unless that needs too much memory."""
    many: dict[int, int] = {}
    for module in model.modules():
        for each in module._parameters.values():
            many[id(each)] = many.get(id(each), 0) + 1
    moved = False
    try:
        for module in model.modules():
            for names in GROUPS:
                parts: list[Any] = [getattr(module, name, None) for name in names]
                if not _alike(parts, many):
                    continue
                if (known := _joined.get(parts[0])) is None or known.parts != parts or not known.in_place():
                    bias = None if parts[0].bias is None else _move([part.bias for part in parts])
                    known = _joined[parts[0]] = FusedLinear(parts, _move([part.weight for part in parts]), bias)
                    moved = True
                yield known
    except (RuntimeError, BufferError, TypeError):  # no memory, or none that can be shared: the others stay as they are
        return
    finally:
        if moved and model.device.type == "cuda":
            torch.cuda.empty_cache()  # what was left in pieces is of no use to larger tensors


def _alike(parts: list[Any], many: dict[int, int]) -> bool:
    """Whether these are plain linear modules of the same input, whose weights are theirs alone."""
    if any(type(part) is not torch.nn.Linear for part in parts) or len({part.in_features for part in parts}) > 1:
        return False
    if len({part.bias is None for part in parts}) > 1:
        return False
    own = [each for part in parts for each in (part.weight, part.bias) if each is not None]
    plain = all(type(each) is torch.nn.Parameter and each.is_contiguous() and many[id(each)] == 1 for each in own)
    if not plain or len({(each.dtype, each.device) for each in own}) > 1 or any(each.is_inference() for each in own):
        return False
    return all(each.untyped_storage().nbytes() == each.numel() * each.itemsize for each in own)


def _move(some: list[torch.Tensor]) -> torch.Tensor:
    """Lay the weights or biases of a group side by side, each in a storage of its own; where they lie now."""
    with torch.inference_mode(False), torch.no_grad():
        together = torch.cat([each.detach() for each in some])
        places = [torch.from_dlpack(part) for part in together.split([len(each) for each in some])]
        for each, place in zip(some, places, strict=True):
            each.data = place
    return together
