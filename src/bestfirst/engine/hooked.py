"""HookedDecoder: any Hugging Face decoder, unmodified, on the tree: a row is a batch entry of one token.

A cache object stands in for Hugging Face's: `update` writes the row's keys and values to its slot and hands back its ancestors'.
Rows of mixed lengths and inputs share a batch; each gets its own position, by argument or by a hook that lives during the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from ..models.transformers import encoder_output, evaluating
from .decoder import Decoder
from .sources import Sources
from .tree import Rows, Tree


class TreeCache(Cache):
    """The self-attention cache of one step: ancestors are gathered from the tree."""

    def __init__(self, tree: Tree, rows: Rows) -> None:
        super().__init__(layers=[])
        self.tree = tree
        self.slots = rows.slots.long()
        self.paths = rows.paths.reshape(-1)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        n, heads, _, size = key_states.shape  # (rows, heads, 1, head size)
        pool = self.tree.layer(layer_idx, heads * size)
        pool.index_copy_(0, self.slots, torch.stack([key_states[:, :, 0], value_states[:, :, 0]], 1).flatten(2))
        context = pool.index_select(0, self.paths).view(n, -1, 2, heads, size)
        return context[:, :, 0].transpose(1, 2), context[:, :, 1].transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class SourceLayer:
    """One layer of the encoder's keys and values, as the rows need them."""

    is_initialized = True

    def __init__(self, layer: torch.Tensor, sentences: torch.Tensor, longest: int) -> None:
        self.keys, self.values = layer[:, :, :, :longest].index_select(1, sentences)


class HookedDecoder(Decoder):
    """Runs the model's own modules, in evaluation mode; the model is left as it was found, by an exception too."""

    name = "hooked"

    @staticmethod
    def takes(model: Any) -> bool:
        return True

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.positions = _positions(model)

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for the encoder's output; the model computes them itself, in a first step thrown away."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = torch.zeros(hidden.shape[0], 1, dtype=torch.long, device=hidden.device)
        with evaluating(self.modules):
            self.model(
                decoder_input_ids=start,
                encoder_outputs=encoder_output(hidden),
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            )
        layers: list[Any] = cache.cross_attention_cache.layers
        return [torch.stack([layer.keys, layer.values], 1) for layer in layers]

    def step(self, rows: Rows, tree: Tree, sources: Sources) -> torch.Tensor:
        ids = rows.tokens[:, None].long()
        mask = rows.mask[:, None, None]
        own = TreeCache(tree, rows)
        with evaluating(self.modules), self.positions.of(rows) as arguments:
            if not self.encoder_decoder:
                output = self.model(input_ids=ids, attention_mask=mask, past_key_values=own, use_cache=True, **arguments)
            else:
                longest = sources.longest()
                cache = EncoderDecoderCache(own, DynamicCache())
                layers: list[Any] = [SourceLayer(layer, rows.sentences, longest) for layer in sources.layers]
                cache.cross_attention_cache.layers = layers
                cache.is_updated = dict.fromkeys(range(len(layers)), True)
                # The encoder's keys and values are in the cache: of its output only the batch size is looked at.
                hidden = torch.zeros(len(ids), 1, self.model.config.hidden_size, dtype=mask.dtype, device=mask.device)
                output = self.model(
                    decoder_input_ids=ids,
                    decoder_attention_mask=mask,
                    encoder_outputs=encoder_output(hidden),
                    attention_mask=sources.mask[rows.sentences, None, None, :longest],
                    past_key_values=cache,
                    use_cache=True,
                    **arguments,
                )
        return output.logits[:, -1]

    def read(self, rows: Rows, tree: Tree, sources: Sources) -> None:
        if self.encoder_decoder:
            self.step(rows, tree, sources)
        else:
            with evaluating(self.modules):
                prefill(self.model.base_model, rows, tree)


