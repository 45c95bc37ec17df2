"""Checksum: detects that a model's weights have changed since a step copied them, however they were written to.

torch counts writes to a tensor, but not those through `.data`, numpy or another process. On Linux the operating system's kernel
is asked which pages were written to (`WrittenPages`), and only those arrays are read again. Where it cannot be asked, all weights
are read, which takes as long as memory bandwidth allows: on a thread of its own, while a search runs, not before it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any
from zlib import crc32

import numpy as np
import torch

from ...models.transformers import TransformersModel
from ..model_record import record_of
from .native import calls
from .native.registers import available


def mixed(numbers: Any) -> int:
    """A checksum of these numbers that depends on each value and its position."""
    return calls.mixed(numbers) if numbers.dtype == np.int32 and available() else crc32(numbers)


SMALL, ON_DEVICE = -1, -2  # keys of two sums among those of large parameters: parts that fill no page, and weights on a device


def begin(model: TransformersModel) -> Checksum | None:
    """Start to read the weights that the last decode's step has copies of. Without a checksum that step is dropped (None)."""
    shared = record_of(model)
    if shared.step is None or shared.step[0].checksum is None:
        shared.step = None
        return None
    checksum: Checksum = shared.step[0].checksum
    checksum.begin()
    return checksum


def make_checksum(model: TransformersModel) -> None:
    """Make a checksum of the weights that the last decode's step has copies of, unless there is one."""
    kept = record_of(model).step
    if kept is not None and kept[0].checksum is None:
        kept[0].checksum = Checksum(kept[1].copied_weights(model.model))


class Checksum:
    """A checksum of parameters whose memory does not move (`Fingerprint` notices if it does): `begin` reads, `holds` compares."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        every = [parameter.detach() for parameter in parameters if parameter.numel()]
        on_cpu = [_numbers(_whole(each)).numpy() for each in every if each.device.type == "cpu"]
        pages = [(numbers, whole_pages(numbers)) for numbers in on_cpu]
        self._large = [numbers[inner] for numbers, inner in pages if inner.stop]
        rest = [part for numbers, inner in pages for part in (numbers[: inner.start], numbers[inner.stop :])]
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
        """Start to read the weights as they are now: only those that may have been written to, where that is known."""
        self._end()
        self._begin(range(len(self._large)) if self._pages is None else self._pages.written())

    def holds(self) -> bool:
        """Whether the weights, when `begin` was called, were those of the first reading. Waits for the thread."""
        return self._end().items() <= self._was.items()

    def still_holds(self) -> bool:
        """Whether the weights are now those of the first reading."""
        self.begin()
        return self.holds()

    def _begin(self, large: Iterable[int]) -> None:
        self._now = {SMALL: int(mixed(np.concatenate(self._small).view(np.int32)))}
        if numbers := list(large):
            self._thread = Thread(target=self._read, args=[numbers], daemon=True)
            self._thread.start()
        self._on_device = [weigh() for weigh in self._weighers]

    def _read(self, large: list[int]) -> None:
        self._now |= {number: int(mixed(self._large[number])) for number in large}

    def _end(self) -> dict[int, Any]:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return {**self._now, ON_DEVICE: tuple(map(int, self._on_device))}


def _whole(weights: torch.Tensor) -> torch.Tensor:
    """The weights as contiguous memory: themselves, or the whole storage that a strided view is part of."""
    if weights.is_contiguous():
        return weights
    return weights.new_empty(0, dtype=torch.uint8).set_(weights.untyped_storage())


def _numbers(weights: torch.Tensor) -> torch.Tensor:
    """Their bits as a flat int32 array, or uint8 where four bytes do not divide them."""
    flat = weights.reshape(-1)
    size = flat.element_size()
    return flat.view(torch.int32 if size * flat.numel() % 4 == 0 and size * flat.storage_offset() % 4 == 0 else torch.uint8)


def weighers(weights: list[torch.Tensor]) -> list[Callable[[], Any]]:
    """Functions that sum up weights that are not on the CPU, per device and dtype; on a GPU without waiting for the result."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for each in weights:
        numbers = _numbers(_whole(each))
        groups.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    if not groups:  # do not import Triton needlessly
        return []
    with suppress(ImportError):
        from ..device.kernels.weight_sums import WeightSums

        return [WeightSums(group) if device.type == "cuda" else partial(_cpu_sum, group) for (device, _), group in groups.items()]
    return [partial(_cpu_sum, group) for group in groups.values()]


def _cpu_sum(weights: list[torch.Tensor]) -> int:
    return hash(tuple(mixed(each.cpu().numpy()) for each in weights))


# -- written pages, as the operating system tracks them --------------------------------------------------------------------

