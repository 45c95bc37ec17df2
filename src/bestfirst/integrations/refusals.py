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
        "cache_params",
        "cache_position",
        "logits_to_keep",
        "past_key_values",
        "use_cache",
    }
)
"""Model arguments that are honoured, or that change nothing here."""


SAMPLING = "it searches, it does not sample; pass do_sample=False (pipelines sample by default), or temperature=0.0 to Whisper"
ASSISTED = "assisted decoding is another algorithm; leave it out"
CONSTRAINED = "constrained beam search is gone; use prefix_allowed_tokens_fn"
DIVERSE = "group beam search is gone; use strategy='beam', score=bestfirst.scoring.Diverse(groups, penalty)"
REASONS = {
    "do_sample": SAMPLING,
    "prompt_lookup_num_tokens": ASSISTED,
    "assistant_early_exit": ASSISTED,
    "use_mtp": ASSISTED,
    "penalty_alpha": "contrastive search is another algorithm; leave it out",
    "dola_layers": "DoLa is another algorithm; leave it out",
    "constraints": CONSTRAINED,
    "force_words_ids": CONSTRAINED,
    "num_beam_groups": DIVERSE,
    "diversity_penalty": DIVERSE,
    "guidance_scale": "it keeps a second cache for each row of a beam; leave it out",
    "output_logits": "only output_scores is there; it holds the log-probabilities",
    "output_attentions": "the engine keeps none; run the model on the output instead",
    "output_hidden_states": "the engine keeps none; run the model on the output instead",
}
"""Settings that ask for something else, and what to do instead."""
IDLE = {"num_beam_groups": 1, "guidance_scale": 1}
"""Values, besides none, that ask for nothing."""


def refuse(model: Any, config: Any, processors: Sequence[Any], model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError for the first argument that asks for something else than beam search or greedy search on tokens."""
    for name, why in REASONS.items():
        value = getattr(config, name, None)
        if value and value != IDLE.get(name):
            raise ValueError(f"bestfirst.generate cannot honour {name}={value!r}: {why}")
    if any(isinstance(processor, SynthIDTextWatermarkLogitsProcessor) for processor in processors):
        raise ValueError(
            "bestfirst.generate cannot honour watermarking_config of SynthID: it keeps a state for each row of a beam"
        )
    encoders = inspect.signature(model.get_encoder().forward).parameters if model.config.is_encoder_decoder else ()
    for name, value in model_kwargs.items():  # what the encoder takes, it has got already
        empty = value is None or (hasattr(value, "__len__") and len(value) == 0)
        if name not in USED and name not in encoders and not empty:
            raise ValueError(f"bestfirst.generate cannot honour {name}: the engine runs the decoder on token ids alone")


def left_to_generate(model: Any, model_kwargs: dict[str, Any]) -> str | None:
    """What reaches the model on a way that only `generate`'s own loop goes; None if nothing does."""
    prepare = model.prepare_inputs_for_generation
    if "prepare_inputs_for_generation" in vars(model) or not prepare.__func__.__module__.startswith("transformers."):
        return "prepare_inputs_for_generation is not the model's own (prompt tuning, an override)"
    cache = model_kwargs.get("past_key_values")
    if cache is not None and int(cache.get_seq_length()) > 0:
        return "past_key_values holds a prefix"
    mask = None if model.config.is_encoder_decoder else model_kwargs.get("attention_mask")
    if mask is None or bool(mask.all()):
        return None
    if bool((mask[:, 1:] < mask[:, :-1]).any()):
        return "the padding is not on the left alone"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "the model counts padding as positions"
    return "the model has positions of its own for padding" if hasattr(model.base_model, "embeddings") else None


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
    if arguments.get("cache_implementation") == "paged":
        raise ValueError("bestfirst.generate cannot honour cache_implementation='paged': it is not beam search; leave it out")


def refuse_positions(position_ids: torch.Tensor | None, mask: torch.Tensor) -> None:
    """Positions other than 0, 1, 2, ... over the tokens that `mask` (batch, length) leaves."""
    if position_ids is None:
        return
    usual = mask.cumsum(-1) - 1
    if position_ids.shape != mask.shape or not bool(((position_ids == usual) | (mask == 0)).all()):
        raise ValueError("bestfirst.generate cannot honour position_ids other than 0, 1, 2, ... of each prompt; leave them out")
