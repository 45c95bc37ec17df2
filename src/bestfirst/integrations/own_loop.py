"""`generate`'s own loop in torch's inference mode: a tenth faster for small models, because torch keeps no versions of tensors.

What is made in that mode cannot be trained with later, so it is used only where nothing of the loop outlives the call but tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from ..engine.logits_processing import OF_ONE_CALL, THEIRS
from ..models.torch_modules import Modules


def keeps_nothing(model: Any, modules: Modules, config: Any, processors: Sequence[Any]) -> bool:
    """Whether all that `generate`'s own loop leaves behind is tokens: no other outputs, no cache that others hold, and a loop,
    processors, and a model of plain weights, not training, that run the libraries' code alone.

    The cache is `generate`'s own unless one is asked for, which it keeps; the caller has to know that none was passed.
    """
    if config.return_dict_in_generate or config.cache_implementation is not None or torch.is_inference_mode_enabled():
        return False
    if model.device.type not in ("cpu", "cuda") or torch.is_autocast_enabled(model.device.type):
        return False
    kinds = {type(each) for each in processors}
    known = all(kind.__module__ == THEIRS and kind.__name__ not in OF_ONE_CALL for kind in kinds)
    plain = all(type(each) is torch.nn.Parameter and type(each.data) is torch.Tensor for each in modules.weights)
    ordinary = plain and not any(weight.is_inference() for weight in modules.weights)
    changing = any(module.training or "_compiled_call_impl" in vars(module) for module in modules)  # it would be compiled anew
    return known and ordinary and not changing and modules.untouched and _runs_library_code(model)


def _runs_library_code(model: Any) -> bool:
    """Whether a model of untouched modules generates by `GenerationMixin`'s loops, without methods of the user's."""
    loops = type(model)._sample is GenerationMixin._sample and type(model)._beam_search is GenerationMixin._beam_search
    return loops and not any(map(callable, vars(model).values()))


class OutsideInferenceMode(StoppingCriteria):
    """A criterion of the user's, called with an ordinary tensor and as outside of inference mode. It has that one's attributes:
    `generate` pads what has ended if a criterion has an `eos_token_id`."""

    def __init__(self, criterion: Any) -> None:
        self._criterion = criterion

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return self._criterion(input_ids.clone(), scores, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._criterion, name)


def in_inference_mode(
    loop: Callable[..., torch.Tensor],
    modules: Modules,
    own: Sequence[Any],
    input_ids: torch.Tensor,
    processors: Sequence[Any],
    criteria: Sequence[Any],
    config: Any,
    /,
    **arguments: Any,
) -> torch.Tensor:
    """What `loop` returns, run in inference mode but for the user's `own` criteria: ordinary tokens. What a module or a processor
    has stored in itself meanwhile (a longer table of positions, a bias for each token) is made an ordinary tensor at the end."""
    criteria = StoppingCriteriaList(OutsideInferenceMode(each) if any(each is one for one in own) else each for each in criteria)
    try:
        with torch.inference_mode():
            tokens = loop(input_ids, processors, criteria, config, **arguments)
    finally:
        of_modules = [each for module in modules for each in (vars(module), module._buffers, module._parameters)]
        for stored in (*of_modules, *map(vars, processors)):
            for name, value in [*stored.items()]:  # a copy: another thread may add to it
                if isinstance(value, torch.Tensor) and value.is_inference():
                    stored[name] = _ordinary(value)
    return _ordinary(tokens)


def _ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor made in inference mode, as one that can be used like any other."""
    copy = tensor.clone()
    return torch.nn.Parameter(copy, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else copy
