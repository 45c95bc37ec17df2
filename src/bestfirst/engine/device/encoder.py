"""Encoder: the other half of a BART-like model, straight from its modules' weights, in few launches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..hooked import position_table
from .linear import Linear


class EncoderLayer:
    """One encoder layer."""

    def __init__(self, module: Any) -> None:
        own = module.self_attn
        self.scaling = float(own.scaling)
        self.qkv = Linear.join(own.q_proj, own.k_proj, own.v_proj)
        self.own_out = Linear.join(own.out_proj)
        self.own_norm = module.self_attn_layer_norm
        self.fc1 = Linear.join(module.fc1, activation=module.activation_fn)
        self.fc2 = Linear.join(module.fc2)
        self.norm = module.final_layer_norm


class Encoder:
    """Runs inputs of like length as one batch."""

    def __init__(self, model: Any, norm_first: bool) -> None:
        encoder = model.get_encoder()
        self.encoder = encoder
        self.heads = encoder.layers[0].self_attn.num_heads
        self.norm_first = norm_first
        self.layers = [EncoderLayer(module) for module in encoder.layers]
        self.embed_tokens = encoder.embed_tokens
        # An embedding module with a scale of its own applies it itself.
        self.scale = 1.0 if hasattr(encoder.embed_tokens, "embed_scale") else float(getattr(encoder, "embed_scale", 1.0))
        self.first_norm = getattr(encoder, "layernorm_embedding", None)
        self.last_norm = getattr(encoder, "layer_norm", None)
        self.positions = position_table(encoder, 64)

    def __call__(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Hidden states (batch, length, d) for ids (batch, length), of which the first `lengths` count."""
        length = ids.shape[1]
        if length > len(self.positions):
            self.positions = position_table(self.encoder, 2 * length)
        x = self.embed_tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        x = x + self.positions[:length]
        if self.first_norm is not None:
            x = self.first_norm(x)
        mask = (torch.arange(length, device=ids.device) < lengths[:, None])[:, None, None]
        for layer in self.layers:
            x = self._residual(x, layer.own_norm, lambda y, w=layer: self._attend(y, w, mask))
            x = self._residual(x, layer.norm, lambda y, w=layer: w.fc2(w.fc1(y.flatten(0, 1))).view_as(y))
        return x if self.last_norm is None else self.last_norm(x)

    def _residual(self, x: torch.Tensor, norm: Any, block: Any) -> torch.Tensor:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _attend(self, x: torch.Tensor, layer: EncoderLayer, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = layer.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scaling)
        return layer.own_out(out.transpose(1, 2).reshape(x.shape))
