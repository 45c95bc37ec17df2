"""BartWeights read from the modules of transformers, where they lie."""

from __future__ import annotations

from typing import Any

from .bart_weights import NORM_FIRST, Affine, BartAttention, BartLayer, BartSide, BartWeights, LayerNorm
from .positions import PositionTable


def looks_like_bart(model: Any) -> bool:
    """Whether this looks like one of these models."""
    return model.config.model_type in NORM_FIRST and hasattr(model.get_decoder(), "layers")


def read_bart(model: Any) -> BartWeights:
    """The weights of a model that looks like one, where they lie."""
    try:
        encoder = _side(model.get_encoder())
    except AttributeError:
        encoder = None
    head, bias = _affine(model.get_output_embeddings()), getattr(model, "final_logits_bias", None)
    return BartWeights(encoder, _side(model.get_decoder()), head if bias is None else Affine(head.weight, bias[0]))


def _side(module: Any) -> BartSide:
    return BartSide(
        layers=tuple(_layer(layer, str(module.config.activation_function)) for layer in module.layers),
        norm_first=NORM_FIRST[module.config.model_type],
        embedding=module.embed_tokens.weight.detach(),
        embed_scale=_embed_scale(module),
        positions=PositionTable(module),
        first_norm=_norm(getattr(module, "layernorm_embedding", None)),
        last_norm=_norm(getattr(module, "layer_norm", None)),
    )


def _layer(module: Any, name: str) -> BartLayer:
    cross = getattr(module, "encoder_attn", None)
    own_norm, norm = _norm(module.self_attn_layer_norm), _norm(module.final_layer_norm)
    if own_norm is None or norm is None:
        raise AttributeError(f"{type(module).__name__} lacks a norm")
    return BartLayer(
        own=_attention(module.self_attn),
        own_norm=own_norm,
        cross=None if cross is None else _attention(cross),
        cross_norm=None if cross is None else _norm(module.encoder_attn_layer_norm),
        fc1=_affine(module.fc1),
        fc2=_affine(module.fc2),
        activation=module.activation_fn,
        norm=norm,
        activation_name=name,
    )


def _attention(module: Any) -> BartAttention:
    query, key, value, out = (_affine(part) for part in (module.q_proj, module.k_proj, module.v_proj, module.out_proj))
    return BartAttention(query, key, value, out, module.num_heads, module.head_dim, float(module.scaling))


def _affine(module: Any) -> Affine:
    return Affine(module.weight.detach(), None if module.bias is None else module.bias.detach())


def _norm(module: Any) -> LayerNorm | None:
    return None if module is None else LayerNorm(module.weight.detach(), module.bias.detach(), float(module.eps))


def _embed_scale(module: Any) -> float:
    """An embedding module's own scale, or that of the side; Whisper has one that it does not use."""
    if module.config.model_type == "whisper":
        return 1.0
    return float(getattr(module.embed_tokens, "embed_scale", getattr(module, "embed_scale", 1.0)))
