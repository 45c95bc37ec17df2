"""Inputs: one prompt without padding for each input of a call. `generate` has padded them and repeated them for every row of a
beam, masks and encoder output too; the engine needs each once, packed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from math import inf
from typing import Any

import numpy as np
import torch

from ..engine.steps.hooked import FRAMES
from ..models import Source
from ..models.reader import PackedPrompts, Prompt
from ..models.torch_modules import Modules
from ..models.transformers import TransformersModel
from .deferred_encoder import DeferredEncoderOutput


class PreparedModel(TransformersModel):
    """The model during one call of `generate`: EOS and banned tokens come from the call, not from its files. It does not change
    during the call, so its `modules` are looked up once."""

    def __init__(self, model: Any, modules: Modules, eos: Collection[int], banned: Collection[int]) -> None:
        self._of_call = {"eos_token_id": sorted(eos)}
        self._modules = modules
        super().__init__(model)
        self.banned = tuple(sorted(token for token in banned if 0 <= token < self.vocabulary))

    @property
    def modules(self) -> Modules:
        return self._modules

    def setting(self, name: str) -> Any:
        return self._of_call.get(name, super().setting(name))

    def _start_tokens(self, target_lang: str | None) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call. `ids` (batch, prompt length) are the decoder's tokens before the first generated one, with padding:
    processors and criteria see them, and outputs begin with them. `prompts` are without padding."""

    ids: torch.Tensor
    rows: np.ndarray  # `ids` on the host
    prompts: Sequence[Prompt]
    lengths: list[int]  # |x|, EOS not counted
    positions: float  # size of the decoder's position table

    def __len__(self) -> int:
        return len(self.prompts)

    def first(self, n: int) -> Inputs:
        """The first n inputs."""
        return Inputs(self.ids[:n], self.rows[:n], self.prompts[:n], self.lengths[:n], self.positions)

    def source(self, i: int, n_max: int) -> Source:
        """The i-th input for the engine, limited by `n_max` and the decoder's remaining positions. ValueError if none remain."""
        prompt = self.prompts[i]
        room = self.positions - len(prompt.tokens) + 1  # the last token needs no position
        if room < 1:
            raise ValueError(f"the prompt of {len(prompt.tokens)} tokens leaves no position to generate in; shorten it")
        return Source(prompt, self.lengths[i], n_max, room)


def table_positions(model: TransformersModel) -> float:
    """The size of the decoder's position table; infinite where positions are computed (sinusoidal, rotary, relative)."""
    decoder = model.model.get_decoder()
    table = getattr(decoder, "embed_positions", getattr(decoder, "wpe", None))
    return inf if table is None or hasattr(table, "make_weights") else model.positions


def read_inputs(
    model: TransformersModel, input_ids: torch.Tensor, k: int, inputs_tensor: torch.Tensor | None, arguments: dict[str, Any]
) -> Inputs:
    """The inputs of a call: every k-th row of what `generate` expanded for its beams, without padding.

    `input_ids` (batch * k, prompt length) are the decoder's tokens, `arguments` the model's arguments as `with_host_masks`
    returns them, `inputs_tensor` (batch, ...) the encoder's input.
    """
    ids, positions = input_ids[::k].long(), table_positions(model)  # `generate` returns int64, too
    rows = ids.cpu().numpy()
    if not model.encoder_decoder:
        prompts = [Prompt(None, tokens) for tokens in _unpadded(rows, arguments.get("attention_mask"))]
        lengths = [sum(token not in model.eos for token in prompt.tokens) for prompt in prompts]
        return Inputs(ids, rows, prompts, lengths, positions)
    output, read, packed = arguments["encoder_outputs"], None, None
    if isinstance(output, DeferredEncoderOutput):
        read, attended = output.ids, output.attended
    else:
        hidden = output[0]  # (batch * k, source length, d); may be a tuple's
        own = getattr(output, "attention_mask", None)  # Moonshine's, of frames where the input's is of samples
        given = arguments.get("attention_mask") if own is None else own[::k]
        if given is not None and len(given) != len(ids):  # a mask of audio samples, which `with_host_masks` left as it was
            given = given[::k]
        audio = next((module for module in (model.model.get_encoder(), model.model.base_model) if hasattr(module, FRAMES)), None)
        if given is not None and audio is not None:  # the model's own conversion of a mask of samples into one of frames
            given = getattr(audio, FRAMES)(hidden.shape[1], given)
        if given is not None and given.shape[1:] == hidden.shape[1:2]:
            attended = given.bool().cpu().numpy()
        else:
            attended = np.ones((len(ids), hidden.shape[1]), bool)
        packed = _packed(hidden, attended, k)
        if inputs_tensor is not None and inputs_tensor.shape[:2] == attended.shape and not inputs_tensor.is_floating_point():
            read = inputs_tensor.cpu().numpy()
    sizes = attended.sum(1)
    ends = 0 if read is None else sum((attended & (read == token)).sum(1) for token in model.eos)
    tokens = _unpadded(rows, arguments.get("decoder_attention_mask"))
    pack = PackedPrompts(tokens, sizes.tolist(), None if read is None else read[attended], packed)
    return Inputs(ids, rows, pack, (sizes - ends).tolist(), positions)


def with_host_masks(arguments: dict[str, Any], k: int) -> dict[str, Any]:
    """The model's arguments, with masks and positions on the host and without the repetitions for a beam, so that a device is
    waited for once for each. Without the attention mask where the encoder was deferred, since it has been read already. A mask of
    audio samples stays on the device, because it is large."""
    output = arguments.get("encoder_outputs")
    here: dict[str, Any] = {"attention_mask": None} if isinstance(output, DeferredEncoderOutput) else {}
    hidden = getattr(output, "last_hidden_state", None)
    for name in {"attention_mask", "decoder_attention_mask", "position_ids"} - here.keys():
        given = arguments.get(name)
        samples = name == "attention_mask" and hidden is not None and given is not None and given.shape[1:2] != hidden.shape[1:2]
        if isinstance(given, torch.Tensor) and not samples:
            here[name] = (given[::k] if given.dim() == 2 else given).cpu()
    return {**arguments, **here}


def _packed(hidden: torch.Tensor, attended: np.ndarray, k: int) -> torch.Tensor:
    """The encoder output of every k-th row of a batch, without padding, the inputs concatenated: (tokens, d)."""
    length = hidden.shape[1]
    rows, places = attended.nonzero()
    cells = torch.empty(len(rows), dtype=torch.long, pin_memory=hidden.is_cuda)  # pinned: the transfer is asynchronous
    cells.numpy()[:] = rows * (k * length) + places
    return hidden.flatten(0, 1).index_select(0, cells.to(hidden.device, non_blocking=True))


def _unpadded(rows: np.ndarray, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    if mask is None:
        return [*map(tuple, rows.tolist())]
    return [tuple(compress(*row)) for row in zip(rows.tolist(), mask.tolist(), strict=True)]
