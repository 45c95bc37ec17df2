"""Mail: what goes between the host and the device while neither waits for the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def sent(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """Integers for the device. The host does not wait until they are there: what is sent from ordinary memory, it would."""
    mine = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    mine.numpy()[:] = numbers
    return mine.to(device, non_blocking=True)


class Mail:
    """A tensor that is on its way to the host, behind all that was queued on the device before."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        if not tensor.is_cuda:
            self._tensor = tensor.clone()
            return
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._tensor.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def here(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> Any:
        """The tensor as an array."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()
