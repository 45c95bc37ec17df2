"""TorchScorer: scores hypotheses of many searches on a model of transformers, whatever step runs it, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from ..models import Source
from ..scoring import Score
from ..search import Hypothesis, Successors
from ..settings import Budget
from .runner import Row
from .steps.choose import step_for, warn_of_recomputing
from .steps.operations import only, top
from .tree_scorer import TreeScorer

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


class TorchScorer(TreeScorer):
    """With `normalized` unset, `process` gets the model's scores as they are, as in Hugging Face's greedy search."""

    normalized = True

    def __init__(self, model: TransformersModel, score: Score) -> None:
        super().__init__(model, score, step_for(model))
        device = model.model.device
        self._banned = torch.tensor(model.banned, device=device) if model.banned else None

    @torch.inference_mode()
    def budget(self) -> Budget:
        return super().budget()

    @torch.inference_mode()
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            warn_of_recomputing(self.model)  # type: ignore[arg-type]
        super().start(roots)

    @torch.inference_mode()
    def release(self, root: Hypothesis) -> None:
        super().release(root)

    @torch.inference_mode()
    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors]:
        return super().expand(batch, width)

    def _best(
        self, batch: Sequence[Hypothesis], rows: Sequence[Row], slots: Sequence[int], logits: Any, width: int
    ) -> tuple[Any, Any, Any]:
        logits = logits.float()
        allowed, width = self._allowed(batch, logits, width)
        wanted = any(y.wanted for y in batch)
        if self.score.plain and self.process is None and not wanted:
            best, tokens = self.runner.decoder.best(logits, width, self._banned, allowed)
            return best.cpu().numpy(), tokens.cpu().numpy(), None
        logits = logits.contiguous()
        logprobs = torch.log_softmax(logits, -1).clamp_(max=0) if self.normalized else logits
        if self._banned is not None:
            logprobs[:, self._banned] = -inf
        if self.process is not None:
            logprobs = self.process(batch, logprobs)
        if allowed is not None:
            logprobs = only(logprobs, allowed)
        increments = ranked = self._increments(rows, slots, logprobs)
        if wanted:
            ranked = increments.clone()
            for row, y in enumerate(batch):
                ranked[row, list(y.wanted)] = inf
        best, tokens = top(ranked, width)
        if wanted:
            best, order = increments.gather(1, tokens).sort(dim=1, descending=True, stable=True)
            tokens = tokens.gather(1, order)
        own = None if self.score.plain else logprobs.gather(1, tokens).cpu().numpy()
        return best.cpu().numpy(), tokens.cpu().numpy(), own

    def _own(self, array: torch.Tensor) -> torch.Tensor:
        return array
