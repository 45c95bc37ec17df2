"""The engine: Hugging Face decoders on a tree cache, many searches in one forward pass. Needs torch and transformers."""

from .scorer import EngineScorer

__all__ = ["EngineScorer"]
