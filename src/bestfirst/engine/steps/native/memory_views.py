"""Memory views: what lies at an address, as an array; for compiled code alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """What lies at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit(inline="always")
def floats(address: int, shape: Any) -> Any:
    return carray(pointer(address), shape, np.float32)  # type: ignore[call-arg]


@njit(inline="always")
def doubles(address: int, shape: Any) -> Any:
    return carray(pointer(address), shape, np.float64)  # type: ignore[call-arg]


@njit(inline="always")
def ints(address: int, shape: Any) -> Any:
    return carray(pointer(address), shape, np.int32)  # type: ignore[call-arg]


@njit(inline="always")
def longs(address: int, shape: Any) -> Any:
    return carray(pointer(address), shape, np.int64)  # type: ignore[call-arg]


@njit(inline="always")
def octets(address: int, shape: Any) -> Any:
    return carray(pointer(address), shape, np.uint8)  # type: ignore[call-arg]
