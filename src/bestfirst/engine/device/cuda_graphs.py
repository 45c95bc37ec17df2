"""Asynchronous work on a device: CUDA graphs of kernel launches, and non-blocking transfers in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from transformers.utils import import_utils

_sync_debug_lock = Lock()  # the debug mode and the patches of `waits_for_device` are the whole process'


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):  # noqa: ANN201, N803
    """The first line of a kernel. OVERLAP: it was launched while the previous kernel runs (programmatic dependent launch). Wait
    for that one to finish, then let the next one launch."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@cache
def overlapping(device: torch.device) -> dict[str, Any]:
    """Launch options for `wait_for_previous` (Hopper and later): in small steps, launches alone take longer than the work."""
    nvidia = device.type == "cuda" and torch.version.hip is None  # capabilities of other vendors are numbered otherwise
    able = nvidia and torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")
    return {"OVERLAP": True, "launch_pdl": True} if able else {}


class Graphs:
    """CUDA graphs by name. Without a GPU, or if it waits for the device (some mixtures of experts do), work runs eagerly."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._graphs: dict[Hashable, Any] = {}
        self._pool: Any = None

    def run(self, name: Hashable, work: Callable[[], None]) -> None:
        """Replay the graph of this work, captured at the first call. That call also runs it eagerly, twice: repeating the work
        must do no harm."""
        if not self._cuda:
            work()
            return
        if name not in self._graphs:
            self._graphs[name] = self._record(work)
        graph = self._graphs[name]
        work() if graph is None else graph.replay()

    def _record(self, work: Callable[[], None]) -> Any:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # compiles kernels, and allocates what is allocated once
            position = waits_for_device(work)
        torch.cuda.current_stream().wait_stream(stream)
        if position is not None:
            warnings.warn(
                f"a step of this model waits for the device ({position}): its launches cannot be recorded, and are slower",
                stacklevel=2,
            )
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # other threads use the device
            work()
        self._pool = graph.pool()
        return graph


def waits_for_device(work: Callable[[], None]) -> str | None:
    """Do this work; returns the file and line where it first synchronized with the device, which no graph can capture, or None.
    Models skip some checks while a graph is captured (whether anything is padding, say); they skip them here too."""
    caught: list[tuple[int, Any]] = []  # by thread

    def catch(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        caught.append((get_ident(), warnings.WarningMessage(message, category, filename, lineno)))

    with _sync_debug_lock, warnings.catch_warnings():
        before, capturing = torch.cuda.get_sync_debug_mode(), import_utils.is_cuda_stream_capturing
        warnings.simplefilter("always")
        warnings.showwarning = catch  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        import_utils.is_cuda_stream_capturing = lambda: True
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
            import_utils.is_cuda_stream_capturing = capturing
    position = None
    for thread, each in caught:
        if "called a synchronizing" in str(each.message):
            if thread == get_ident() and position is None:
                position = f"{Path(each.filename).name}, line {each.lineno}"
        elif "Synchronization debug mode" not in str(each.message):  # torch announces the mode itself
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return position


def send(numbers: np.ndarray, device: torch.device, place: torch.Tensor | None = None) -> torch.Tensor:
    """Copy integers to the device, into `place` if given. Pinned memory: a copy from pageable memory waits for all that is
    queued."""
    pinned = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    pinned.numpy()[:] = numbers
    return pinned.to(device, non_blocking=True) if place is None else place.copy_(pinned, non_blocking=True)


class Transfer:
    """A copy of a device tensor to the host, queued behind all earlier work on the current stream."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._source = tensor
        self._event: Any = torch.cuda.Event() if tensor.is_cuda else None
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self.restart()

    def restart(self) -> Transfer:
        """Copy the tensor again, as it will be once all that is queued now has run, to the same memory on the host."""
        self._tensor.copy_(self._source, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._source.device))  # the copying stream, whatever device is current
        return self

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> Any:
        """Block until the copy is complete; returns it as an array, which the next `restart` overwrites."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()

    def __int__(self) -> int:
        """The only number of the tensor; blocks."""
        return int(self.wait()[0])
