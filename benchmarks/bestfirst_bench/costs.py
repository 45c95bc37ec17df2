"""Costs: seconds and memory of a block of work, on a CPU or a GPU, and the batch size that is fastest."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
FIRST_BATCH = 64
SLOWER = 1.2  # a batch size that takes so much longer than the best ends the search for it


class HasSeconds(Protocol):
    seconds: float


AnyRun = TypeVar("AnyRun", bound=HasSeconds)


def fastest_batch(run: Callable[[int], AnyRun], inputs: int) -> tuple[int, AnyRun]:
    """The batch size with which `run` is fastest, and that run: twice as large each time, until it takes a fifth longer than
    the best, holds all inputs, or memory ends."""
    import torch

    found: dict[int, AnyRun] = {}
    size, grows = FIRST_BATCH, True
    while size and (grows or not found):
        try:
            found[size] = run(size)
            grows = grows and size < inputs and found[size].seconds <= SLOWER * min(each.seconds for each in found.values())
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            grows = False
        size = 2 * size if grows else size // 2
    if not found:
        raise ValueError("the model does not fit into this GPU's memory with even one input")
    best = min(found, key=lambda size: found[size].seconds)
    return best, found[best]


def gpu_seconds(work: Callable[[], Any]) -> float:
    """The time that a GPU's kernels and copies take in this work: a profiler's, which slows down all but them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return float(sum(e.device_time for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA)) / 1e6


@dataclass
class Peak:
    """In MiB; meaningful after the block."""

    mib: float = 0.0


@contextmanager
def peak_memory(gpu_weights: int | None = None) -> Iterator[Peak]:
    """The peak of resident memory in the block, less what was resident before it. Where the kernel cannot reset the peak
    (anything but Linux), what the process's all-time peak rose by. On a GPU, what was allocated there, less the model's bytes."""
    gc.collect()
    peak = Peak()
    if gpu_weights is not None:
        import torch

        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.mib = (torch.cuda.max_memory_allocated() - gpu_weights) / 2**20
        return
    try:
        RESET.write_text("5")
        before, highest = _status("VmRSS"), lambda: _status("VmHWM")
    except OSError:
        before, highest = _highest(), _highest
    yield peak
    peak.mib = max(0.0, highest() - before)


def _status(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def _highest() -> float:
    import resource  # which Windows does not have; nothing asks for it there before it is measured

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
