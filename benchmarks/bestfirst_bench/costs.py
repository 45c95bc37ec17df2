"""Costs: time and memory of a block of work, on a CPU or a GPU, and a search for the fastest batch size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .peers import PeerRun

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
FIRST_BATCH = 64
SLOWER = 1.2  # the search for a batch size ends when one takes this many times as long as the best


def fastest_batch(run: Callable[[int], PeerRun], inputs: int) -> tuple[int, PeerRun]:
    """The batch size with which `run` is fastest, and that run. Doubles the size until a run takes a fifth longer than the best,
    holds all inputs, or runs out of GPU memory; then halves it until something fits. ValueError if not even one input does."""
    import torch

    runs: dict[int, PeerRun] = {}
    size, grows = FIRST_BATCH, True
    while size and (grows or not runs):
        try:
            runs[size] = run(size)
            grows = grows and size < inputs and runs[size].seconds <= SLOWER * min(each.seconds for each in runs.values())
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            grows = False
        size = 2 * size if grows else size // 2
    if not runs:
        raise ValueError("the model does not fit into this GPU's memory with even one input")
    best = min(runs, key=lambda size: runs[size].seconds)
    return best, runs[best]


def gpu_seconds(work: Callable[[], Any]) -> float:
    """The time in which a GPU runs kernels or copies of this work, from a profiler, which slows down everything but those."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    on_gpu = [each.time_range for each in seen.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    return covered([(each.start, each.end) for each in on_gpu]) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans (start, end). Kernels overlap: one may be launched before the one before it has ended."""
    length, covered_to = 0.0, -inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return length


@dataclass
class Peak:
    """Peak memory in MiB; set at the end of the block."""

    mib: float = 0.0


@contextmanager
def peak_memory(gpu_weights: int | None = None) -> Iterator[Peak]:
    """The peak of resident memory in the block minus what was resident before; not on Linux, the rise of the process's all-time
    peak, which cannot be reset there. With `gpu_weights` (the model's bytes), the peak of GPU memory minus those."""
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
    import resource  # not on Windows, so only imported when needed

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
