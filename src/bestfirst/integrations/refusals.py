"""What `generate` was asked for and cannot be honoured: an error that names the argument, never a silent difference."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

USED = frozenset(
    {
        "attention_mask",
        "decoder_attention_mask",
        "encoder_outputs",
        "position_ids",
        # How Hugging Face would run the model; the engine has its own way, with the same result.
        "cache_position",
        "logits_to_keep",
        "past_key_values",
        "use_cache",
    }
)
"""Model arguments that are honoured, or that change nothing here."""


def refuse(model: Any, config: Any, processors: Sequence[Any], model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError for the first argument that asks for something else than beam search or greedy search on tokens."""
    for name, why in _settings(config):
        raise ValueError(f"bestfirst.generate cannot honour {name}={getattr(config, name)!r}: {why}")
    if any(isinstance(processor, SynthIDTextWatermarkLogitsProcessor) for processor in processors):
        raise ValueError(
            "bestfirst.generate cannot honour watermarking_config of SynthID: it keeps a state for each row of a beam"
        )
    encoders = inspect.signature(model.get_encoder().forward).parameters if model.config.is_encoder_decoder else ()
    for name, value in model_kwargs.items():  # what the encoder takes, it has got already
        empty = value is None or (hasattr(value, "__len__") and len(value) == 0)
        if name not in USED and name not in encoders and not empty:
            raise ValueError(f"bestfirst.generate cannot honour {name}: the engine runs the decoder on token ids alone")


def _settings(config: Any) -> list[tuple[str, str]]:
    """The settings that are set and must not be, and what to do instead."""
    asked = {
        "do_sample": (config.do_sample, "it searches, it does not sample; pass do_sample=False (pipelines sample by default)"),
        "prompt_lookup_num_tokens": (config.prompt_lookup_num_tokens, "assisted decoding is another algorithm; leave it out"),
        "assistant_early_exit": (config.assistant_early_exit, "assisted decoding is another algorithm; leave it out"),
        "use_mtp": (getattr(config, "use_mtp", None), "assisted decoding is another algorithm; leave it out"),
        "penalty_alpha": (config.penalty_alpha, "contrastive search is another algorithm; leave it out"),
        "dola_layers": (config.dola_layers, "DoLa is another algorithm; leave it out"),
        "constraints": (config.constraints, "constrained beam search is gone; use prefix_allowed_tokens_fn"),
        "force_words_ids": (config.force_words_ids, "constrained beam search is gone; use prefix_allowed_tokens_fn"),
        "num_beam_groups": (
            (config.num_beam_groups or 1) > 1,
            "group beam search is gone; use strategy='beam', score=bestfirst.scoring.Diverse(groups, penalty)",
        ),
        "diversity_penalty": (config.diversity_penalty, "use strategy='beam', score=bestfirst.scoring.Diverse(groups, penalty)"),
        "guidance_scale": ((config.guidance_scale or 1) != 1, "it keeps a second cache for each row of a beam; leave it out"),
        "output_logits": (config.output_logits, "only output_scores is there; it holds the log-probabilities"),
        "output_attentions": (config.output_attentions, "the engine keeps none; run the model on the output instead"),
        "output_hidden_states": (config.output_hidden_states, "the engine keeps none; run the model on the output instead"),
    }
    return [(name, why) for name, (is_set, why) in asked.items() if is_set]


def refuse_visible(**arguments: Any) -> None:
    """As `refuse`, for what only the folder route can see; with a callable, transformers swallows these."""
    reasons = {
        "assistant_model": "assisted decoding is another algorithm",
        "streamer": "no token is final before the search ends",
        "synced_gpus": "inputs finish after different numbers of steps",
    }
    for name, why in reasons.items():
        value = arguments.get(name)
        if value is not None and value is not False:
            raise ValueError(f"bestfirst.generate cannot honour {name}: {why}; leave it out")


def refuse_positions(position_ids: torch.Tensor | None, mask: torch.Tensor) -> None:
    """Positions other than 0, 1, 2, ... over the tokens that `mask` (batch, length) leaves."""
    if position_ids is None:
        return
    usual = mask.cumsum(-1) - 1
    if position_ids.shape != mask.shape or not bool(((position_ids == usual) | (mask == 0)).all()):
        raise ValueError("bestfirst.generate cannot honour position_ids other than 0, 1, 2, ... of each prompt; leave them out")
