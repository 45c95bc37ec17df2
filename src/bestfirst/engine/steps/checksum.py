"""Checksum: one number for the weights that a step has copied, so that a copy is known to be stale however they were changed.

torch counts what is written to a tensor, but not through `.data`, numpy or another process; so all of the numbers are read. That
takes as long as memory does, on a thread of its own: beside a search, not before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch

from ..known import known
from .native import calls
from .native.libraries import available

if TYPE_CHECKING:
    from ...models.transformers import TransformersModel


def mixed(numbers: Any) -> int:
    """A number that depends on each of these and its place."""
    return calls.mixed(numbers) if numbers.dtype == np.int32 and available() else crc32(numbers)


def begin(model: TransformersModel) -> Checksum | None:
    """Start to read the weights that the step of the last decode has copies of; a step that nobody has summed up is given up."""
    shared = known(model)
    if shared.step is None or shared.step[0].copied is None:
        shared.step = None
        return None
    checksum: Checksum = shared.step[0].copied
    checksum.begin()
    return checksum


def sum_up(model: TransformersModel) -> None:
    """Have a checksum of what the step of the last decode has copies of."""
    kept = known(model).step
    if kept is not None and kept[0].copied is None:
        kept[0].copied = Checksum(kept[1].copied(model.model))


class Checksum:
    """Of parameters that stay where they are (`Fingerprint` sees it if they do not)."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        every = [parameter.detach() for parameter in parameters if parameter.numel()]
        self._here = [_numbers(each).numpy() for each in every if each.device.type == "cpu"]
        self._there = [each for each in every if each.device.type != "cpu"]
        self._now: list[int] = []
        self._thread: Thread | None = None
        self.begin()
        self._was = self._end()

    def begin(self) -> None:
        """Start to read the weights as they are now."""
        self._end()
        if self._here:
            self._thread = Thread(target=self._read, daemon=True)
            self._thread.start()
        self._device = _weighed(self._there) if self._there else None

    def holds(self) -> bool:
        """Whether they were, when it began, what they were at first. Waits for the thread."""
        return self._end() == self._was

    def _read(self) -> None:
        self._now = [int(mixed(numbers)) for numbers in self._here]

    def _end(self) -> tuple[list[int], int]:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        device = getattr(self, "_device", None)
        return self._now, 0 if device is None else int(device)


def _numbers(weights: torch.Tensor) -> torch.Tensor:
    """Their bits, as integers of four bytes where that is possible."""
    flat = weights.reshape(-1)
    size = flat.element_size()
    return flat.view(torch.int32 if size * flat.numel() % 4 == 0 and size * flat.storage_offset() % 4 == 0 else torch.uint8)


def _weighed(weights: list[torch.Tensor]) -> torch.Tensor:
    """A sum of all bits of weights on a device, each integer times one that depends on its place. It is not waited for."""
    numbers = torch.cat([_numbers(each).to(torch.int32) for each in weights])
    places = torch.arange(len(numbers), dtype=torch.int32, device=numbers.device)
    return ((numbers ^ (places * -1640531535)) * (2 * places + 1)).sum()
