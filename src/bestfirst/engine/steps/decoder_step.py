"""DecoderStep: what runs a step's rows on a model. Which one runs which model is `step_choice`'s business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import torch

from ...models.reader import Prompt
from ...models.transformers import TransformersModel
from .operations import only, top
from .tree import MaskedRows, Sources, Tree, source_width


class DecoderStep(ABC):
    """One way to run a Hugging Face decoder on the tree. `step_for` makes a new one when the model's weights have changed."""

    name: str
    holds_model = False  # whether it keeps the whole model in memory
    attends = False  # whether it can tell its attention to the source
    by_place = True  # whether it is faster with rows in the order in which their sources stand
    watching = False  # set for a score that needs `attention`
    encoder: Any = None  # what it has in place of the model's encoder; `step_choice` takes it away where that does not agree
    attention: torch.Tensor  # (rows, source) of the last step, mean over the heads of the last layer

    @abstractmethod
    def __init__(self, model: Any) -> None: ...

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether this model looks like one it can run (`step_choice` then tries it against the model itself)."""
        return True

    def room(self, model: TransformersModel, tokens: int = 0) -> tuple[Tree, Sources]:
        """A new tree and new sources; with `tokens`, and an encoder, one input of so many is there."""
        parameter = next(model.model.parameters())
        device, dtype = parameter.device, parameter.dtype
        sources = Sources(device, dtype)
        if tokens and model.encoder_decoder:
            hidden = torch.zeros(1, tokens, source_width(model.model.config), dtype=dtype, device=device)
            sources.add(self.encode(hidden, torch.ones(1, tokens, dtype=torch.long, device=device)), [tokens])
        return Tree(device, dtype), sources

    def copied(self, model: Any) -> Iterable[torch.Tensor]:
        """The model's weights that it keeps copies of, and maybe others."""
        return () if self.holds_model else model.parameters()

    def take_in(self, model: TransformersModel, prompts: Sequence[Prompt], sources: Sources) -> list[int]:
        """Run the encoder on inputs, those of like length together, so that little is padded. Returns their places."""
        places: list[int] = []
        for chunk in chunks(prompts):
            hidden, lengths = model.encode(chunk)
            mask = torch.arange(hidden.shape[1], device=hidden.device) < torch.tensor(lengths, device=hidden.device)[:, None]
            places += sources.add(self.encode(hidden, mask.long()), lengths)
        return places

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for encoder output (batch, length, d), as (batch, 2, heads, length, head size)."""
        raise TypeError("a decoder-only model has no encoder")

    @abstractmethod
    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        """Logits of the next token, (rows, vocabulary), until the next step; the rows' own keys and values go to their slots."""

    def best(
        self, logits: torch.Tensor, width: int, banned: torch.Tensor | None, allowed: Sequence[np.ndarray | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a step's logits, the log-probabilities of the best tokens that are not banned, and these tokens, (rows, width).

        `allowed`: of each row, the tokens that may follow. As Hugging Face does it: what is banned or not allowed counts in the
        sum. The logits are used up.
        """
        logits = logits.float()
        total = logits.logsumexp(-1, keepdim=True)
        if banned is not None:
            logits[:, banned] = -inf
        values, tokens = top(logits if allowed is None else only(logits, allowed), width)
        return (values - total).clamp_(max=0), tokens

    def read(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        """As `step`, for whole prompts from their first token, whose logits nobody needs."""
        self.step(rows, tree, sources)


def chunks(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """Inputs one after another that are alike enough in length to be encoded together."""
    if any(prompt.hidden is not None or not hasattr(prompt.source, "__len__") for prompt in prompts):
        return [prompts]
    cuts, first = [0], 0
    for i, prompt in enumerate(prompts):
        longer, shorter = sorted((len(prompts[first].source), len(prompt.source)))[::-1]
        if i - first >= 16 and shorter < 0.85 * longer:
            cuts.append(i)
            first = i
    return [prompts[start:end] for start, end in zip(cuts, [*cuts[1:], len(prompts)], strict=True)]
