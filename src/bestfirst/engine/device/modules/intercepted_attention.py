"""Interception of attention that modules compute themselves (Falcon, GPT-J, TrOCR, LED), which is recognised by its matmuls.

Such a module hands its keys and values to a cache, which marks them. A matmul with marked keys gives marked scores, operations on
these stay marked, and a matmul of marked scores with marked values is replaced by attention over the tree. So is a call of
`scaled_dot_product_attention` with marked keys. Everything else the module does is executed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import Cache

MATMULS = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__}
SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}
MARK = "_bestfirst_mark"
KEYS, VALUES, SCORES = "keys", "values", "scores"
MASKED = -1e4  # masks add less than this to a hidden token


class Layer:
    """One attention: the scale of its scores, which is measured in the first run, and its latest queries, keys and values."""

    def __init__(self) -> None:
        self.scale: float | None = None
        self.operands: tuple[torch.Tensor, ...] = ()

    def mark(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mark the keys and values of a forward pass as those of this layer; returns them."""
        self.operands = keys, values
        setattr(keys, MARK, (self, KEYS))
        setattr(values, MARK, (self, VALUES))
        return keys, values

    def measure_scale(self, scaled: torch.Tensor) -> None:
        """Measure the scale from what became of scores 1, 2, 3, ... before the softmax. Raises TypeError if they are not
        multiples of it: then the model adds something (ALiBi) or caps them."""
        last = scaled.float().flatten(0, -3)[:, -1]  # (heads, keys); the last token sees all keys
        scale = last[0, 0]
        expected = scale * torch.arange(1, last.shape[1] + 1, device=last.device)
        if not torch.allclose(last, expected.expand_as(last), rtol=1e-2, atol=1e-4):
            raise TypeError("products of queries and keys are more than scaled before they are weights")
        self.scale = float(scale)


class Watch(TorchFunctionMode):
    """While the context is open, `attend` replaces the attention of marked keys and values."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and args and isinstance(args[0], (bool, int, float)):  # filled in, not sent to the device
            return torch.full((), *args, **kwargs)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            joint = sum(isinstance(index, (list, torch.Tensor)) for index in args[1]) > 1
            args = args if joint else (args[0], tuple(map(_as_slice, args[1])))
        marks = [getattr(each, MARK, (None, None)) for each in (*args, *kwargs.values())]
        layer, role = next((mark for mark in marks if mark[1] is not None), (None, None))
        if layer is None:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and marks[1][1] == KEYS:
            return self._sdpa(layer, *args, **kwargs)
        out: Any
        if func in MATMULS and marks[1][1] == KEYS:
            out, role = self._scores(layer, *args), SCORES
        elif func in MATMULS and role == SCORES and marks[1][1] == VALUES:
            return self._attention(layer, (*args[0].shape[:-1], args[1].shape[-1]))
        else:
            if func in SOFTMAXES and role == SCORES and layer.scale is None:
                layer.measure_scale(args[0])
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            setattr(out, MARK, (layer, role))
        return out

    def _scores(self, layer: Layer, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Stand-in for the scores (only their shape matters): 1, 2, 3, ... until the scale is known, zeros afterwards."""
        layer.operands = (query, *layer.operands[-2:])
        shape = (*query.shape[:-1], keys.shape[-1])
        if layer.scale is not None:
            return query.new_zeros(shape)
        return torch.arange(1.0, shape[-1] + 1, device=query.device).expand(shape).contiguous()

    def _sdpa(
        self,
        layer: Layer,
        query: torch.Tensor,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *_: Any,
        scale: Any = None,
        **__: Any,
    ) -> torch.Tensor:
        """Replaces `scaled_dot_product_attention`. Raises TypeError in the first run if its mask holds a bias."""
        layer.operands = (query, *layer.operands[-2:])
        if layer.scale is None:
            layer.scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
            if attn_mask is not None and attn_mask.is_floating_point() and bool(((attn_mask > MASKED) & (attn_mask != 0)).any()):
                raise TypeError("attention has a bias that is not known")
        return self._attention(layer, (*query.shape[:-1], value.shape[-1]))

    def _attention(self, layer: Layer, shape: tuple[int, ...]) -> torch.Tensor:
        """Attention over the tree, in the shape of the module's own result."""
        query, keys, values = layer.operands
        layer.operands = ()
        batch, tokens = len(keys), query.shape[-2]
        query = query.reshape(batch, -1, tokens, query.shape[-1]).to(keys.dtype)
        out = self.attend(layer, query, keys, values, {"scaling": layer.scale})  # (batch * tokens, heads, size)
        out = out.view(batch, tokens, -1, values.shape[-1]).transpose(1, 2)
        return out.reshape(shape).to(values.dtype)


def _as_slice(index: Any) -> Any:
    """An index list of one place as a slice: torch would send the list to the device, which a graph capture must not do."""
    if isinstance(index, list) and len(index) == 1 and type(index[0]) is int:
        return slice(index[0], index[0] + 1 or None)
    return index


class PassingCache(Cache):
    """A cache that stores nothing, because attention itself reads the KV cache. With `layers`, it marks keys and values."""

    def __init__(self, layers: dict[int, Layer] | None = None) -> None:
        super().__init__(layers=[])
        self._marking = layers

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        if self._marking is None:
            return key_states, value_states
        return self._marking.setdefault(layer_idx, Layer()).mark(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
