"""TorchScorer: scores hypotheses of many searches on a model of transformers, whatever step runs it, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from ..models import Source
from ..scoring import Score
from ..search import Hypothesis
from .steps.choose import step_for, warn_of_recomputing
from .steps.operations import only, top
from .tree_scorer import TreeScorer

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


class TorchScorer(TreeScorer):
    """With `normalized` unset, `process` gets the model's scores as they are, as in Hugging Face's greedy search."""

    mode = torch.inference_mode
    normalized = True

    def __init__(self, model: TransformersModel, score: Score) -> None:
        super().__init__(model, score, step_for(model))
        device = model.model.device
        self._banned = torch.tensor(model.banned, device=device) if model.banned else None

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            warn_of_recomputing(self.model)  # type: ignore[arg-type]
        super().start(roots)

    def _best(self, batch: Sequence[Hypothesis], logits: Any, width: int) -> tuple[Any, Any, Any]:
        logits = logits.float()
        allowed, width = self._allowed(batch, logits, width)
        wanted = any(y.wanted for y in batch)
        if self.score.plain and self.process is None and not wanted:
            return *self.runner.decoder.best(logits, width, self._banned, allowed), None
        logits = logits.contiguous()
        logprobs = torch.log_softmax(logits, -1).clamp_(max=0) if self.normalized else logits
        if self._banned is not None:
            logprobs[:, self._banned] = -inf
        if self.process is not None:
            logprobs = self.process(batch, logprobs)
        if allowed is not None:
            logprobs = only(logprobs, allowed)
        increments = ranked = self._increments(batch, logprobs)
        if wanted:
            ranked = increments.clone()
            for row, y in enumerate(batch):
                ranked[row, list(y.wanted)] = inf
        best, tokens = top(ranked, width)
        if wanted:
            best, order = increments.gather(1, tokens).sort(dim=1, descending=True, stable=True)
            tokens = tokens.gather(1, order)
        return best, tokens, None if self.score.plain else logprobs.gather(1, tokens)

    def _own(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.model.model.device)  # type: ignore[attr-defined]
