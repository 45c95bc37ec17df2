"""Threads: how many a decode may use, whatever computes it."""

from __future__ import annotations

import sys


def use_threads(n: int) -> None:
    """As many as `n` from now on; to be called when the model is loaded."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(n)
