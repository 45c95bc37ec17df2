"""HookedDecoder: any Hugging Face decoder, unmodified, on the tree: a row is a batch entry of one token.

A cache object stands in for Hugging Face's: `update` writes the row's keys and values to its slot and hands back its ancestors'. Rows
of mixed lengths and inputs share a batch; each gets its own position, by argument or by a hook that lives only during the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from .sources import Sources
from .tree import Rows, Tree


class TreeCache(Cache):
    """The self-attention cache of one step: ancestors are gathered from the tree."""

    def __init__(self, tree: Tree, rows: Rows) -> None:
        super().__init__(layers=[])
        self.tree = tree
        self.rows = rows

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        n, heads, _, size = keys.shape  # (rows, heads, 1, head size)
        pool = self.tree.layer(layer_idx, heads * size)
        pool[self.rows.slots] = torch.stack([keys[:, :, 0].reshape(n, -1), values[:, :, 0].reshape(n, -1)], 1)
        context = pool.index_select(0, self.rows.paths.reshape(-1)).view(n, -1, 2, heads, size)
        return context[:, :, 0].transpose(1, 2), context[:, :, 1].transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class SourceLayer:
    """One layer of the encoder's keys and values, as the rows need them."""

    is_initialized = True

    def __init__(self, layer: torch.Tensor, sentences: torch.Tensor, longest: int) -> None:
        self.keys, self.values = layer[sentences, :, :, :longest].unbind(1)


class HookedDecoder:
    """Runs the model's own modules."""

    name = "hooked"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self._takes = inspect.signature(model.forward).parameters

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for encoder output `hidden` (batch, length, d), as (batch, 2, heads, length, head size).

        The model computes them itself in a first step, which is thrown away.
        """
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = torch.zeros(hidden.shape[0], 1, dtype=torch.long, device=hidden.device)
        self.model(
            decoder_input_ids=start,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        return [torch.stack([layer.keys, layer.values], 1) for layer in cache.cross_attention_cache.layers]

    def step(self, rows: Rows, tree: Tree, sources: Sources) -> torch.Tensor:
        """Logits of the next token, (rows, vocabulary)."""
        ids = rows.tokens[:, None].long()
        mask = rows.mask[:, None, None]
        own = TreeCache(tree, rows)
        with positions(self.model, rows) as arguments:
            if not self.encoder_decoder:
                output = self.model(input_ids=ids, attention_mask=mask, past_key_values=own, use_cache=True, **arguments)
            else:
                longest = sources.longest()
                cache = EncoderDecoderCache(own, DynamicCache())
                cache.cross_attention_cache.layers = [SourceLayer(layer, rows.sentences, longest) for layer in sources.layers]
                cache.is_updated = dict.fromkeys(range(len(sources.layers)), True)
                hidden = torch.zeros(len(ids), 1, self.model.config.hidden_size, dtype=mask.dtype, device=mask.device)
                output = self.model(
                    decoder_input_ids=ids,
                    decoder_attention_mask=mask,
                    encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                    attention_mask=sources.mask[rows.sentences, None, None, :longest],
                    past_key_values=cache,
                    use_cache=True,
                    **arguments,
                )
        return output.logits[:, -1]


@contextmanager
def positions(model: Any, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
    """Tell the model each row's position: yields arguments for its call, and takes every hook out again."""
    takes = inspect.signature(model.forward).parameters
    at = rows.positions[:, None].long()
    for name in ("decoder_position_ids", "position_ids"):
        if name in takes:
            yield {name: at}
            return
    decoder = model.get_decoder()
    with position_hook(decoder, at) if hasattr(decoder, "embed_positions") else relative_hook(decoder, rows):
        yield {}


@contextmanager
def position_hook(decoder: Any, at: torch.Tensor) -> Iterator[None]:
    """Absolute positions (Marian, BART, Pegasus, M2M100): replace what `embed_positions` returns."""
    table = position_table(decoder, int(at.max()) + 1)
    handle = decoder.embed_positions.register_forward_hook(lambda *_: table[at])
    try:
        yield
    finally:
        handle.remove()


def position_table(decoder: Any, n: int) -> torch.Tensor:
    """The embeddings of positions 0 to n - 1, (n, d), asked of the module itself."""
    pad = decoder.config.pad_token_id or 0
    ids = torch.full((1, n), (pad + 1) % decoder.config.vocab_size, device=decoder.device)
    takes = inspect.signature(decoder.embed_positions.forward).parameters
    asked = decoder.embed_positions(ids if "input_ids" in takes else ids.shape)
    return asked.reshape(n, -1)


@contextmanager
def relative_hook(decoder: Any, rows: Rows) -> Iterator[None]:
    """Relative positions (T5): the first block's bias, for each row from its own position."""
    attention = decoder.block[0].layer[0].SelfAttention

    def compute_bias(*_: Any, **__: Any) -> torch.Tensor:
        context = torch.arange(rows.paths.shape[1], device=rows.paths.device)
        bucket = attention._relative_position_bucket(
            context[None] - rows.positions[:, None].long(),
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        return attention.relative_attention_bias(bucket).transpose(1, 2)[:, :, None]  # (rows, heads, 1, context)

    attention.compute_bias = compute_bias
    try:
        yield
    finally:
        del attention.compute_bias