PAGE = 4096
USERFAULTFD = {"x86_64": 323, "aarch64": 282}
USER_MODE_ONLY = 1
API, FEATURES = 0xAA, 1 << 0 | 1 << 13 | 1 << 15  # write protection, of untouched pages too, asynchronous (without a handler)
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT, PAGEMAP_SCAN = 0xC018AA3F, 0xC020AA00, 0xC018AA06, 0xC0606610
REGISTER_WRITES, PROTECT, PROTECT_AGAIN, CHECK, WRITTEN = 2, 1, 1, 2, 2
REGIONS = 64  # listed by one scan; everything after the last counts as written


class WrittenPages:
    """Which of some arrays were written to, by any means, since the last question (Linux 6.7 and later).

    The arrays fill whole pages (`whole_pages`) of this process' private memory and do not move. Their pages are write-protected;
    the first write to one faults, and the operating system records it and lets it through (`userfaultfd(2)` with asynchronous
    write protection, `PAGEMAP_SCAN`). Finding out that nothing was written takes microseconds. Raises OSError where the system
    cannot do this, and for memory that other processes can write to.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        import fcntl

        self._ioctl = fcntl.ioctl
        self._process = os.getpid()
        places = [(each.ctypes.data, each.ctypes.data + each.nbytes) for each in arrays]
        _check_private(places)
        self._places = sorted((*place, number) for number, place in enumerate(places))
        self._ranges: list[list[int]] = []
        for begin, end, _ in self._places:
            if self._ranges and begin <= self._ranges[-1][1]:
                self._ranges[-1][1] = max(end, self._ranges[-1][1])
            else:
                self._ranges.append([begin, end])
        self._regions = (ctypes.c_uint64 * (3 * REGIONS))()  # begin, end and category of each region: the scan's output
        self._files: list[int] = []
        self._open()

    def _open(self) -> None:
        call = USERFAULTFD.get(platform.machine())
        if call is None or os.sysconf("SC_PAGE_SIZE") != PAGE:
            raise OSError("not known for this machine")  # the page size, or the number of the system call
        library = ctypes.CDLL(None, use_errno=True)
        faults = library.syscall(call, os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY)
        if faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        self._files.append(faults)
        self._files.append(os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))
        self._ioctl(faults, UFFDIO_API, bytearray(struct.pack("3Q", API, FEATURES, 0)))
        for begin, end in self._ranges:
            self._ioctl(faults, UFFDIO_REGISTER, bytearray(struct.pack("4Q", begin, end - begin, REGISTER_WRITES, 0)))
            self._protect(begin, end)

    def written(self) -> set[int]:
        """Indices of the arrays that may have been written to since the last call, or since this was made; in a forked child,
        whose memory is another, all."""
        if os.getpid() != self._process:
            return set(range(len(self._places)))
        found: set[int] = set()
        for begin, end in self._ranges:
            at, listed = ctypes.addressof(self._regions), REGIONS
            scan = bytearray(struct.pack("12Q", 96, PROTECT_AGAIN | CHECK, begin, end, 0, at, listed, 0, 0, WRITTEN, 0, WRITTEN))
            try:
                listed = self._ioctl(self._files[1], PAGEMAP_SCAN, scan)
                if listed == REGIONS:
                    self._protect(begin, end)
            except OSError:  # the address range was unmapped or mapped anew
                return set(range(len(self._places)))
            for i in range(listed):
                found |= self._overlapping(self._regions[3 * i], self._regions[3 * i + 1])
            if listed == REGIONS:
                found |= self._overlapping(struct.unpack_from("Q", scan, 32)[0], end)  # where the scan stopped
        return found

    def _protect(self, begin: int, end: int) -> None:
        self._ioctl(self._files[0], UFFDIO_WRITEPROTECT, bytearray(struct.pack("3Q", begin, end - begin, PROTECT)))

    def _overlapping(self, begin: int, end: int) -> set[int]:
        return {number for first, last, number in self._places if first < end and begin < last}

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def whole_pages(array: Any) -> slice:
    """The part of a flat array that fills whole pages; the pages at its two ends may hold other data as well."""
    address, size = array.ctypes.data, array.itemsize
    first, last = -(-address // PAGE) * PAGE, (address + array.nbytes) // PAGE * PAGE
    return slice((first - address) // size, (last - address) // size) if first < last else slice(0, 0)


def _check_private(places: Sequence[tuple[int, int]]) -> None:
    """Raise OSError unless all of these address ranges are memory that no other process shares."""
    shared = []
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            where, rights = line.split()[:2]
            if rights[3] != "p":
                begin, _, end = where.partition("-")
                shared.append((int(begin, 16), int(end, 16)))
    if any(first < end and begin < last for first, last in places for begin, end in shared):
        raise OSError("shared memory")
