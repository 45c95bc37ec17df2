"""FusedT5: the decoders of T5, mT5 and UMT5, straight from their modules' weights.

What it saves over the modules themselves is what `FusedBart` saves: only norms, the feed-forward and the bias by distance differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional as F

from .bart import FusedBart, RowGrid
from .operations import JOINED, product
from .positions import buckets
from .tree import MaskedRows, Sources, Tree

FAMILY = {"t5": "scale_decoder_outputs", "mt5": "", "umt5": "tie_word_embeddings"}
"""The architectures, and which setting has their last hidden states scaled down by sqrt(d)."""


class T5Layer:
    """One decoder layer's weights, joined where that saves a product."""

    def __init__(self, block: Any) -> None:
        own, cross, ffn = block.layer
        attention, source, dense = own.SelfAttention, cross.EncDecAttention, ffn.DenseReluDense
        self.heads, self.size, self.scaling = attention.n_heads, attention.key_value_proj_dim, 1.0
        self.distances = attention if attention.has_relative_attention_bias else None
        self.qkv, self.own_out = product(attention.q, attention.k, attention.v), product(attention.o)
        self.cross_q, self.cross_kv, self.cross_out = product(source.q), product(source.k, source.v), product(source.o)
        self.gated = hasattr(dense, "wi_0")
        self.wide = product(dense.wi_0, dense.wi_1) if self.gated else product(dense.wi)
        self.narrow, self.activation = product(dense.wo), dense.act
        self.own_norm, self.cross_norm, self.norm = own.layer_norm, cross.layer_norm, ffn.layer_norm

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (rows, d), made wide and narrow again."""
        if not self.gated:
            return self.narrow(self.activation(self.wide(x)))
        gate, linear = self.wide(x).chunk(2, -1)
        return self.narrow(self.activation(gate) * linear)


class FusedT5(FusedBart):
    """A step of a T5-like decoder, all rows of all inputs at once."""

    @staticmethod
    def takes(model: Any) -> bool:
        return model.config.model_type in FAMILY

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        decoder, config = model.get_decoder(), model.config
        self.layers = [T5Layer(block) for block in decoder.block]
        self.embedding, self.last_norm = decoder.embed_tokens, decoder.final_layer_norm
        self.head = product(model.get_output_embeddings())
        scaled = getattr(config, FAMILY[config.model_type], False)
        self.last_scale = config.d_model**-0.5 if scaled else 1.0
        self._buckets = torch.empty(0, dtype=torch.long)

    def copied(self, model: Any) -> Iterable[torch.Tensor]:
        return (weight for weight in model.get_decoder().parameters() if weight.numel() <= JOINED)

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        x = self.embedding(rows.tokens)
        grid = RowGrid(rows, sources)
        mask = rows.mask[:, None, None]
        for index, layer in enumerate(self.layers):
            if layer.distances is not None:  # T5's first layer, for all of them; UMT5's each
                mask = self._biased(layer.distances, rows)
            x = x + self._own(rms_normed(x, layer.own_norm), index, layer, rows, mask, tree)
            x = x + self._cross(rms_normed(x, layer.cross_norm), index, layer, grid, sources)
            x = x + layer.feed_forward(rms_normed(x, layer.norm))
        return self.head(rms_normed(x, self.last_norm) * self.last_scale)

    def _biased(self, attention: Any, rows: MaskedRows) -> torch.Tensor:
        """What is added to the attention of each row to its ancestors, (rows, heads, 1, context): by distance; and the mask."""
        context = rows.paths.shape[1]
        if context > len(self._buckets):
            self._buckets = buckets(attention, -torch.arange(2 * context, device=rows.paths.device))
        back = rows.positions[:, None] - torch.arange(context, device=rows.paths.device)
        bias = F.embedding(self._buckets[back.clamp_(min=0)], attention.relative_attention_bias.weight)  # (rows, context, heads)
        return (bias.transpose(1, 2) + rows.mask[:, None])[:, :, None]


def rms_normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """x over its root mean square, as T5's norm does it."""
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
