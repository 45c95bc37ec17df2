"""Decoder: what runs a step's rows on a model. Which one runs which model is `choose`'s business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from .sources import Sources
from .top import top
from .tree import Rows, Tree

if TYPE_CHECKING:
    from ..models.transformers import Prompt, TransformersModel


class Decoder(ABC):
    """One way to run a Hugging Face decoder on the tree. `choose` makes a new one when the model's weights have changed."""

    name: str
    attends = False  # whether it can tell its attention to the source
    watching = False  # set for a score that needs `attention`
    attention: torch.Tensor  # (rows, source) of the last step, mean over the heads of the last layer

    @staticmethod
    @abstractmethod
    def takes(model: Any) -> bool:
        """Whether this model looks like one it can run (`choose` then tries it against the model itself)."""

    @abstractmethod
    def __init__(self, model: Any) -> None: ...

    def hidden(self, model: TransformersModel, prompts: Sequence[Prompt]) -> tuple[torch.Tensor, list[int]]:
        """The encoder's output for a batch, (batch, length, d) padded on the right, and each input's length."""
        return model.encode(prompts)

    @abstractmethod
    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for encoder output (batch, length, d), as (batch, 2, heads, length, head size)."""

    @abstractmethod
    def step(self, rows: Rows, tree: Tree, sources: Sources) -> torch.Tensor:
        """Logits of the next token, (rows, vocabulary), until the next step; the rows' own keys and values go to their slots."""

    def best(self, logits: torch.Tensor, width: int, banned: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a step's logits, the log-probabilities of the best tokens that are not banned, and these tokens, (rows, width).

        As Hugging Face does it: what is banned counts in the sum. The logits are used up.
        """
        total = logits.logsumexp(-1, keepdim=True)
        if banned is not None:
            logits[:, banned] = -inf
        values, tokens = top(logits, width)
        return (values - total).clamp_(max=0), tokens

    def read(self, rows: Rows, tree: Tree, sources: Sources) -> None:
        """As `step`, for whole prompts from their first token, whose logits nobody needs."""
        self.step(rows, tree, sources)
