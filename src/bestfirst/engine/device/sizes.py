"""Sizes: what kernels need to know when they are compiled."""

from __future__ import annotations


def power(n: int) -> int:
    """The least power of two that is no less than n."""
    return 1 << (n - 1).bit_length()
