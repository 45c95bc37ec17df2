"""DecoderStep: the interface of a decoder's forward pass over a step's rows. `step_choice` chooses one for a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import torch

from ...models.reader import Prompt
from ...models.transformers import TransformersModel
from .operations import keep_allowed, top
from .tree import MaskedRows, Sources, Tree, source_width


class DecoderStep(ABC):
    """Runs a Hugging Face decoder on the tree. `step_for` makes a new one when the model's weights have changed."""

    name: str
    mode: Any = torch.inference_mode  # the context that everything is run in
    holds_model = False  # whether it keeps a reference to the whole model
    has_attention = False  # whether it can record its cross-attention
    by_place = True  # whether it is faster with rows in the order of their sources
    records_attention = False  # whether to record `attention`, for a score that needs it
    encoder: Any = None  # replaces the model's encoder; `step_choice` sets it to None if the two do not agree
    attention: torch.Tensor  # (rows, source) of the last step: mean over the heads of the last layer

    @abstractmethod
    def __init__(self, model: Any) -> None: ...

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether this model looks like one that it can run. `step_choice` then tries it against the model itself."""
        return True

    def new_tree(self, model: TransformersModel, tokens: int = 0) -> tuple[Tree, Sources]:
        """A new tree and new sources. With `tokens`, the sources of an encoder-decoder hold one dummy input of that length."""
        parameter = next(model.model.parameters())
        device, dtype = parameter.device, parameter.dtype
        sources = Sources(device, dtype)
        if tokens and model.encoder_decoder:
            hidden = torch.zeros(1, tokens, source_width(model.model.config), dtype=dtype, device=device)
            sources.add(self.encode(hidden, torch.ones(1, tokens, dtype=torch.long, device=device)), [tokens])
        return Tree(device, dtype), sources

    def copied_weights(self, model: Any) -> Iterable[torch.Tensor]:
        """The model's weights that this step has copies of, and maybe others."""
        return () if self.holds_model else model.parameters()

    def add_inputs(self, model: TransformersModel, prompts: Sequence[Prompt], sources: Sources) -> list[int]:
        """Encode inputs, batching those of similar length, so that little is padded. Returns their places in `sources`."""
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
        """Logits of the next token, (rows, vocabulary), valid until the next step. Stores the rows' own keys and values."""

    def best(
        self, logits: torch.Tensor, width: int, banned: Sequence[int] = (), allowed: Sequence[np.ndarray | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a step's logits the top `width` log-probabilities among tokens that are not banned, and their tokens, (rows, width).

        `allowed`: for each row the tokens that may follow (None: all). As in Hugging Face, tokens that are banned or not allowed
        count in the log-sum-exp. Overwrites the logits.
        """
        logits = logits.float()
        total = logits.logsumexp(-1, keepdim=True)
        if banned:
            logits[:, list(banned)] = -inf
        values, tokens = top(logits if allowed is None else keep_allowed(logits, allowed), width)
        return (values - total).clamp_(max=0), tokens

    def prefill(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        """Prefill: as `step`, for whole prompts from their first token, without logits."""
        self.step(rows, tree, sources)


def chunks(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """Consecutive inputs similar enough in length to be encoded in one padded batch."""
    if any(prompt.hidden is not None or not hasattr(prompt.source, "__len__") for prompt in prompts):
        return [prompts]
    cuts, first = [0], 0
    for i, prompt in enumerate(prompts):
        longer, shorter = sorted((len(prompts[first].source), len(prompt.source)))[::-1]
        if i - first >= 16 and shorter < 0.85 * longer:
            cuts.append(i)
            first = i
    return [prompts[start:end] for start, end in zip(cuts, [*cuts[1:], len(prompts)], strict=True)]
