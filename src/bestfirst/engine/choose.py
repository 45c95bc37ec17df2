"""Which decoder runs a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .hooked import HookedDecoder

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


def decoder_for(model: TransformersModel) -> Any:
    return HookedDecoder(model.model)
