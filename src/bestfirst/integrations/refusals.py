"""Settings of `generate` that the engine cannot honour. Other algorithms are refused by name; everything else that only
`generate`'s own loop can honour is run by that loop. Nothing is dropped silently."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

from ..models.torch_modules import Modules, from_library

USED = {"attention_mask", "decoder_attention_mask", "encoder_outputs", "position_ids"}
"""Model arguments that are honoured, or that change nothing here."""
# These tell how Hugging Face would run the model; the engine runs it in its own way, with the same result.
USED |= {"cache_params", "cache_position", "logits_to_keep", "past_key_values", "use_cache"}
USED |= {"labels"}  # `generate` drops it, but a trainer's evaluation passes it

ASSISTED = "assisted decoding is another algorithm; leave it out"
CONSTRAINED = "constrained beam search is gone; use bestfirst.decode(..., must_contain=...), or allowed for a list of outputs"
DIVERSE = "group beam search is gone; use strategy='beam', score=bestfirst.scoring.Diverse(groups, penalty)"
REASONS = {
    "assistant_early_exit": ASSISTED,
    "use_mtp": ASSISTED,
    "penalty_alpha": "contrastive search is another algorithm; leave it out",
    "dola_layers": "DoLa is another algorithm; leave it out",
    "constraints": CONSTRAINED,
    "force_words_ids": CONSTRAINED,
    "num_beam_groups": DIVERSE,
    "diversity_penalty": DIVERSE,
}
"""Settings that ask for another algorithm, and what to do instead."""

OWN_LOOP = {"do_sample": "it samples", "guidance_scale": "it runs the model twice, with a cache for each row of a beam"}
OWN_LOOP |= dict.fromkeys(
    ("output_logits", "output_attentions", "output_hidden_states"),
    "it is asked for what the model said of every row of its beams",
)
"""Settings for which `generate`'s own loop runs, and why."""

IDLE = {"num_beam_groups": 1, "guidance_scale": 1}
"""Values that mean the same as None."""


class OwnLoop(Exception):
    """`generate`'s own loop, level by level on its own cache, has to run this call.

    Either it is faster: on a GPU where a search on the host would wait for every launch; on a CPU where no step of the engine
    agrees with the model, or only the one that recomputes whole hypotheses, or where it was measured to be (`crossover`). Or only
    it gives the same output: it makes one up where none is possible, forces tokens that another processor forbids
    (`AllowedTokens`), and numbers positions after padding in its own way (`positioned_padding`).
    """


def requested_settings(config: Any, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The settings among `names` that have an effect, as "name=value", each with its text in the table."""
    for name, why in names.items():
        value = getattr(config, name, None)
        if value and value != IDLE.get(name):
            yield f"{name}={value!r}", why


def refuse(config: Any) -> None:
    """Raise ValueError for the first setting that asks for another algorithm."""
    for setting, why in requested_settings(config, REASONS):
        raise ValueError(f"bestfirst.generate cannot honour {setting}: {why}")


def reason_for_own_loop(
    model: Any, modules: Modules, config: Any, processors: Sequence[Any], input_ids: torch.Tensor, model_kwargs: dict[str, Any]
) -> str | None:
    """Why only `generate`'s own loop can honour this call of a model with these `modules`; None if the engine can."""
    for setting, why in requested_settings(config, OWN_LOOP):
        return f"{setting}: {why}"
    if any(isinstance(processor, SynthIDTextWatermarkLogitsProcessor) for processor in processors):
        return "watermarking_config of SynthID keeps a state for each row of a beam"
    if (pad := positioned_padding(model)) is not None and bool((input_ids == pad).any()):
        return "the decoder gives padding a position of its own, and begins with some"
    shape = input_ids.shape[1:]
    return _model_reason(model, modules) or _arguments_reason(model, model_kwargs) or _prompts_reason(model, shape, model_kwargs)


def positioned_padding(model: Any) -> int | None:
    """The padding token if the decoder gives it a position embedding of its own (M2M100, Speech2Text) instead of its place's."""
    embed = getattr(model.get_decoder(), "embed_positions", None)
    apart = hasattr(embed, "create_position_ids_from_input_ids")
    return getattr(embed, "padding_idx", model.config.pad_token_id) if apart else None


def _model_reason(model: Any, modules: Modules) -> str | None:
    prepare = model.prepare_inputs_for_generation
    if "prepare_inputs_for_generation" in vars(model) or not prepare.__func__.__module__.startswith("transformers."):
        return "prepare_inputs_for_generation is not the model's own (prompt tuning, an override)"
    if not all(map(from_library, modules.attention)):
        return "the attention function is not one of transformers' (it may depend on what shares a batch)"
    if any(weight.is_meta for weight in modules.weights):
        return "weights of the model are not in memory (offloaded)"
    if any(module.training for module in modules) and _drops_out(model.config.to_dict()):
        return "the model is in training mode, where dropout changes every forward pass (model.eval() ends it)"
    return "torch.autocast chooses the precision of products" if torch.is_autocast_enabled(model.device.type) else None


def _drops_out(config: dict[str, Any]) -> bool:
    """Whether a config, or one nested in it, has a dropout or layer-drop rate above 0."""
    parts = (value for value in config.values() if isinstance(value, dict))
    rates = (value for name, value in config.items() if "drop" in str(name) and isinstance(value, (int, float)))
    return any(rate > 0 for rate in rates) or any(map(_drops_out, parts))


def _arguments_reason(model: Any, model_kwargs: dict[str, Any]) -> str | None:
    cache = model_kwargs.get("past_key_values")
    if cache is not None and int(cache.get_seq_length()) > 0:
        return "past_key_values holds a prefix"
    encoders = inspect.signature(model.get_encoder().forward).parameters if model.config.is_encoder_decoder else ()
    for name, value in model_kwargs.items():  # the encoder has already got its own arguments
        empty = value is None or (hasattr(value, "__len__") and len(value) == 0)
        if name not in USED and name not in encoders and not empty:
            return f"the decoder takes {name} beside token ids"
    return None


def _prompts_reason(model: Any, shape: torch.Size, model_kwargs: dict[str, Any]) -> str | None:
    for name in ("decoder_attention_mask",) if model.config.is_encoder_decoder else ("attention_mask", "position_ids"):
        if (given := model_kwargs.get(name)) is not None and given.shape[1:] != shape:
            return f"{name} has not one number for each token of the prompt"
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.any(1).all()):
        return "the attention_mask of an input is all zeros"
    if model.config.is_encoder_decoder:
        mask = model_kwargs.get("decoder_attention_mask")
        zeros = mask is not None and not bool(mask.all()) and model.config.model_type != "whisper"
        return "the decoder_attention_mask has zeros" if zeros else None
    if not _counts_from_zero(model_kwargs.get("position_ids"), mask):
        return "position_ids are not 0, 1, 2, ... of each prompt"
    if mask is None or bool(mask.all()):
        return None
    if bool((mask[:, 1:] < mask[:, :-1]).any()):
        return "the padding is not on the left alone"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "the model counts padding as positions"
    return "the model has positions of its own for padding" if hasattr(model.base_model, "embeddings") else None


def _counts_from_zero(position_ids: torch.Tensor | None, mask: torch.Tensor | None) -> bool:
    """Whether positions are 0, 1, 2, ... over the tokens that `mask` (batch, length) attends to."""
    if position_ids is None:
        return True
    if mask is None:
        mask = torch.ones_like(position_ids)
    return position_ids.shape == mask.shape and bool(((position_ids == mask.cumsum(-1) - 1) | (mask == 0)).all())
