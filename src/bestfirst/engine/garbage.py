"""Garbage: Python's collection of cycles, off while searches run, on while a model of the user's own does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = 0  # how many `no_garbage_collection` are entered that found it on


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Searches make many objects and take them apart themselves; looking for garbage among them costs more than the search."""
    global _paused
    enabled = gc.isenabled()
    gc.disable()
    _paused += enabled
    try:
        yield
    finally:
        if enabled:
            _paused -= 1
            gc.enable()


@contextmanager
def collecting() -> Iterator[None]:
    """A model of the user's own may leave cycles behind, as large as it likes: while it runs they are collected as usual."""
    again = _paused > 0 and not gc.isenabled()
    if again:
        gc.enable()
    try:
        yield
    finally:
        if again:
            gc.disable()
