"""Unnamed: attention that modules compute themselves (Falcon, GPT-J, TrOCR, LED), found by what they multiply.

Such a module gives its keys and values to a cache. There they are marked, and so is whatever is made of them: a product of marked
keys are the weights of an attention, a product of weights and marked values is its outcome, in whose place ours stands.
`scaled_dot_product_attention` is both products at once. All else that the module does is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import Cache

PRODUCTS = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__}
SOFTMAX = {F.softmax, torch.softmax, torch.Tensor.softmax}
MARK = "_bestfirst_mark"
KEYS, VALUES, WEIGHTS = "keys", "values", "weights"
FAR = -1e4  # what is added to hide a token is below this


class Layer:
    """One attention: how its products are scaled, which is seen when it first runs; the latest queries, keys and values."""

    def __init__(self) -> None:
        self.scale: float | None = None
        self.given: tuple[torch.Tensor, ...] = ()

    def mark(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.given = keys, values
        setattr(keys, MARK, (self, KEYS))
        setattr(values, MARK, (self, VALUES))
        return keys, values

    def see(self, scaled: torch.Tensor) -> None:
        """What becomes of products 1, 2, 3...: multiples of the scale, or there is something else to it (ALiBi, a cap)."""
        last = scaled.float().flatten(0, -3)[:, -1]  # the last token sees all; (heads, keys)
        scale = last[0, 0]
        expected = scale * torch.arange(1, last.shape[1] + 1, device=last.device)
        if not torch.allclose(last, expected.expand_as(last), rtol=1e-2, atol=1e-4):
            raise TypeError("products of queries and keys are more than scaled before they are weights")
        self.scale = float(scale)


class Watch(TorchFunctionMode):
    """While this lasts, `attend` stands for the attention of marked keys and values."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is torch.tensor and args and isinstance(args[0], (bool, int, float))
        ):  # a number is not sent to the device, but filled in
            return torch.full((), *args, **kwargs)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            several = sum(isinstance(place, (list, torch.Tensor)) for place in args[1]) > 1
            args = args if several else (args[0], tuple(map(_slice, args[1])))
        marks = [getattr(each, MARK, (None, None)) for each in (*args, *kwargs.values())]
        layer, role = next((mark for mark in marks if mark[1] is not None), (None, None))
        if layer is None:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and marks[1][1] == KEYS:
            return self._both(layer, *args, **kwargs)
        out: Any
        if func in PRODUCTS and marks[1][1] == KEYS:
            out, role = self._weights(layer, *args), WEIGHTS
        elif func in PRODUCTS and role == WEIGHTS and marks[1][1] == VALUES:
            return self._outcome(layer, (*args[0].shape[:-1], args[1].shape[-1]))
        else:
            if func in SOFTMAX and role == WEIGHTS and layer.scale is None:
                layer.see(args[0])
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            setattr(out, MARK, (layer, role))
        return out

    def _weights(self, layer: Layer, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """What they are does not matter, but for the first time: then 1, 2, 3..."""
        layer.given = (query, *layer.given[-2:])
        shape = (*query.shape[:-1], keys.shape[-1])
        if layer.scale is not None:
            return query.new_zeros(shape)
        return torch.arange(1.0, shape[-1] + 1, device=query.device).expand(shape).contiguous()

    def _both(
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
        layer.given = (query, *layer.given[-2:])
        if layer.scale is None:
            layer.scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
            if attn_mask is not None and attn_mask.is_floating_point() and bool(((attn_mask > FAR) & (attn_mask != 0)).any()):
                raise TypeError("attention has a bias that is not known")
        return self._outcome(layer, (*query.shape[:-1], value.shape[-1]))

    def _outcome(self, layer: Layer, shape: tuple[int, ...]) -> torch.Tensor:
        query, keys, values = layer.given
        layer.given = ()
        batch, tokens = len(keys), query.shape[-2]
        query = query.reshape(batch, -1, tokens, query.shape[-1]).to(keys.dtype)
        out = self.attend(layer, query, keys, values, {"scaling": layer.scale})  # (batch * tokens, heads, size)
        out = out.view(batch, tokens, -1, values.shape[-1]).transpose(1, 2)
        return out.reshape(shape).to(values.dtype)


def _slice(place: Any) -> Any:
    """A list of one place as a slice: a list is sent to the device, as a recording must not."""
    if isinstance(place, list) and len(place) == 1 and type(place[0]) is int:
        return slice(place[0], place[0] + 1 or None)
    return place


class PassingCache(Cache):
    """Keeps nothing: what is there already is read by the attention itself. With `layers`, marks what comes by."""

    def __init__(self, of: dict[int, Layer] | None = None) -> None:
        super().__init__(layers=[])
        self._of = of

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        if self._of is None:
            return key_states, value_states
        return self._of.setdefault(layer_idx, Layer()).mark(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
