# ruff: noqa: N806  capitals are sizes
"""Residual: a sum and its norm, which stand between any two blocks of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .attention import add_norm
from .sizes import power


def add(x: torch.Tensor, y: torch.Tensor, norm: Any, norm_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y, and that normalised; where layers normalise last, the two are one."""
    if norm is None:
        return x + y, x + y
    if not x.is_cuda:
        total = x + y
        out = normed(total, norm)
        return (total if norm_first else out), out
    out = torch.empty_like(x)
    total = torch.empty_like(x) if norm_first else out
    D = x.shape[1]
    add_norm[(len(x),)](x, y, norm.weight, norm.bias, total, out, norm.eps, D, FIRST=norm_first, DP=power(D), num_warps=2)
    return total, out


def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """x normalised, where there is a norm."""
    return x if norm is None else F.layer_norm(x, x.shape[1:], norm.weight, norm.bias, norm.eps)
