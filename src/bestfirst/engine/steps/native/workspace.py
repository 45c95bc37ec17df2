"""Arrays: memory that torch multiplies in and kernels work on, kept from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Array(NamedTuple):
    """The same numbers as both see them."""

    t: torch.Tensor
    n: Any  # numpy.ndarray


class Workspace:
    """Named arrays of given widths, for as many rows as are asked for: large results are not allocated at every step."""

    def __init__(self, **widths: int) -> None:
        self._widths = widths
        self._memory: dict[str, torch.Tensor] = {}
        self._views: dict[int, dict[str, Array]] = {}
        self._rows = 0

    def of(self, rows: int) -> dict[str, Array]:
        """The arrays, (rows, width) each; their contents are those of the last use."""
        if rows > self._rows:
            self._rows = 2 * rows
            self._memory = {name: torch.empty(self._rows, width) for name, width in self._widths.items()}
            self._views = {}
        if rows not in self._views:
            views = {name: memory[:rows] for name, memory in self._memory.items()}
            self._views[rows] = {name: Array(view, view.numpy()) for name, view in views.items()}
        return self._views[rows]
