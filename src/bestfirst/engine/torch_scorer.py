"""TorchScorer: scores hypotheses of many searches on a model of transformers, whatever step runs it, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..models import Source
from ..models.transformers import TransformersModel
from ..scoring import Score
from ..search import Hypothesis
from .steps.choose import step_for, warn_of_recomputing
from .steps.operations import top
from .tree_scorer import TreeScorer


class TorchScorer(TreeScorer):
    """Works with tensors, where the model is."""

    mode = torch.inference_mode

    def __init__(self, model: TransformersModel, score: Score) -> None:
        super().__init__(model, score, step_for(model))
        device = model.model.device
        self._banned = torch.tensor(model.banned, device=device) if model.banned else None

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            warn_of_recomputing(self.model)  # type: ignore[arg-type]
        super().start(roots)

    def _whole(self, logits: Any) -> Any:
        return logits.float().contiguous()

    def _top(self, ranked: Any, width: int) -> Any:
        return top(ranked, width)[1]

    def _own(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.model.model.device)  # type: ignore[attr-defined]
