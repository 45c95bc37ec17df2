"""Graphs: work of a kind that is always the same launches is recorded once, and then set off by one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Graphs:
    """Recorded work, by name. Where there is no GPU it is done as it is."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._recorded: dict[Hashable, Any] = {}
        self._pool: Any = None

    def run(self, name: Hashable, work: Callable[[], None]) -> None:
        """Do this work, which must do no harm if it is done twice: the first time it is, so that its kernels are compiled."""
        if not self._cuda:
            work()
            return
        if name not in self._recorded:
            self._recorded[name] = self._record(work)
        self._recorded[name].replay()

    def _record(self, work: Callable[[], None]) -> Any:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = graph.pool()
        return graph
