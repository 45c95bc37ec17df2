"""Joined: linear modules that are given the same input, as one product: queries, keys and values; gate and up.

Small products cost their launches more than their numbers. No weight is kept twice: those of a group are laid side by side in
memory, where each module's parameter is a view of its part, the same object with the same numbers as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import torch
from torch.nn import functional as F

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Joined:
    """A group of linear modules. Does not keep them in memory."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = [ref(part) for part in parts]
        self.sizes = [int(part.out_features) for part in parts]
        self._given: Any = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    @property
    def parts(self) -> list[Any]:
        return [part() for part in self._parts]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What all of them make of x, one behind the other in the last dimension."""
        weight, bias = (_together(self.parts, name) for name in ("weight", "bias"))
        return F.linear(x, weight, bias)  # type: ignore[arg-type]

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


def _together(parts: list[Any], name: str) -> torch.Tensor | None:
    """The weights or biases of a group, which lie side by side."""
    some = [getattr(part, name) for part in parts]
    if some[0] is None:
        return None
    size = (sum(len(each) for each in some), *some[0].shape[1:])
    return some[0].detach().as_strided(size, some[0].stride(), some[0].storage_offset())


def _side_by_side(some: list[torch.Tensor]) -> bool:
    ends = [each.data_ptr() + each.numel() * each.itemsize for each in some]
    same = len({each.untyped_storage().data_ptr() for each in some}) == 1
    return same and all(end == after.data_ptr() for end, after in zip(ends, some[1:], strict=False))


def groups(model: Any) -> Iterator[Joined]:
    """Those of a model that can be joined. Weights of those that are not side by side are moved, unless that needs too much."""
    many: dict[int, int] = {}
    for module in model.modules():
        for each in module._parameters.values():
            many[id(each)] = many.get(id(each), 0) + 1
    moved = False
    try:
        for module in model.modules():
            for names in GROUPS:
                parts = [getattr(module, name, None) for name in names]
                if not _alike(parts, many):
                    continue
                for name in ("weight", "bias"):
                    moved = (getattr(parts[0], name) is not None and _move(parts, name)) or moved
                yield Joined(parts)
    except torch.OutOfMemoryError:
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
    alone = all(each.untyped_storage().nbytes() == each.numel() * each.itemsize for each in own)
    return alone or _side_by_side([part.weight for part in parts])


def _move(parts: list[Any], name: str) -> bool:
    """Lay the weights or biases of a group side by side; whether they were not."""
    some = [getattr(part, name) for part in parts]
    if _side_by_side(some):
        return False
    with torch.inference_mode(False), torch.no_grad():
        together = torch.cat([each.detach() for each in some])
        for each, part in zip(some, together.split([len(each) for each in some]), strict=True):
            each.data = part
    return True
