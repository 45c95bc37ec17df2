"""FusedLlama: the decoders of Llama, Mistral, Qwen2 and Qwen3, run directly on their modules' weights.

Saved over the modules themselves: fused QKV and gate-up projections; keys and values written and gathered once per layer,
together, and never repeated for the query heads that share them; no masks rebuilt, no per-module Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional as F

from ...models.transformers import evaluating
from .decoder_step import DecoderStep
from .hooked import prefill
from .operations import JOINED, projection
from .tree import MaskedRows, Sources, Tree
from .windows import Windows

FAMILY = ("llama", "mistral", "qwen2", "qwen3")


class LlamaLayer:
    """One decoder layer's weights, with fused projections. `shared`: the number of key-value heads."""

    def __init__(self, module: Any) -> None:
        own, mlp = module.self_attn, module.mlp
        self.size, self.scaling = own.head_dim, float(own.scaling)
        self.heads, self.shared = own.q_proj.out_features // self.size, own.k_proj.out_features // self.size
        self.qkv = projection(own.q_proj, own.k_proj, own.v_proj)
        self.q_norm: Any = getattr(own, "q_norm", None)
        self.k_norm: Any = getattr(own, "k_norm", None)
        self.own_out = projection(own.o_proj)
        self.own_norm = module.input_layernorm
        self.gate_up = projection(mlp.gate_proj, mlp.up_proj)
        self.down = projection(mlp.down_proj)
        self.activation = mlp.act_fn
        self.norm = module.post_attention_layernorm


class FusedLlama(DecoderStep):
    """One step of a Llama-like decoder: all rows of all inputs at once."""

    name = "fused"

    @staticmethod
    def takes(model: Any) -> bool:
        return model.config.model_type in FAMILY

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        self.decoder = model.get_decoder()
        self.windows = Windows(model)
        self.layers = [LlamaLayer(module) for module in self.decoder.layers]
        self.embedding = self.decoder.embed_tokens
        self.last_norm = self.decoder.norm
        self.head = projection(model.get_output_embeddings())
        self.rotary = self._rotary(64)

    def _rotary(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions 0 to n - 1, (n, head size) each, computed by the model's own module."""
        like = self.embedding.weight
        cos, sin = self.decoder.rotary_emb(like[None, :1], torch.arange(n, device=like.device)[None])
        return cos[0], sin[0]

    def copied_weights(self, model: Any) -> Iterable[torch.Tensor]:
        return (weight for weight in model.parameters() if weight.numel() <= JOINED)

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        if rows.paths.shape[1] > len(self.rotary[0]):
            self.rotary = self._rotary(2 * rows.paths.shape[1])
        angles = tuple(table[rows.positions][:, None] for table in self.rotary)  # (rows, 1, head size) each
        masks = self.windows.masks(rows, omit_masks=True)
        x = self.embedding(rows.tokens)
        for index, layer in enumerate(self.layers):
            mask = masks[self.windows.of_layer(index)]
            x = x + self._attention(layer.own_norm(x), layer, tree, index, angles, rows, mask)
            gate, up = layer.gate_up(layer.norm(x)).chunk(2, -1)
            x = x + layer.down(layer.activation(gate) * up)
        return self.head(self.last_norm(x))

    def _attention(
        self, x: torch.Tensor, layer: LlamaLayer, tree: Tree, index: int, angles: tuple[Any, ...], rows: MaskedRows, mask: Any
    ) -> torch.Tensor:
        """Self-attention of each row over its ancestors, gathered from the tree. x (rows, d)."""
        n, heads, shared, size = len(x), layer.heads, layer.shared, layer.size
        rotated = heads + shared  # query and key heads
        qkv = layer.qkv(x)  # (rows, (heads + 2 shared) * head size)
        parts = qkv.view(n, -1, size)
        if layer.q_norm is not None:
            parts[:, :heads] = layer.q_norm(parts[:, :heads])
            parts[:, heads:rotated] = layer.k_norm(parts[:, heads:rotated])
        parts[:, :rotated] = rotate(parts[:, :rotated], *angles)
        context = tree.extend(index, rows, qkv[:, heads * size :]).unflatten(2, (2, shared, size)).permute(2, 0, 3, 1, 4)
        # Query heads that share a key head lie on the query axis: (rows, shared, heads / shared, head size).
        q = qkv[:, : heads * size].view(n, shared, -1, size)
        out = F.scaled_dot_product_attention(q, context[0], context[1], attn_mask=mask, scale=layer.scaling)
        return layer.own_out(out.reshape(n, heads * size))

    def prefill(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        with evaluating(self.decoder.modules()):
            prefill(self.decoder, rows, tree)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: x (rows, heads, head size) rotated by each row's angles."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
