"""Crossover: does a small model's search run sooner here, or in `generate`'s own loop? Measured once a model.

Steps that run a model's own modules cost what `generate`'s do, and a search in Python takes its time beside them. With models of
any size that is nothing; with very small ones it may be more than is saved. So a few tokens are generated both ways.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList

from ..engine import Stats
from ..engine.known import known
from ..engine.steps import checksum
from ..engine.steps.choose import step_for
from .call import Call
from .inputs import PreparedModel
from .limits import CallLimits
from .parity import hugging_face_strategy

_log = logging.getLogger(__name__)
INPUTS, TOKENS, TURNS = 4, 8, 3
LARGE = 0.01  # seconds a step: with such a model nothing that is done beside it counts

Measure = Callable[[Callable[[], Any], Callable[[], Any]], float]


def sooner_by(theirs: Callable[[], Any], ours: Callable[[], Any]) -> float:
    """How many times as long they take, the best of a few turns each."""
    best = [float("inf")] * 2
    for _ in range(TURNS):
        for place, run in enumerate((theirs, ours)):
            begun = perf_counter()
            run()
            best[place] = min(best[place], perf_counter() - begun)
    return best[0] / best[1]


measure: Measure = sooner_by
"""What times the two; tests put in its place what does not depend on a clock."""


def ratio(call: Call, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> float:
    """`generate`'s time over ours for inputs like these; infinite where that need not be asked."""
    config, n = call.config, min(INPUTS, len(call.inputs))
    found, key = known(call.model).ratios, (config.num_beams, config.early_stopping is True, n)
    if key not in found:
        found[key] = float("inf")
        try:
            hooked = not call.model.on_gpu and step_for(call.model).name == "hooked"
            checksum.sum_up(call.model)
            if hooked:
                found[key] = _measured(call, input_ids, model_kwargs, n)
        except Exception:  # whatever it is, the call itself will tell
            _log.debug("not measured", exc_info=True)
    return found[key]


def _measured(call: Call, input_ids: torch.Tensor, model_kwargs: dict[str, Any], n: int) -> float:
    k, longest = call.config.num_beams, input_ids.shape[1] + min(TOKENS, call.limits.n_max)
    config = copy.copy(call.config)
    config.max_length, config._eos_token_tensor, config.num_return_sequences = longest, None, 1
    config.return_dict_in_generate = False
    criteria = StoppingCriteriaList([MaxLengthCriteria(longest)])
    inputs = replace(call.inputs, ids=call.inputs.ids[:n], prompts=call.inputs.prompts[:n], lengths=call.inputs.lengths[:n])
    few = replace(
        call,
        model=PreparedModel(call.model.model, (), ()),
        config=config,
        inputs=inputs,
        limits=CallLimits(longest - input_ids.shape[1], frozenset(), StoppingCriteriaList()),
        processors=(),
        may_be_slower=False,
        stats=Stats(),
        _roots={},
    )

    def ours() -> None:
        few.run(hugging_face_strategy(config, few.limits.n_max, bounded=True), monotonic=False)

    def theirs() -> None:
        search = call.model.model._sample if k == 1 else call.model.model._beam_search
        given = {name: _first(value, n * k) for name, value in model_kwargs.items()}
        search(input_ids[: n * k], LogitsProcessorList(), criteria, config, **given)

    ours()
    if few.stats.model_seconds / max(1, few.stats.steps) > LARGE:
        return float("inf")
    return measure(theirs, ours)


def _first(value: Any, rows: int) -> Any:
    """An argument of the model for the first rows; a cache, which is empty, is left as it is for the call itself."""
    if isinstance(value, torch.Tensor):
        return value[:rows] if value.dim() else value
    if hasattr(value, "keys") and hasattr(value, "to_tuple"):  # the encoder's output
        return type(value)(**{name: _first(part, rows) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(_first(part, rows) for part in value)
    return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value
