"""Whole searches on a GPU: beams, rows, decoder and top-k in one graph of kernels, which the host only sets off."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...decoding import Task
    from ...models.transformers import TransformersModel
    from .pilot import Pilot


def pilot_for(model: TransformersModel, task: Task) -> Pilot | None:
    """Who runs this decode on the device, if it can be run there: a GPU, Triton, and a kind of decode that `takes` knows."""
    if model.model.device.type != "cuda" or find_spec("triton") is None:
        return None
    from .pilot import Pilot, takes

    return Pilot(model, task) if takes(model, task) else None