def prefill(model: Any, rows: Rows, tree: Tree) -> None:
    """Prompts of a decoder-only model (without its head), each in one piece as the model itself reads it.

    Their keys and values go to their slots.
    """
    ids = pad_sequence(list(rows.tokens.long().split(rows.counts)), batch_first=True)
    inside = torch.arange(ids.shape[1], device=ids.device) < torch.tensor(rows.counts, device=ids.device)[:, None]
    cache = DynamicCache()
    model(input_ids=ids, attention_mask=inside.long(), past_key_values=cache, use_cache=True)
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        both = torch.stack([layer.keys, layer.values], 1)  # (prompts, 2, heads, length, head size)
        tokens = both.permute(0, 3, 1, 2, 4)[inside].flatten(2)  # (rows, 2, heads * head size)
        tree.layer(index, tokens.shape[2]).index_copy_(0, rows.slots.long(), tokens)


# -- positions: each row has its own -------------------------------------------------------------------------------------


class ArgumentPositions:
    """For models that take positions as an argument (Llama, GPT-2, Whisper)."""

    def __init__(self, name: str) -> None:
        self.name = name

    @contextmanager
    def of(self, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
        yield {self.name: rows.positions[:, None].long()}


class AbsolutePositions:
    """For models that count positions themselves (Marian, BART, Pegasus, M2M100): replace what `embed_positions` returns."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.table = position_table(decoder, 64)

    @contextmanager
    def of(self, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
        if rows.paths.shape[1] > len(self.table):
            self.table = position_table(self.decoder, 2 * rows.paths.shape[1])
        embedded = self.table[rows.positions][:, None]  # (rows, 1, d)
        handle = self.decoder.embed_positions.register_forward_hook(lambda *_: embedded)
        try:
            yield {}
        finally:
            handle.remove()


class RelativePositions:
    """For models that add a bias by distance to attention (T5): compute it for each row from its own position."""

    def __init__(self, attentions: list[Any]) -> None:
        self.attentions = attentions

    @contextmanager
    def of(self, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
        distances = torch.arange(rows.paths.shape[1], device=rows.paths.device) - rows.positions[:, None].long()
        try:
            for attention in self.attentions:
                attention.compute_bias = lambda *_, _of=attention, **__: self._bias(_of, distances)
            yield {}
        finally:
            for attention in self.attentions:
                vars(attention).pop("compute_bias", None)

    @staticmethod
    def _bias(attention: Any, distances: torch.Tensor) -> torch.Tensor:
        bucket = attention._relative_position_bucket(
            distances,
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        return attention.relative_attention_bias(bucket).transpose(1, 2)[:, :, None]  # (rows, heads, 1, context)


def _positions(model: Any) -> ArgumentPositions | AbsolutePositions | RelativePositions:
    """How this model can be told where each row stands."""
    takes = inspect.signature(model.forward).parameters
    for name in ("decoder_position_ids", "position_ids"):
        if name in takes:
            return ArgumentPositions(name)
    decoder = model.get_decoder()
    if hasattr(decoder, "embed_positions"):
        return AbsolutePositions(decoder)
    attentions = [module for module in decoder.modules() if getattr(module, "has_relative_attention_bias", False)]
    if not attentions:
        raise ValueError(f"{type(model).__name__} has no positions that could be set for each row")
    return RelativePositions(attentions)


def position_table(decoder: Any, n: int) -> torch.Tensor:
    """The embeddings of positions 0 to n - 1, (n, d), or of as many as there are, asked of the module itself."""
    config, module = decoder.config, decoder.embed_positions
    if not hasattr(module, "make_weights"):  # M2M100 makes more as they are asked for; the module is to keep those it had
        n = min(n, getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None) or n)
    pad = config.pad_token_id or 0
    ids = torch.full((1, n), (pad + 1) % config.vocab_size, device=decoder.device)
    before = dict(module._buffers)
    asked = module(ids if "input_ids" in inspect.signature(module.forward).parameters else ids.shape)
    module._buffers.update(before)
    return asked.reshape(n, -1)
