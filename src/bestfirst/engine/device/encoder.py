"""Encoder: the other half of a BART-like model, straight from its modules' weights, in few launches and without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..hooked import position_table
from .attention import attend
from .linear import Linear
from .plain import attend_source
from .residual import add, normed
from .sizes import power


@dataclass
class Packed:
    """Inputs, their tokens one after the other: each token with its place in its input and that input's number;
    where each input starts, and its length. The first `used` tokens count. All are integers of 32 bits on the device.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    inputs: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    used: torch.Tensor


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
    """Runs any number of inputs of any lengths at once: products see tokens, and each token looks at its own input only."""

    def __init__(self, model: Any, norm_first: bool, positions: int) -> None:
        encoder = model.get_encoder()
        self.heads = encoder.layers[0].self_attn.num_heads
        self.norm_first = norm_first
        self.layers = [EncoderLayer(module) for module in encoder.layers]
        self.embed_tokens = encoder.embed_tokens
        # An embedding module with a scale of its own applies it itself.
        self.scale = 1.0 if hasattr(encoder.embed_tokens, "embed_scale") else float(getattr(encoder, "embed_scale", 1.0))
        self.first_norm = getattr(encoder, "layernorm_embedding", None)
        self.last_norm = getattr(encoder, "layer_norm", None)
        self.positions = position_table(encoder, positions).detach()

    def __call__(self, given: Packed) -> torch.Tensor:
        """Hidden states (tokens, d)."""
        used = given.used
        x = self.embed_tokens(given.tokens)
        x = torch.add(self.positions[given.places], x, alpha=self.scale)
        x = y = normed(x, self.first_norm)
        if self.norm_first:
            y = normed(x, self.layers[0].own_norm)
        for index, layer in enumerate(self.layers):
            after = self.layers[index + 1].own_norm if index + 1 < len(self.layers) else self.last_norm
            own, last = (layer.norm, after) if self.norm_first else (layer.own_norm, layer.norm)
            x, y = add(x, layer.own_out(self._attend(layer.qkv(y, used), layer, given), used), own, self.norm_first)
            x, y = add(x, layer.fc2(layer.fc1(y, used), used), last, self.norm_first)
        return y if self.norm_first else normed(y, self.last_norm)

    def _attend(self, qkv: torch.Tensor, layer: EncoderLayer, given: Packed) -> torch.Tensor:
        """Each token to all of its input."""
        tokens, width = len(qkv), qkv.shape[1] // 3
        if not qkv.is_cuda:
            memory = qkv[:, width:].unflatten(1, (2, width))
            return attend_source(qkv[:, :width], memory, given.inputs, given.starts, given.lengths, self.heads, layer.scaling)
        out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
        size, unused = width // self.heads, given.inputs
        attend[(tokens, self.heads)](
            given.used, qkv, 3 * width, qkv[:, width:], 3 * width, 0, unused, given.inputs, unused, unused,
            given.starts, given.lengths, out, layer.scaling, 0, self.heads, size,
            OWN=False, DP=power(size), BLOCK=16, num_warps=2,
        )  # fmt: skip
        return out
