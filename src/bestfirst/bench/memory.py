"""Memory: how much a block needed at its peak, above what was there before."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """In MiB; meaningful after the block."""

    mib: float = 0.0


@contextmanager
def gpu_peak_above(weights: int) -> Iterator[Peak]:
    """The most that was allocated on the GPU in the block, less the model's own bytes."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    peak = Peak()
    yield peak
    peak.mib = (torch.cuda.max_memory_allocated() - weights) / 2**20


@contextmanager
def peak_above() -> Iterator[Peak]:
    """The peak of resident memory in the block, less what was resident before it. Where the kernel cannot reset the peak
    (anything but Linux), what the process's all-time peak rose by."""
    gc.collect()
    peak = Peak()
    resets = _reset()
    before = _field("VmRSS") if resets else _highest()
    yield peak
    peak.mib = max(0.0, (_field("VmHWM") if resets else _highest()) - before)


def _reset() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True


def _field(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def _highest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
