"""FusedBart: the decoders of Marian, BART, mBART, Pegasus, M2M100, NLLB and Whisper, run directly on their modules' weights.

Saved over the modules themselves: a fused QKV projection; keys and values written and gathered once per layer, together; one copy
of the encoder's keys and values per input, read in place; no masks rebuilt, no per-module Python. `NativeBart` wraps the
numba-compiled version of the same step (`native`; CPU, float32). `read_bart` extracts the weights from a Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ...models.transformers import Prompt, TransformersModel
from .bart_weights import NORM_FIRST, Affine, BartAttention, BartLayer, BartSide, BartWeights, JoinedLayer, LayerNorm
from .decoder_step import DecoderStep, chunks
from .native.decoder import NativeDecoder
from .native.parts import ACTIVATIONS
from .operations import Linear
from .positions import position_table
from .step_rows import Positions
from .tree import MaskedRows, Sources, Tree


class FusedBart(DecoderStep):
    """One step of a BART-like decoder in torch: all rows of all inputs at once."""

    name = "fused"
    has_attention = True
    layers: list[Any]  # `JoinedLayer`, or an object with the same projections (`T5Layer`)
    head: Any

    @staticmethod
    def takes(model: Any) -> bool:
        return looks_like_bart(model)

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        self.weights = read_bart(model)
        self.side = self.weights.decoder
        self.layers = [JoinedLayer(layer, Linear) for layer in self.side.layers]
        self.head = Linear(self.weights.head)

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        batch, length, _ = hidden.shape
        return [
            layer.cross_kv(hidden).view(batch, length, 2, layer.heads, layer.size).permute(0, 2, 3, 1, 4) for layer in self.layers
        ]

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        x = F.embedding(rows.tokens, self.side.embedding)
        if self.side.embed_scale != 1.0:
            x = x * self.side.embed_scale
        x = normed(x + self.side.positions.up_to(rows.paths.shape[1])[rows.positions], self.side.first_norm)
        mask = rows.mask[:, None, None]
        grid = RowGrid(rows, sources)
        for index, layer in enumerate(self.layers):
            x = self._residual(x, layer.own_norm, lambda y, i=index, w=layer: self._self_attention(y, i, w, rows, mask, tree))
            x = self._residual(x, layer.cross_norm, lambda y, i=index, w=layer: self._cross_attention(y, i, w, grid, sources))
            x = self._residual(x, layer.norm, lambda y, w=layer: w.fc2(w.activation(w.fc1(y))))
        return self.head.into_buffer(normed(x, self.side.last_norm))

    def _residual(self, x: torch.Tensor, norm: LayerNorm | None, block: Any) -> torch.Tensor:
        return x + block(normed(x, norm)) if self.side.norm_first else normed(x + block(x), norm)

    def _self_attention(
        self, x: torch.Tensor, index: int, layer: Any, rows: MaskedRows, mask: torch.Tensor, tree: Tree
    ) -> torch.Tensor:
        """Self-attention of each row over its ancestors, gathered from the tree."""
        n, width = x.shape[0], layer.heads * layer.size
        qkv = layer.qkv(x)  # (rows, 3 d)
        context = tree.extend(index, rows, qkv[:, width:]).unflatten(2, (2, layer.heads, layer.size)).permute(2, 0, 3, 1, 4)
        q = qkv[:, :width].view(n, layer.heads, 1, layer.size)
        out = F.scaled_dot_product_attention(q, context[0], context[1], attn_mask=mask, scale=layer.scaling)
        return layer.own_out(out.reshape(n, width))

    def _cross_attention(self, x: torch.Tensor, index: int, layer: Any, grid: RowGrid, sources: Sources) -> torch.Tensor:
        """Cross-attention: all rows of an input share its single copy of keys and values."""
        q = grid.gather(layer.cross_q(x)).view(grid.inputs, grid.max_rows, layer.heads, layer.size).transpose(1, 2)
        kv = grid.of(sources.layers[index])
        if q.device.type == "cpu" or self.records_attention:  # few queries per source: plain matmuls are faster on a CPU
            weights = (q @ kv[0].transpose(2, 3)).mul_(layer.scaling).add_(grid.mask).softmax(-1)
            out = weights @ kv[1]
            if self.records_attention and index == len(self.layers) - 1:
                self.attention = grid.scatter(weights.mean(1).reshape(grid.inputs * grid.max_rows, -1))  # (rows, source)
        else:
            out = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=grid.mask, scale=layer.scaling)
        return layer.cross_out(grid.scatter(out.transpose(1, 2).reshape(grid.inputs * grid.max_rows, -1)))


class RowGrid:
    """A step's rows arranged as a grid (inputs, rows per input), so that cross-attention is one batched matmul per layer."""

    def __init__(self, rows: MaskedRows, sources: Sources) -> None:
        self.longest = sources.longest()
        self.inputs, self.max_rows = len(rows.counts), max(rows.counts)
        device = rows.sentences.device
        # If every input in flight has rows, in order, keys are read in place. Otherwise those of the inputs with rows are copied.
        in_place = rows.places == list(range(len(sources)))
        self.places = None if in_place else torch.tensor(rows.places, device=device)
        mask = sources.mask[: self.inputs] if in_place else sources.mask[self.places]
        self.mask = mask[:, None, None, : self.longest]
        self.cells: torch.Tensor | None = None  # (rows,) index of each row's grid cell; None if the grid has no empty cells
        if self.max_rows > 1 and self.inputs * self.max_rows != len(rows.sentences):
            cells = [i * self.max_rows + j for i, count in enumerate(rows.counts) for j in range(count)]
            self.cells = torch.tensor(cells, device=device)

    def of(self, layer: torch.Tensor) -> torch.Tensor:
        """A layer's source keys and values for the inputs that have rows, (2, inputs, heads, longest source, head size)."""
        chosen = layer[:, : self.inputs] if self.places is None else layer.index_select(1, self.places)
        return chosen[:, :, :, : self.longest]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (rows, d) to grid cells (inputs * max_rows, d); empty cells are zero."""
        if self.cells is None:
            return x
        return x.new_zeros(self.inputs * self.max_rows, x.shape[1]).index_copy_(0, self.cells, x)

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Grid cells back to rows."""
        return x if self.cells is None else x.index_select(0, self.cells)


