"""HookedStep: any Hugging Face decoder, unmodified, on the tree: each row is a batch entry of one token.

A cache object replaces Hugging Face's: `update` writes the row's keys and values to its slot and returns its ancestors'. Rows of
mixed lengths and inputs share a batch; each has its own position, passed as an argument or set by a hook during the call.
`RecomputeStep` is the fallback for models that this does not fit: every hypothesis from its first token.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from ...models.transformers import encoder_output, evaluating
from .decoder_step import DecoderStep
from .positions import positions_of
from .tree import MaskedRows, Sources, Tree, source_width
from .windows import Windows

FRAMES = "_get_feature_vector_attention_mask"


@contextmanager
def masks_of_frames(audio_modules: list[Any]) -> Iterator[None]:
    """Within this context, listening modules take masks of the encoder's output frames, instead of making them of audio masks."""
    try:
        for module in audio_modules:
            setattr(module, FRAMES, lambda length, mask, *_, **__: mask)
        yield
    finally:
        for module in audio_modules:
            vars(module).pop(FRAMES, None)


class TreeCache(Cache):
    """The self-attention cache of one step: reads ancestors' keys and values from the tree."""

    def __init__(self, tree: Tree, rows: MaskedRows) -> None:
        super().__init__(layers=[])
        self.tree = tree
        self.slots = rows.slots.long()
        self.paths = rows.paths.reshape(-1)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        kv = stack_kv(key_states, value_states)  # (rows, 2, heads, 1, head size)
        n, _, heads, _, size = kv.shape
        pool = self.tree.layer(layer_idx, heads * size)
        pool.index_copy_(0, self.slots, kv.flatten(2))
        context = pool.index_select(0, self.paths).view(n, -1, 2, heads, size)
        keys, values = context[:, :, 0].transpose(1, 2), context[:, :, 1].transpose(1, 2)
        return keys[..., : key_states.shape[3]], values[..., : value_states.shape[3]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def stack_kv(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Keys and values (n, heads, length, head size) as (n, 2, heads, length, head size), padded to the larger head size."""
    size = max(keys.shape[3], values.shape[3])  # DeepSeek's keys are wider than its values
    padded = [each if each.shape[3] == size else F.pad(each, (0, size - each.shape[3])) for each in (keys, values)]
    return torch.stack(padded, 1)


class SourceLayer:
    """One layer of the encoder's keys and values, gathered per row, as Hugging Face's cross-attention cache holds them."""

    is_initialized = True

    def __init__(self, layer: torch.Tensor, sentences: torch.Tensor, longest: int) -> None:
        self.keys, self.values = layer[:, :, :, :longest].index_select(1, sentences)


class HookedStep(DecoderStep):
    """Runs the model's own modules in evaluation mode, and restores the model afterwards, also after an exception."""

    holds_model = True
    name = "hooked"
    omit_masks = False  # whether masks that hide nothing may be left out; `step_choice` tries it where that is faster

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.audio_modules = [module for module in self.modules if hasattr(module, FRAMES)]
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.positions = positions_of(model)
        self.windows = Windows(model)

    @property
    def repeats_shared_keys(self) -> bool:
        """Whether the model, given a mask, repeats keys and values for each query head that shares them (grouped-query SDPA)."""
        grouped = any(getattr(module, "num_key_value_groups", 1) != 1 for module in self.modules)
        return grouped and not self.encoder_decoder and self.model.config._attn_implementation == "sdpa"

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Each layer's keys and values for the encoder's output, from a first step of the model, whose logits are discarded."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = torch.zeros(hidden.shape[0], 1, dtype=torch.long, device=hidden.device)
        with evaluating(self.modules), masks_of_frames(self.audio_modules):
            out = encoder_output(hidden)
            self.model(decoder_input_ids=start, encoder_outputs=out, attention_mask=mask, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.cross_attention_cache.layers
        return [torch.stack([layer.keys, layer.values], 1) for layer in layers]

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        ids = rows.tokens[:, None].long()
        mask = self._mask(rows)
        own = TreeCache(tree, rows)
        with evaluating(self.modules), masks_of_frames(self.audio_modules), self.positions.of(rows) as arguments:
            if not self.encoder_decoder:
                output = self.model(input_ids=ids, attention_mask=mask, past_key_values=own, use_cache=True, **arguments)
            else:
                longest = sources.longest()
                cache = EncoderDecoderCache(own, DynamicCache())
                layers = self._gathered(rows, sources, longest)
                cache.cross_attention_cache.layers = layers
                cache.is_updated = dict.fromkeys(range(len(layers)), True)
                # The cross-attention cache is filled: of the encoder's output the model reads the batch size only.
                hidden = torch.zeros(len(ids), 1, source_width(self.model.config), dtype=rows.dtype, device=ids.device)
                output = self.model(
                    decoder_input_ids=ids,
                    decoder_attention_mask=mask,
                    encoder_outputs=encoder_output(hidden),
                    attention_mask=sources.mask[rows.sentences, None, None, :longest],
                    past_key_values=cache,
                    use_cache=True,
                    **arguments,
                )
        return output.logits[:, -1]

    def _gathered(self, rows: MaskedRows, sources: Sources, longest: int) -> list[Any]:
        """The encoder's keys and values for each row; reused from the last step while its rows were of the same inputs."""
        key = (longest, rows.places, rows.counts)
        if sources.gathered is None or sources.gathered[0] != key:
            sources.gathered = (key, [SourceLayer(layer, rows.sentences, longest) for layer in sources.layers])
        return sources.gathered[1]

    def _mask(self, rows: MaskedRows) -> Any:
        """The mask shared by all layers; models with several kinds of layers use `MaskedLayersStep`."""
        return next(iter(self.windows.masks(rows, self.omit_masks).values()))

    def prefill(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        if self.encoder_decoder:
            self.step(rows, tree, sources)
        else:
            with evaluating(self.modules):
                prefill(self.model.base_model, rows, tree)


class MaskedLayersStep(HookedStep):
    """For models that take a dict with one mask per kind of layer (Gemma 2 and 3, gpt-oss, Llama 4)."""

    def _mask(self, rows: MaskedRows) -> Any:
        return self.windows.masks(rows, self.omit_masks)


def prefill(model: Any, rows: MaskedRows, tree: Tree) -> None:
    """Prompts of a decoder-only model (without its head), each in one piece. Their keys and values go to their slots."""
    ids = pad_sequence(list(rows.tokens.long().split(rows.counts)), batch_first=True)
    inside = torch.arange(ids.shape[1], device=ids.device) < torch.tensor(rows.counts, device=ids.device)[:, None]
    cache = DynamicCache()
    model(input_ids=ids, attention_mask=inside.long(), past_key_values=cache, use_cache=True)
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        kv = stack_kv(layer.keys, layer.values)  # (prompts, 2, heads, length, head size)
        tokens = kv.permute(0, 3, 1, 2, 4)[inside].flatten(2)  # (rows, 2, heads * head size)
        tree.layer(index, tokens.shape[2]).index_copy_(0, rows.slots.long(), tokens)


LOGITS = 2**26  # numbers of logits per call, at most: the model computes them for every token, only the last one's are used


class RecomputeStep(DecoderStep):
    """Runs every hypothesis from its first token. The tree holds tokens, not keys and values; the sources hold encoder output."""

    holds_model = True
    name = "recompute"
    width: int  # of the encoder's output

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.audio_modules = [module for module in self.modules if hasattr(module, FRAMES)]
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.vocabulary = model.config.get_text_config().vocab_size
        self.masks = "decoder_attention_mask" in inspect.signature(model.forward).parameters

    def encode(self, hidden: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """The encoder's output itself, split in two halves that are stored like one layer's keys and values."""
        self.width = hidden.shape[-1]
        return [torch.stack(F.pad(hidden, (0, self.width % 2)).chunk(2, -1), 1)[:, :, None]]

    def prefill(self, rows: MaskedRows, tree: Tree, sources: Sources) -> None:
        if not tree.layers:
            tree.layers = [torch.zeros(tree.capacity, dtype=torch.long, device=tree.device)]  # (slots,) a token each
        tree.layers[0][rows.slots] = rows.tokens.long()

    def step(self, rows: MaskedRows, tree: Tree, sources: Sources) -> torch.Tensor:
        self.prefill(rows, tree, sources)
        inside = rows.mask == 0  # (rows, context)
        ids = tree.layers[0][rows.paths] * inside
        at_once = max(1, LOGITS // (ids.shape[1] * self.vocabulary))
        out = []
        with evaluating(self.modules), masks_of_frames(self.audio_modules):
            for first in range(0, len(ids), at_once):
                part = slice(first, first + at_once)
                logits = self._logits(ids[part], inside[part].long(), rows.sentences[part], sources)
                out.append(logits[torch.arange(len(logits), device=ids.device), rows.positions[part]])
        return torch.cat(out)

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, sentences: torch.Tensor, sources: Sources) -> torch.Tensor:
        """Logits after every token, (rows, context, vocabulary); rows are padded on the right."""
        if not self.encoder_decoder:
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        longest = sources.longest()
        halves = sources.layers[0][:, :, 0, :longest].index_select(1, sentences).transpose(0, 1)  # (rows, 2, length, half)
        return self.model(
            encoder_outputs=encoder_output(torch.cat(halves.unbind(1), -1)[..., : self.width]),
            attention_mask=(sources.mask[sentences, :longest] == 0).long(),
            decoder_input_ids=ids,
            use_cache=False,
            **({"decoder_attention_mask": mask} if self.masks else {}),
        ).logits
