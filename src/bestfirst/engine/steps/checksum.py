"""Checksum: one number for the weights that a step has copied, so that a copy is known to be stale however they were changed.

torch counts what is written to a tensor, but not through `.data`, numpy or another process; so the kernel is asked
(`WrittenPages`), and what may have been written is read. Where it cannot be asked all is read, which takes as long as memory
does, on a thread of its own: beside a search, not before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch

from ..known import known
from .native import calls
from .native.libraries import available
from .pages import WrittenPages, whole_pages

if TYPE_CHECKING:
    from ...models.transformers import TransformersModel


def mixed(numbers: Any) -> int:
    """A number that depends on each of these and its place."""
    return calls.mixed(numbers) if numbers.dtype == np.int32 and available() else crc32(numbers)


SMALL, THERE = -1, -2  # where the sums of what fills no page, and of what is on a device, stand among those of large parameters


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
        here = [_numbers(_whole(each)).numpy() for each in every if each.device.type == "cpu"]
        pages = [whole_pages(numbers) for numbers in here]
        self._large = [numbers[inner] for numbers, inner in zip(here, pages, strict=True) if inner.stop]
        rest = [
            part for numbers, inner in zip(here, pages, strict=True) for part in (numbers[: inner.start], numbers[inner.stop :])
        ]
        self._small = [part.view(np.uint8) for part in rest if part.size]
        self._small.append(np.zeros(-sum(map(len, self._small)) % 4, np.uint8))
        self._weighers = weighers([each for each in every if each.device.type != "cpu"])
        self._thread: Thread | None = None
        self._now: dict[int, Any] = {}
        self._pages: WrittenPages | None = None
        with suppress(OSError, ImportError):
            self._pages = WrittenPages(self._large) if self._large else None
        self._begin(range(len(self._large)))
        self._was = self._end()

    def begin(self) -> None:
        """Start to read the weights as they are now: those that may have been written to."""
        self._end()
        self._begin(range(len(self._large)) if self._pages is None else self._pages.written())

    def holds(self) -> bool:
        """Whether they were, when it began, what they were at first. Waits for the thread."""
        return self._end().items() <= self._was.items()

    def still_holds(self) -> bool:
        """Whether the weights are, now, what they were at first."""
        self.begin()
        return self.holds()

    def _begin(self, large: Iterable[int]) -> None:
        self._now = {SMALL: int(mixed(np.concatenate(self._small).view(np.int32)))}
        if numbers := list(large):
            self._thread = Thread(target=self._read, args=[numbers], daemon=True)
            self._thread.start()
        self._there = [weigh() for weigh in self._weighers]

    def _read(self, large: list[int]) -> None:
        self._now |= {number: int(mixed(self._large[number])) for number in large}

    def _end(self) -> dict[int, Any]:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return {**self._now, THERE: tuple(map(int, self._there))}


def _whole(weights: torch.Tensor) -> torch.Tensor:
    """The same memory, where it can be looked at in one piece; else all that it is part of."""
    if weights.is_contiguous():
        return weights
    return weights.new_empty(0, dtype=torch.uint8).set_(weights.untyped_storage())


def _numbers(weights: torch.Tensor) -> torch.Tensor:
    """Their bits, as integers of four bytes where that is possible."""
    flat = weights.reshape(-1)
    size = flat.element_size()
    return flat.view(torch.int32 if size * flat.numel() % 4 == 0 and size * flat.storage_offset() % 4 == 0 else torch.uint8)


def weighers(weights: list[torch.Tensor]) -> list[Callable[[], Any]]:
    """What gives numbers for weights that are not on the CPU: on a GPU without waiting for it."""
    alike: dict[Any, list[torch.Tensor]] = {}
    for each in weights:
        numbers = _numbers(_whole(each))
        alike.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    with suppress(ImportError):
        from ..device.weighing import Weighing

        return [Weighing(some) if device.type == "cuda" else partial(_fetched, some) for (device, _), some in alike.items()]
    return [partial(_fetched, some) for some in alike.values()]


def _fetched(weights: list[torch.Tensor]) -> int:
    return hash(tuple(mixed(each.cpu().numpy()) for each in weights))
