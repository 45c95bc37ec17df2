"""Drafters: who guesses ahead in a call of `generate`, by Hugging Face's own arguments."""

from __future__ import annotations

from typing import Any

from ..drafting import Drafter, SourceLookup
from ..engine.smaller_model import SmallerModel
from ..models.transformers import TransformersModel


def drafter_of(config: Any, assistant: Any) -> Drafter | None:
    """`assistant_model`, or `prompt_lookup_num_tokens`; None where neither is asked for."""
    if assistant is None:
        most = getattr(config, "prompt_lookup_num_tokens", None)
        return SourceLookup(most) if most else None
    if not hasattr(assistant, "get_output_embeddings"):
        raise ValueError(f"assistant_model must be a model of transformers, got {type(assistant).__name__}")
    return SmallerModel(TransformersModel(assistant))
