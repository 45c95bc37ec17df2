"""FusedBart: the decoders of Marian, BART, mBART, Pegasus, M2M100, NLLB and Whisper, straight from their modules' weights.

What it saves over the modules themselves: one product for query, key and value; keys and values written and gathered once a
layer, together; the encoder's keys used where they lie, one copy for each input; no masks rebuilt, no per-module Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .decoder import Decoder
from .hooked import position_table
from .linear import Linear
from .sources import Sources
from .tree import Rows, Tree

NORM_FIRST = {"marian": False, "bart": False, "mbart": True, "pegasus": True, "m2m_100": True, "whisper": True}
"""Where a layer normalises, before or after its attention: the one thing its weights do not tell."""


class Layer:
    """One decoder layer's weights, joined where that saves a product."""

    def __init__(self, module: Any) -> None:
        own, cross = module.self_attn, module.encoder_attn
        self.heads, self.size, self.scaling = own.num_heads, own.head_dim, float(own.scaling)
        self.qkv = Linear.join(own.q_proj, own.k_proj, own.v_proj)
        self.own_out = Linear.join(own.out_proj)
        self.own_norm = module.self_attn_layer_norm
        self.cross_q = Linear.join(cross.q_proj)
        self.cross_kv = Linear.join(cross.k_proj, cross.v_proj)
        self.cross_out = Linear.join(cross.out_proj)
        self.cross_norm = module.encoder_attn_layer_norm
        self.fc1, self.fc2 = Linear.join(module.fc1), Linear.join(module.fc2)
        self.activation = module.activation_fn
        self.norm = module.final_layer_norm


class FusedBart(Decoder):
    """A step of a BART-like decoder, all rows of all inputs at once."""

    name = "fused"
    attends = True

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether this is an architecture it knows (`choose` then tries it against the model itself)."""
        return model.config.model_type in NORM_FIRST and hasattr(model.get_decoder(), "layers")

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self.decoder = decoder
        self.layers = [Layer(module) for module in decoder.layers]
        self.norm_first = NORM_FIRST[model.config.model_type]
        self.embedding = decoder.embed_tokens
        self.embed_scale = embed_scale(decoder)
        self.first_norm = getattr(decoder, "layernorm_embedding", None)
        self.last_norm = getattr(decoder, "layer_norm", None)
        bias = getattr(model, "final_logits_bias", None)
        head = model.get_output_embeddings()
        self.head = Linear(head.weight, head.bias if bias is None else bias[0])
        self.positions = position_table(decoder, 64)

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for encoder output (batch, length, d), as (batch, 2, heads, length, head size)."""
        batch, length, _ = hidden.shape
        return [
            layer.cross_kv(hidden).view(batch, length, 2, layer.heads, layer.size).permute(0, 2, 3, 1, 4) for layer in self.layers
        ]

    def step(self, rows: Rows, tree: Tree, sources: Sources) -> torch.Tensor:
        """Logits of the next token, (rows, vocabulary)."""
        x = self.embed(rows)
        mask = rows.mask[:, None, None]
        groups = Groups(rows, sources)
        for index, layer in enumerate(self.layers):
            x = self._residual(x, layer.own_norm, lambda y, i=index, w=layer: self._own(y, i, w, rows, mask, tree))
            x = self._residual(x, layer.cross_norm, lambda y, i=index, w=layer: self._cross(y, i, w, groups, sources))
            x = self._residual(x, layer.norm, lambda y, w=layer: w.fc2(w.activation(w.fc1(y))))
        if self.last_norm is not None:
            x = self.last_norm(x)
        return self.head.again(x)

    def embed(self, rows: Rows) -> torch.Tensor:
        """What enters the first layer, (rows, d)."""
        context = rows.paths.shape[1]
        if context > self.positions.shape[0]:
            self.positions = position_table(self.decoder, 2 * context)
        x = self.embedding(rows.tokens)
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        x = x + self.positions[rows.positions]
        return x if self.first_norm is None else self.first_norm(x)

    def _residual(self, x: torch.Tensor, norm: Any, block: Any) -> torch.Tensor:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _own(self, x: torch.Tensor, index: int, layer: Layer, rows: Rows, mask: torch.Tensor, tree: Tree) -> torch.Tensor:
        """Self-attention over each row's ancestors, gathered from the tree."""
        n, width = x.shape[0], layer.heads * layer.size
        qkv = layer.qkv(x)  # (rows, 3 d)
        context = tree.extend(index, rows, qkv[:, width:]).unflatten(2, (2, layer.heads, layer.size)).permute(2, 0, 3, 1, 4)
        q = qkv[:, :width].view(n, layer.heads, 1, layer.size)
        out = F.scaled_dot_product_attention(q, context[0], context[1], attn_mask=mask, scale=layer.scaling)
        return layer.own_out(out.reshape(n, width))

    def _cross(self, x: torch.Tensor, index: int, layer: Layer, groups: Groups, sources: Sources) -> torch.Tensor:
        """Attention to the encoder: all rows of an input share its one copy of keys and values."""
        q = groups.gather(layer.cross_q(x)).view(groups.inputs, groups.most, layer.heads, layer.size).transpose(1, 2)
        kv = groups.of(sources.layers[index])
        if q.device.type == "cpu" or self.watching:  # so few queries share a source that plain products are faster there
            weights = (q @ kv[0].transpose(2, 3)).mul_(layer.scaling).add_(groups.mask).softmax(-1)
            out = weights @ kv[1]
            if self.watching and index == len(self.layers) - 1:
                self.attention = groups.scatter(weights.mean(1).reshape(groups.inputs * groups.most, -1))  # (rows, source)
        else:
            out = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=groups.mask, scale=layer.scaling)
        return layer.cross_out(groups.scatter(out.transpose(1, 2).reshape(groups.inputs * groups.most, -1)))


class Groups:
    """The rows of a step by input: a grid of inputs by rows each, so that attention to the encoder is one batched product."""

    def __init__(self, rows: Rows, sources: Sources) -> None:
        self.longest = sources.longest()
        self.inputs, self.most = len(rows.counts), max(rows.counts)
        device = rows.sentences.device
        # All inputs in flight, in order: use their keys where they lie. Otherwise pick out those that have rows.
        everyone = rows.places == list(range(len(sources)))
        self.places = None if everyone else torch.tensor(rows.places, device=device)
        mask = sources.mask[: self.inputs] if everyone else sources.mask[self.places]
        self.mask = mask[:, None, None, : self.longest]
        self.cells: torch.Tensor | None = None  # (rows,) each row's cell of the grid, where the grid has empty ones
        if self.most > 1 and self.inputs * self.most != len(rows.sentences):
            cells = [i * self.most + j for i, count in enumerate(rows.counts) for j in range(count)]
            self.cells = torch.tensor(cells, device=device)

    def of(self, layer: torch.Tensor) -> torch.Tensor:
        """A layer's keys and values, for the inputs that have rows."""
        chosen = layer[:, : self.inputs] if self.places is None else layer.index_select(1, self.places)
        return chosen[:, :, :, : self.longest]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Rows to grid."""
        if self.cells is None:
            return x
        return x.new_zeros(self.inputs * self.most, x.shape[1]).index_copy_(0, self.cells, x)

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Grid to rows."""
        return x if self.cells is None else x.index_select(0, self.cells)


def embed_scale(module: Any) -> float:
    """What an encoder or decoder multiplies embeddings with, unless its embedding module does so itself."""
    inside = hasattr(module.embed_tokens, "embed_scale")
    return 1.0 if inside or module.config.model_type == "whisper" else float(getattr(module, "embed_scale", 1.0))
