"""WrittenPages: which arrays were written to, by whatever means, as the kernel counts it (Linux 6.7 and later).

A page of memory is protected; the first to write to it meets the kernel, which lets it and takes note (`userfaultfd(2)` with
asynchronous write protection, `PAGEMAP_SCAN`). So it takes microseconds to know that nothing was written.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from typing import Any

PAGE = 4096
USERFAULTFD = {"x86_64": 323, "aarch64": 282}
USER_MODE_ONLY = 1
API, FEATURES = 0xAA, 1 << 0 | 1 << 13 | 1 << 15  # write protection, of pages that nobody has touched too, without a handler
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT, PAGEMAP_SCAN = 0xC018AA3F, 0xC020AA00, 0xC018AA06, 0xC0606610
REGISTER_WRITES, PROTECT, PROTECT_AGAIN, CHECK, WRITTEN = 2, 1, 1, 2, 2
REGIONS = 64  # that a scan lists; more are not told apart


class WrittenPages:
    """Of arrays of whole pages (`whole_pages`), in memory of this process alone, that stay where they are.

    Raises OSError where the kernel cannot do it, and for memory that others can write to without this process.
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
        self._found = (ctypes.c_uint64 * (3 * REGIONS))()  # begin, end and kind of each region
        self._files: list[int] = []
        self._open()

    def _open(self) -> None:
        call = USERFAULTFD.get(platform.machine())
        if call is None or os.sysconf("SC_PAGE_SIZE") != PAGE:
            raise OSError("not known for this machine")
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
        """The numbers of those that may have been written to since this was last asked, or since it was made.

        A child of this process, after a fork, gets all of them: its memory is not the one watched.
        """
        if os.getpid() != self._process:
            return set(range(len(self._places)))
        found: set[int] = set()
        for begin, end in self._ranges:
            at, listed = ctypes.addressof(self._found), REGIONS
            scan = bytearray(struct.pack("12Q", 96, PROTECT_AGAIN | CHECK, begin, end, 0, at, listed, 0, 0, WRITTEN, 0, WRITTEN))
            try:
                listed = self._ioctl(self._files[1], PAGEMAP_SCAN, scan)
                if listed == REGIONS:
                    self._protect(begin, end)
            except OSError:  # the memory there is another now
                return set(range(len(self._places)))
            for i in range(listed):
                found |= self._overlapping(self._found[3 * i], self._found[3 * i + 1])
            if listed == REGIONS:
                found |= self._overlapping(struct.unpack_from("Q", scan, 32)[0], end)  # from where it stopped
        return found

    def _protect(self, begin: int, end: int) -> None:
        self._ioctl(self._files[0], UFFDIO_WRITEPROTECT, bytearray(struct.pack("3Q", begin, end - begin, PROTECT)))

    def _overlapping(self, begin: int, end: int) -> set[int]:
        return {number for first, last, number in self._places if first < end and begin < last}

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def whole_pages(array: Any) -> slice:
    """The part of a flat array that fills its pages; what else is in the others is not the array's."""
    address, size = array.ctypes.data, array.itemsize
    first, last = -(-address // PAGE) * PAGE, (address + array.nbytes) // PAGE * PAGE
    return slice((first - address) // size, (last - address) // size) if first < last else slice(0, 0)


def _check_private(places: Sequence[tuple[int, int]]) -> None:
    """Raise OSError unless all of this is memory that no other process shares."""
    shared = []
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            where, rights = line.split()[:2]
            if rights[3] != "p":
                begin, _, end = where.partition("-")
                shared.append((int(begin, 16), int(end, 16)))
    if any(first < end and begin < last for first, last in places for begin, end in shared):
        raise OSError("shared memory")
