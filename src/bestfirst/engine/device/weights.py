"""Weights of a BART-like decoder, as a step on the device uses them: joined where that saves a product."""

from __future__ import annotations

from typing import Any

import torch

from ..hooked import position_table
from .encoder import Encoder
from .linear import Linear

NORM_FIRST = {"marian": False, "bart": False, "mbart": True, "pegasus": True, "m2m_100": True}
"""Architectures that are known here, and where a layer normalises: before or after its attention."""


class Layer:
    """One decoder layer."""

    def __init__(self, module: Any) -> None:
        own, cross = module.self_attn, module.encoder_attn
        self.scaling = float(own.scaling)
        self.qkv = Linear.join(own.q_proj, own.k_proj, own.v_proj)
        self.own_out = Linear.join(own.out_proj)
        self.own_norm = module.self_attn_layer_norm
        self.cross_q = Linear.join(cross.q_proj)
        self.cross_out = Linear.join(cross.out_proj)
        self.cross_norm = module.encoder_attn_layer_norm
        self.fc1 = Linear.join(module.fc1, activation=module.activation_fn)
        self.fc2 = Linear.join(module.fc2)
        self.norm = module.final_layer_norm


class Weights:
    """A whole decoder."""

    @staticmethod
    def takes(model: Any) -> bool:
        return model.config.model_type in NORM_FIRST and hasattr(model.get_decoder(), "layers")

    @staticmethod
    def bytes_of_a_token(model: Any) -> int:
        """What its keys and values take, in all layers."""
        layers = model.get_decoder().layers
        return len(layers) * 2 * int(layers[0].self_attn.embed_dim) * model.dtype.itemsize

    def __init__(self, model: Any, positions: int, source_positions: int) -> None:
        decoder = model.get_decoder()
        attention = decoder.layers[0].self_attn
        self.heads, self.size = attention.num_heads, attention.head_dim
        self.norm_first = NORM_FIRST[model.config.model_type]
        self.layers = [Layer(module) for module in decoder.layers]
        sides = [(module.encoder_attn.k_proj, module.encoder_attn.v_proj) for module in decoder.layers]
        self.encoder = Encoder(model, self.norm_first, source_positions)
        self.cross = Linear.join(*(side for pair in sides for side in pair))
        self.embedding = decoder.embed_tokens.weight.detach()
        self.embed_scale = float(getattr(decoder.embed_tokens, "embed_scale", getattr(decoder, "embed_scale", 1.0)))
        self.positions = position_table(decoder, positions).detach().contiguous()
        self.first_norm = getattr(decoder, "layernorm_embedding", None)
        self.last_norm = getattr(decoder, "layer_norm", None)
        head, bias = model.get_output_embeddings(), getattr(model, "final_logits_bias", None)
        self.head = Linear.join(head)
        if bias is not None:
            self.head.bias = bias[0].detach().to(self.head.bias)
        self.device, self.dtype = self.embedding.device, self.embedding.dtype

    def source_keys(self, hidden: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Every layer's keys and values for the encoder's output (tokens, d), (tokens, layers * 2 * d)."""
        return self.cross(hidden, used)

    @property
    def vocabulary(self) -> int:
        return len(self.head.weight)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.heads * self.size
