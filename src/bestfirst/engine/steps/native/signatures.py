"""Signatures: the arguments of every entry (`entries`): 64-bit integers, addresses among them ("i"), and float32 ("f")."""

from __future__ import annotations

from .registers import HERE

SIGNATURES = {
    "own_attention": "iiiiiiiiiiifi", "cross_attention": "iiiiiiiiiifi", "self_attention": "iiiiiiifi", "put": "i" * 11,
    "norm": "iiifiii", "add_norm": "iiiiifiii", "relu": "iiii", "gelu": "iiii", "gelu_tanh": "iiii", "silu": "iiii",
    "embed": "iiiifiiiii", "top": "i" * 9, "row_top": "i" * 9, "allowed_top": "i" * 12, "pack": "i" * 6, "by_panels": "i" * 8,
    "by_rows": "i" * 7, "mixed": "iii", "decoder": "iiifff", "encoder": "iiifff", "search": "iiiifff",
    **({"quantise": "i" * 5, "pack_bytes": "i" * 8, "multiply_bytes": "i" * 10} if HERE.eight is not None else {}),
}  # fmt: skip
