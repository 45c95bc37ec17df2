"""Hugging Face modules on a GPU's tree of hypotheses: attention over the tree, fused launches, otherwise the model's own code."""
