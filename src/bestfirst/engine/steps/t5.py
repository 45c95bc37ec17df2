"""FusedT5: the decoders of T5, mT5 and UMT5, run directly on their modules' weights.

Saves what `FusedBart` saves, and shares its attention; norms, the feed-forward block and the relative position bias differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional as F

from .bart import FusedBart, RowGrid
from .operations import JOINED, projection
from .positions import buckets
from .tree import MaskedRows, Sources, Tree

FAMILY = {"t5": "scale_decoder_outputs", "mt5": "", "umt5": "tie_word_embeddings"}
"""Supported architectures, and which config setting says that the last hidden states are divided by sqrt(d)."""


class T5Layer:
    """One decoder layer's weights, with fused projections, as `FusedBart` reads them."""

    def __init__(self, block: Any) -> None:
        own, cross, ffn = block.layer
        attention, source, dense = own.SelfAttention, cross.EncDecAttention, ffn.DenseReluDense
        self.heads, self.size, self.scaling = attention.n_heads, attention.key_value_proj_dim, 1.0
        self.distances = attention if attention.has_relative_attention_bias else None
        self.qkv, self.own_out = projection(attention.q, attention.k, attention.v), projection(attention.o)
        self.cross_q, self.cross_kv, self.cross_out = projection(source.q), projection(source.k, source.v), projection(source.o)
        self.gated = hasattr(dense, "wi_0")
        self.wide = projection(dense.wi_0, dense.wi_1) if self.gated else projection(dense.wi)
        self.narrow, self.activation = projection(dense.wo), dense.act
        self.own_norm, self.cross_norm, self.norm = own.layer_norm, cross.layer_norm, ffn.layer_norm

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward block, plain or gated: x (rows, d) to (rows, d)."""
        if not self.gated:
            return self.narrow(self.activation(self.wide(x)))
        gate, linear = self.wide(x).chunk(2, -1)
        return self.narrow(self.activation(gate) * linear)


class FusedT5(FusedBart):
    """One step of a T5-like decoder: all rows of all inputs at once."""

    @staticmethod
    def takes(model: Any) -> bool:
        return model.config.model_type in FAMILY

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        decoder, config = model.get_decoder(), model.config
        self.layers = [T5Layer(block) for block in decoder.block]
        self.embedding, self.last_norm = decoder.embed_tokens, decoder.final_layer_norm
        self.head = projection(model.get_output_embeddings())
        scaled = getattr(config, FAMILY[config.model_type], False)
        self.last_scale = config.d_model**-0.5 if scaled else 1.0
        self._buckets = torch.empty(0, dtype=torch.long)

    def copied_weights(self, model: Any) -> Iterable[torch.Tensor]:
        return (weight for weight in model.get_decoder().parameters() if weight.numel() <= JOINED)

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        x = self.embedding(rows.tokens)
        grid = RowGrid(rows, sources)
        mask = rows.mask[:, None, None]
        for index, layer in enumerate(self.layers):
            if layer.distances is not None:  # T5: the first layer's bias serves all layers; UMT5: each has its own
                mask = self._biased(layer.distances, rows)
            x = x + self._self_attention(rms_normed(x, layer.own_norm), index, layer, rows, mask, tree)
            x = x + self._cross_attention(rms_normed(x, layer.cross_norm), index, layer, grid, sources)
            x = x + layer.feed_forward(rms_normed(x, layer.norm))
        return self.head(rms_normed(x, self.last_norm) * self.last_scale)

    def _biased(self, attention: Any, rows: MaskedRows) -> torch.Tensor:
        """The attention bias of each row by distance to its ancestors, plus the mask: (rows, heads, 1, context)."""
        context = rows.paths.shape[1]
        if context > len(self._buckets):
            self._buckets = buckets(attention, -torch.arange(2 * context, device=rows.paths.device))
        back = rows.positions[:, None] - torch.arange(context, device=rows.paths.device)
        bias = F.embedding(self._buckets[back.clamp_(min=0)], attention.relative_attention_bias.weight)  # (rows, context, heads)
        return (bias.transpose(1, 2) + rows.mask[:, None])[:, :, None]


def rms_normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """RMS normalisation of x with a T5 norm's weight and epsilon."""
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
