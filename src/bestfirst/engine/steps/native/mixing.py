"""mixed: a checksum as fast as memory is read. As `kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernels import compiled

u32 = np.uint32


@compiled()
def mixed(numbers: Any) -> Any:
    """A number that depends on each of these integers (n,) and its place: two are the same by chance only, one in 2^32."""
    total = np.uint64(0)
    for i in range(numbers.shape[0]):
        x = (u32(numbers[i]) ^ u32(i)) * u32(0x9E3779B1)  # products and shifts, so that no change makes up for another
        x = (x ^ (x >> u32(15))) * u32(0x85EBCA77)
        total += np.uint64(x)
    return total
