"""Crossover: does a small model's search run sooner here, or in `generate`'s own loop? Measured once a model.

Steps that run a model's own modules cost what `generate`'s do, and a search in Python takes its time beside them. With models of
any size that is nothing; with very small ones it may be more than is saved. So a few tokens are generated both ways, with the
same logits processors and outputs. What a user's own function would see of it is left out.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from time import thread_time
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from ..engine import Stats
from ..engine.logits_processing import BIASES, FALLING, OF_ONE_CALL, THEIRS
from ..engine.model_record import record_of
from ..engine.steps import checksum
from ..engine.steps.step_choice import step_for
from .call import Call
from .deferred_encoder import encoded
from .inputs import PreparedModel
from .limits import CallLimits
from .parity import hugging_face_strategy
from .processors import of_first_rows

_log = logging.getLogger(__name__)
INPUTS, TOKENS, TURNS = 4, 16, 3
EVEN = 1.1  # how many times as fast a search here has to be: what longer outputs cost it, a few tokens do not show
LARGE = 0.01  # seconds a step: with such a model nothing that is done beside it counts

Generate = Callable[[int], Any]
"""Generates so many tokens of each input."""


def sooner_by(theirs: Generate, ours: Generate, longest: int) -> float:
    """How many times as long they take for `longest` tokens, or for each after the first where that is less, from a few tokens.

    The best of a few turns each, of this thread's time, whatever else the machine does. The first token comes with the prompt,
    which is read once here and k times there: a long one would hide what the others take.
    """
    many = min(TOKENS, longest)
    best = {(run, tokens): float("inf") for tokens in (1, many) for run in (theirs, ours)}
    for _ in range(TURNS):
        for run, tokens in best:
            begun = thread_time()
            run(tokens)
            best[run, tokens] = min(best[run, tokens], thread_time() - begun)
    rest = [best[run, many] - best[run, 1] for run in (theirs, ours)]
    if min(rest) <= 0:
        return best[theirs, many] / best[ours, many]
    whole = [best[run, 1] + each * (longest - 1) / (many - 1) for run, each in zip((theirs, ours), rest, strict=True)]
    return min(rest[0] / rest[1], whole[0] / whole[1])


measure: Callable[[Generate, Generate, int], float] = sooner_by
"""What times the two; tests put in its place what does not depend on a clock."""


def ratio(call: Call, bounded: bool, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> float:
    """`generate`'s time over ours for inputs and settings like these; infinite where that need not be asked."""
    config, n = call.config, min(INPUTS, len(call.inputs))
    processors = LogitsProcessorList(each for each in call.processors if _repeatable(each))
    kinds = tuple(type(each) for each in processors)
    recorded = bool(config.return_dict_in_generate and config.output_scores)
    few = min(TOKENS, call.limits.n_max)
    key = config.num_beams, config.early_stopping is True, bounded, n, few, kinds, bool(call.limits.others), recorded
    found = record_of(call.model).ratios
    if key not in found:
        times = float("inf")
        try:
            hooked = not call.model.on_gpu and step_for(call.model).name == "hooked"
            checksum.make_checksum(call.model)
            if hooked:
                times = _measured(call, bounded, processors, input_ids, model_kwargs, n)
        except Exception:  # whatever it is, the call itself will tell
            _log.debug("not measured", exc_info=True)
        found[key] = times
    return found[key]


def _repeatable(processor: Any) -> bool:
    """Whether nobody sees it if a processor is asked more often, about the first few inputs."""
    kind = type(processor)
    return kind.__module__ == THEIRS and kind.__name__ in (FALLING | BIASES) - OF_ONE_CALL.keys()


class Never(StoppingCriteria):
    """In place of criteria of the user's: ends nothing."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _measured(
    call: Call, bounded: bool, processors: LogitsProcessorList, input_ids: torch.Tensor, model_kwargs: dict[str, Any], n: int
) -> float:
    k, prompt = call.config.num_beams, input_ids.shape[1]
    processors = LogitsProcessorList(of_first_rows(each, n * k) for each in processors)
    others = StoppingCriteriaList([Never()] if call.limits.others else [])
    inputs = call.inputs.first(n)
    few = replace(
        call,
        model=PreparedModel(call.model.model, call.model.modules, (), ()),
        config=copy.copy(call.config),
        inputs=inputs,
        processors=processors,
        may_be_slower=False,
        stats=Stats(),
        _roots={},
    )
    few.config._eos_token_tensor, few.config.num_return_sequences = None, 1

    def ours(tokens: int) -> None:
        few.config.max_length, few.limits = prompt + tokens, CallLimits(tokens, frozenset(), others)
        few.run(hugging_face_strategy(few.config, tokens, bounded), monotonic=bounded and not call.greedy)

    def theirs(tokens: int) -> None:
        few.config.max_length = prompt + tokens
        search = call.model.model._sample if k == 1 else call.model.model._beam_search
        given = {name: _first(value, n * k) for name, value in encoded(model_kwargs, len(input_ids)).items()}
        criteria = StoppingCriteriaList([MaxLengthCriteria(prompt + tokens), *others])
        search(input_ids[: n * k], processors, criteria, few.config, **given)

    ours(min(TOKENS, call.limits.n_max))
    if few.stats.model_seconds / max(1, few.stats.steps) > LARGE:
        return float("inf")
    return measure(theirs, ours, call.limits.n_max)


def _first(value: Any, rows: int) -> Any:
    """An argument of the model for the first rows; a cache, which is empty, is left as it is for the call itself."""
    if isinstance(value, torch.Tensor):
        return value[:rows] if value.dim() else value
    if hasattr(value, "keys") and hasattr(value, "to_tuple"):  # the encoder's output
        return type(value)(**{name: _first(part, rows) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(_first(part, rows) for part in value)
    return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value
