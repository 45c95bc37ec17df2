"""Inputs: what `generate` prepared for beam search, one prompt for each input again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from ..models import Source
from ..models.reader import Prompt
from ..models.transformers import TransformersModel


class PreparedModel(TransformersModel):
    """A model inside `generate`: what ends a sequence, and what is banned, was settled by the call, not by its files."""

    def __init__(self, model: Any, eos: Collection[int], banned: Collection[int]) -> None:
        self._settled = {"eos_token_id": sorted(eos)}
        super().__init__(model)
        self.banned = tuple(sorted(token for token in banned if 0 <= token < self.vocabulary))

    def setting(self, name: str) -> Any:
        return self._settled.get(name, super().setting(name))

    def _start_tokens(self, target_lang: str | None) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call. `ids` (batch, prompt length) is what stands before the first generated token, padding included:
    processors and criteria see it, and outputs begin with it. `prompts` are without padding."""

    ids: torch.Tensor
    prompts: list[Prompt]
    lengths: list[int]  # |x|, EOS not counted
    positions: float  # that the decoder has

    def __len__(self) -> int:
        return len(self.prompts)

    def source(self, i: int, n_max: int) -> Source:
        """The i-th input for the engine; the model may have fewer positions left than `n_max`."""
        prompt = self.prompts[i]
        room = self.positions - len(prompt.tokens)
        if room < 1:
            raise ValueError(f"the prompt of {len(prompt.tokens)} tokens leaves no position to generate in; shorten it")
        return Source(prompt, self.lengths[i], n_max, room)


def table_positions(model: TransformersModel) -> float:
    """How many positions there are in the decoder's table; infinite where positions are computed, as far as one likes."""
    decoder = model.model.get_decoder()
    table = getattr(decoder, "embed_positions", getattr(decoder, "wpe", None))
    return inf if table is None or hasattr(table, "make_weights") else model.positions


def read_inputs(
    model: TransformersModel, input_ids: torch.Tensor, k: int, inputs_tensor: torch.Tensor | None, arguments: dict[str, Any]
) -> Inputs:
    """Undo what `generate` did for a beam: every k-th row, without the padding.

    `input_ids` (batch * k, prompt length) are the decoder's, `arguments` the model's, expanded likewise; `inputs_tensor`
    (batch, ...) is what the encoder got.
    """
    ids = input_ids[::k]
    given = arguments.get("attention_mask")
    positions = table_positions(model)
    if not model.encoder_decoder:
        mask = _every(given, k, ids)
        prompts = [Prompt(None, tokens) for tokens in _unpadded(ids, mask)]
        lengths = [sum(token not in model.eos for token in prompt.tokens) for prompt in prompts]
        return Inputs(ids, prompts, lengths, positions)
    mask = _every(arguments.get("decoder_attention_mask"), k, ids)
    hidden = arguments["encoder_outputs"].last_hidden_state[::k]  # (batch, source length, d)
    own = getattr(arguments["encoder_outputs"], "attention_mask", None)  # Moonshine's, of frames where the input's is of samples
    given = given if own is None else own
    attended = None if given is None or given.shape[1:] != hidden.shape[1:2] else given[::k].bool()
    lengths, sources = _attended(hidden, attended)
    each = zip(_unpadded(ids, mask), sources, lengths, strict=True)
    prompts = [Prompt(None, tokens, hidden=h, length=n) for tokens, h, n in each]
    if inputs_tensor is not None and inputs_tensor.shape[:2] == hidden.shape[:2] and not inputs_tensor.is_floating_point():
        counted = ~torch.isin(inputs_tensor, torch.tensor(sorted(model.eos), device=inputs_tensor.device))
        lengths = (counted if attended is None else counted & attended.to(counted.device)).sum(1).tolist()
        inside = torch.ones_like(inputs_tensor) if attended is None else attended.to(inputs_tensor.device)
        for prompt, tokens in zip(prompts, _unpadded(inputs_tensor, inside), strict=True):
            prompt.source = tokens  # for whoever drafts
    return Inputs(ids, prompts, lengths, positions)


def _attended(hidden: torch.Tensor, mask: torch.Tensor | None) -> tuple[list[int], Sequence[torch.Tensor]]:
    """Each input's length, and the encoder's output of it without padding."""
    if mask is None:
        return [hidden.shape[1]] * len(hidden), hidden.unbind(0)
    lengths = mask.sum(1).tolist()
    return lengths, hidden[mask].split(lengths)


def _every(mask: torch.Tensor | None, k: int, ids: torch.Tensor) -> torch.Tensor:
    """Every k-th row of a mask; without one, all ones."""
    return torch.ones_like(ids) if mask is None else mask[::k]


def _unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[tuple[int, ...]]:
    if bool(mask.all()):
        return [tuple(row) for row in ids.tolist()]
    return [tuple(t for t, keep in zip(*row, strict=True) if keep) for row in zip(ids.tolist(), mask.tolist(), strict=True)]
