"""Positions: how a model's own modules are given a position per row (`HookedStep`), and its position embeddings as a table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch

from .step_rows import Positions
from .tree import MaskedRows


@torch.inference_mode()
def position_table(module: Any, n: int) -> torch.Tensor:
    """The embeddings of positions 0 to n - 1, (n, d), or of as many as there are, computed by the model's own module."""
    config, embed = module.config, module.embed_positions
    if not hasattr(embed, "make_weights"):  # M2M100 extends its table on demand; it is restored below
        most = getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None) or n
        n = min(n, most, len(getattr(embed, "weight", range(n))))  # LED's config has another name for the limit
    pad = config.pad_token_id or 0
    ids = torch.full((1, n), (pad + 1) % config.vocab_size, device=module.device)
    before = dict(embed._buffers)
    parameters = inspect.signature(embed.forward).parameters
    argument = ids if "input_ids" in parameters else ids.shape
    if "input_ids" not in parameters and "inputs_embeds" in parameters:  # PEGASUS-X reads only their shape and dtype
        argument = torch.zeros(1, n, 1, dtype=module.dtype, device=module.device)
    table = embed(argument)
    embed._buffers.update(before)
    return table.reshape(n, -1)


class ArgumentPositions:
    """For models that take positions as an argument (Llama, GPT-2, Whisper); `first` is the first position's number."""

    def __init__(self, name: str, first: int = 0) -> None:
        self.name = name
        self.first = first

    @contextmanager
    def of(self, rows: MaskedRows) -> Iterator[dict[str, torch.Tensor]]:
        positions = rows.positions[:, None].long()
        yield {self.name: positions + self.first if self.first else positions}


class AbsolutePositions:
    """For models that count positions themselves (Marian, BART, Pegasus, M2M100): replaces the output of `embed_positions`."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.table = Positions(partial(position_table, decoder))

    @contextmanager
    def of(self, rows: MaskedRows) -> Iterator[dict[str, torch.Tensor]]:
        embedded = self.table.up_to(rows.paths.shape[1])[rows.positions][:, None]  # (rows, 1, d)
        here = get_ident()  # another thread may run the model, too
        handle = self.decoder.embed_positions.register_forward_hook(lambda *_: embedded if get_ident() == here else None)
        try:
            yield {}
        finally:
            handle.remove()


class RelativePositions:
    """For models that add a bias by distance to attention scores (T5): computes it for each row from the row's own position."""

    def __init__(self, attentions: list[Any]) -> None:
        self.attentions = attentions

    @contextmanager
    def of(self, rows: MaskedRows) -> Iterator[dict[str, torch.Tensor]]:
        distances = torch.arange(rows.paths.shape[1], device=rows.paths.device) - rows.positions[:, None].long()
        here = get_ident()  # another thread may run the model, too

        def bias(attention: Any, *asked: Any, **named: Any) -> torch.Tensor:
            if get_ident() != here:
                return type(attention).compute_bias(attention, *asked, **named)
            return self._bias(attention, distances)

        try:
            for attention in self.attentions:
                attention.compute_bias = partial(bias, attention)
            yield {}
        finally:
            for attention in self.attentions:
                vars(attention).pop("compute_bias", None)

    @staticmethod
    def _bias(attention: Any, distances: torch.Tensor) -> torch.Tensor:
        bias = attention.relative_attention_bias(buckets(attention, distances))  # (rows, context, heads)
        return bias.transpose(1, 2)[:, :, None]


def buckets(attention: Any, distances: torch.Tensor) -> torch.Tensor:
    """The bucket of each distance, computed by T5's attention module itself."""
    sizes = {
        "bidirectional": False,
        "num_buckets": attention.relative_attention_num_buckets,
        "max_distance": attention.relative_attention_max_distance,
    }
    parameters = inspect.signature(attention._relative_position_bucket).parameters  # UMT5's method has no sizes
    indices: torch.Tensor = attention._relative_position_bucket(distances, **sizes if "num_buckets" in parameters else {})
    return indices


def positions_of(model: Any) -> ArgumentPositions | AbsolutePositions | RelativePositions:
    """How this model can be given each row's position. Raises ValueError if it cannot."""
    parameters = inspect.signature(model.forward).parameters
    for name in ("decoder_position_ids", "position_ids"):
        if name in parameters:
            return ArgumentPositions(name)
    decoder = model.get_decoder()
    if model.config.is_encoder_decoder and "position_ids" in inspect.signature(decoder.forward).parameters:
        # An `EncoderDecoderModel` passes it on to its decoder. RoBERTa's positions begin after that of padding.
        paddings = (m.padding_idx for m in decoder.modules() if hasattr(m, "create_position_ids_from_input_ids"))
        return ArgumentPositions("decoder_position_ids", next((padding + 1 for padding in paddings), 0))
    encoders = set(model.get_encoder().modules()) if model.config.is_encoder_decoder else set()
    for module in decoder.modules():
        if hasattr(module, "embed_positions") and module not in encoders:  # Florence-2's "decoder" contains an encoder too
            return AbsolutePositions(module)
    attentions = [module for module in decoder.modules() if getattr(module, "has_relative_attention_bias", False)]
    if not attentions:
        raise ValueError(f"{type(model).__name__} has no positions that could be set for each row")
    return RelativePositions(attentions)
