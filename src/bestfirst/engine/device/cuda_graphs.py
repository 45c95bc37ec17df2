"""What the host does with a device without waiting for it: graphs of launches, and transfers both ways."""

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

_watching = Lock()  # what is watched, and how, is the whole process'


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):  # noqa: ANN201, N803
    """The first line of a kernel. OVERLAP: it was launched while the one before it runs, so as to be there when that is done.
    Wait for that; then let the next one come."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@cache
def overlapping(device: torch.device) -> dict[str, Any]:
    """Launch options of kernels that begin with `wait_for_previous`: on Hopper and later, programmatic dependent launch. Launches
    then overlap; in a small step they take longer than the work."""
    nvidia = device.type == "cuda" and torch.version.hip is None  # others count their generations otherwise
    able = nvidia and torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")
    return {"OVERLAP": True, "launch_pdl": True} if able else {}


class Graphs:
    """Recorded work, by name. Where there is no GPU, or where it waits for the device (some mixtures of experts do), it is done
    as it is."""

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
        recorded = self._recorded[name]
        work() if recorded is None else recorded.replay()

    def _record(self, work: Callable[[], None]) -> Any:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # what is made once is made
            where = waits_for_device(work)
        torch.cuda.current_stream().wait_stream(side)
        if where is not None:
            warnings.warn(
                f"a step of this model waits for the device ({where}): its launches cannot be recorded, and are slower",
                stacklevel=2,
            )
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # others go on meanwhile
            work()
        self._pool = graph.pool()
        return graph


def waits_for_device(work: Callable[[], None]) -> str | None:
    """Do this work; where it had to wait for numbers of the device, which no recording can. What models look at only while
    nothing is recorded (whether anything is padding, say) they do not look at here."""
    said: list[tuple[int, Any]] = []  # by which thread

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        said.append((get_ident(), warnings.WarningMessage(message, category, filename, lineno)))

    with _watching, warnings.catch_warnings():
        before, recording = torch.cuda.get_sync_debug_mode(), import_utils.is_cuda_stream_capturing
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        import_utils.is_cuda_stream_capturing = lambda: True
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
            import_utils.is_cuda_stream_capturing = recording
    where = None
    for thread, each in said:
        if "called a synchronizing" in str(each.message):
            if thread == get_ident() and where is None:
                where = f"{Path(each.filename).name}, line {each.lineno}"
        elif "Synchronization debug mode" not in str(each.message):  # torch's word on the mode itself
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return where


def send(numbers: np.ndarray, device: torch.device, place: torch.Tensor | None = None) -> torch.Tensor:
    """Integers for the device, or for a place there. The host does not wait until they are there: what is sent from ordinary
    memory, it would."""
    mine = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    mine.numpy()[:] = numbers
    return mine.to(device, non_blocking=True) if place is None else place.copy_(mine, non_blocking=True)


class Transfer:
    """A tensor that is on its way to the host, behind all that was queued on the device before."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._source = tensor
        self._event: Any = torch.cuda.Event() if tensor.is_cuda else None
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self.again()

    def again(self) -> Transfer:
        """The tensor as it will be now, in the same place on the host."""
        self._tensor.copy_(self._source, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._source.device))  # where it is copied, whatever device is current
        return self

    def here(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> Any:
        """The tensor as an array."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()

    def __int__(self) -> int:
        """Of a single number."""
        return int(self.wait()[0])
