"""Hugging Face modules on the tree of a GPU: our attention in place of theirs, small launches fused, all else their own code."""
