"""Which engine runs jobs on a model, and who asks the model on the host: the one place where either is made."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from ..models import Model
from ..scoring import Score
from ..settings import Decoding
from .engine import Engine
from .host import HostEngine
from .scorer import ModelScorer, Scorer


def engine_for(model: Model, decoding: Decoding, adapt: Callable[[Scorer], None] | None = None) -> Engine:
    """Who runs jobs on this model: a GPU's own searches where they can be run there, with the host for the rest.

    `decoding` tells what all jobs share: how scores add up, the largest beam, the row budget, the bound on memory. `adapt` may
    change how the host's scorer works (`generate` adds logits processors); then nothing runs on the device.
    """

    def host() -> HostEngine:
        scorer = scorer_for(model, decoding.objective)
        if adapt is not None:
            adapt(scorer)
        return HostEngine(scorer, decoding)

    if adapt is None and model.on_gpu and find_spec("triton"):
        from .device import DeviceEngine

        if DeviceEngine.available(model):  # type: ignore[arg-type]
            return DeviceEngine(model, decoding, host)  # type: ignore[arg-type]
    return host()


def scorer_for(model: Model, score: Score) -> Scorer:
    """Who asks this model on behalf of searches: Hugging Face models run on a tree of keys and values, others as they are."""
    if not model.hugging_face:
        return ModelScorer(model, score)
    from .tree_scorer import TreeScorer

    return TreeScorer(model, score)  # type: ignore[arg-type]
