"""Which decoder runs a model: the fused one of its architecture, its own modules on the tree, or plain recomputation.

None is trusted by name. The first time a model is decoded with, a candidate scores a few branching hypotheses of the model's own
vocabulary, and is taken only if it agrees with the model run from scratch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fused_bart import FusedBart
from .hooked import HookedDecoder

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


def decoder_for(model: TransformersModel) -> Any:
    if FusedBart.takes(model.model):
        return FusedBart(model.model)
    return HookedDecoder(model.model)