class NativeBart(NativeDecoder, DecoderStep):
    """The compiled step (`NativeDecoder`) as a `DecoderStep`: trees and sources hold numpy arrays, results are torch tensors."""

    mode = torch.inference_mode

    @staticmethod
    def takes(model: Any) -> bool:
        known = getattr(model.config, "activation_function", None) in ACTIVATIONS
        return known and looks_like_bart(model) and model.device.type == "cpu" and model.dtype == torch.float32

    @torch.inference_mode()
    def __init__(self, model: Any, eight_bits: bool = False) -> None:
        super().__init__(as_numpy(read_bart(model)), eight_bits)

    def add_inputs(self, model: TransformersModel, prompts: Sequence[Prompt], sources: Any) -> list[int]:
        encoded = [prompt.hidden for prompt in prompts]
        if any(hidden is None for hidden in encoded):
            if self.encoder is not None:
                return super().add_inputs(model, prompts, sources)
            batches = [model.encode(chunk) for chunk in chunks(prompts)]
            encoded = [each[:n] for hidden, lengths in batches for each, n in zip(hidden, lengths, strict=True)]
        return self._add(lambda first, end: torch.cat(encoded[first:end]).numpy(), [len(each) for each in encoded], sources)

    def step(self, rows: Any, tree: Any, sources: Any) -> torch.Tensor:
        return torch.from_numpy(super().step(rows, tree, sources))

    def best(
        self, logits: torch.Tensor, width: int, banned: Sequence[int] = (), allowed: Sequence[np.ndarray | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, tokens = super().best(logits.numpy(), width, banned, allowed)
        return torch.from_numpy(values), torch.from_numpy(tokens)


def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """Layer normalisation of x; x itself if `norm` is None."""
    return x if norm is None else F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def looks_like_bart(model: Any) -> bool:
    """Whether the model's type and modules are those of a supported BART-like model."""
    return model.config.model_type in NORM_FIRST and hasattr(model.get_decoder(), "layers")


def read_bart(model: Any) -> BartWeights:
    """The weights of a BART-like model, not copied. `encoder` is None if the model's encoder is built differently (Whisper), or
    gives the end of an input no position (an M2M100 that pads with EOS)."""
    try:
        encoder = None if _pads_with_eos(model) else _side(model.get_encoder())
    except AttributeError:
        encoder = None
    head, bias = _affine(model.get_output_embeddings()), getattr(model, "final_logits_bias", None)
    return BartWeights(encoder, _side(model.get_decoder()), head if bias is None else Affine(head.weight, bias[0]))


def _pads_with_eos(model: Any) -> bool:
    """Whether this is an M2M100, which counts positions without padding tokens, whose inputs end in such a token."""
    ends = model.config.eos_token_id if (own := model.generation_config.eos_token_id) is None else own
    return model.config.model_type == "m2m_100" and model.config.pad_token_id in (ends if isinstance(ends, list) else [ends])


def _side(module: Any) -> BartSide:
    return BartSide(
        layers=tuple(_layer(layer, str(module.config.activation_function)) for layer in module.layers),
        norm_first=NORM_FIRST[module.config.model_type],
        embedding=module.embed_tokens.weight.detach(),
        embed_scale=_embed_scale(module),
        positions=Positions(partial(position_table, module)),
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
    """The scale of token embeddings, from the embedding module or from its owner. Whisper defines one and does not use it."""
    if module.config.model_type == "whisper":
        return 1.0
    return float(getattr(module.embed_tokens, "embed_scale", getattr(module, "embed_scale", 1.0)))


def as_numpy(weights: Any) -> Any:
    """`BartWeights`, or any part of it, with every tensor viewed as a numpy array."""
    if isinstance(weights, torch.Tensor):
        return weights.detach().contiguous().numpy()
    if isinstance(weights, Positions):
        return Positions(lambda n: as_numpy(weights.make(n)))
    if isinstance(weights, tuple):
        return tuple(as_numpy(each) for each in weights)
    if is_dataclass(weights) and not isinstance(weights, type):
        return replace(weights, **{field.name: as_numpy(getattr(weights, field.name)) for field in fields(weights)})
    return weights
