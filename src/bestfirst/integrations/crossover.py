"""Crossover: whether a small model is decoded faster by this engine or by `generate`'s own loop, measured once for each model.

A step that runs a model's own modules ("hooked") costs the same as in `generate`, and the search in Python comes on top. For all
but very small models that overhead is negligible; for very small ones it can exceed what the search saves. So a few tokens are
generated both ways, with the same logits processors and outputs, leaving out user functions that could notice the extra calls.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import thread_time
from typing import Any, NamedTuple

import torch
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from ..engine import Stats
from ..engine.cached_model import runner_of
from ..engine.logits_processing import BIASES, FALLING, OF_ONE_CALL, THEIRS
from ..engine.model_record import known_record, record_of
from ..engine.steps import checksum
from ..engine.steps.step_choice import outline_of, step_for
from ..models.torch_modules import Modules
from .call import Call
from .deferred_encoder import DeferredEncoderOutput, with_encoder_output
from .inputs import PreparedModel
from .limits import CallLimits
from .own_loop import in_inference_mode, keeps_nothing
from .parity import hugging_face_strategy
from .processors import for_first_rows

_log = logging.getLogger(__name__)
INPUTS, TOKENS = 4, 16
MORE_TOKENS, SMALL = 64, 0.002  # where a step takes less time: the search's own time, which grows with length, weighs more there
TURNS, MOST_TURNS = 3, 9
EVEN = 1.1  # the least ratio to search here: the short measurement does not show what longer outputs cost
UNCLEAR = 0.8, 1.4  # ratios between these are measured in more turns: one in three is a tenth off on a busy machine,
SECONDS = 0.5  # until that took so long: the call that measures should not wait much longer than it would have taken
LARGE = 0.01  # seconds a step from which the search's own time is negligible, so that nothing needs to be measured

Generate = Callable[[int], Any]
"""Generates this many tokens for each input."""


def speed_ratio(theirs: Generate, ours: Generate, longest: int, tokens: int = TOKENS) -> float:
    """The time of `theirs` over that of `ours`: the smaller of the ratios for the first `tokens` and for `longest`, extrapolated.

    Each time is the best of some turns, more where the ratio is unclear, in CPU time of this thread, so that other work on the
    machine does not count. The first token is measured by itself because it includes the prefill, which runs once here and k
    times in `generate`: the other tokens tell what a longer output takes.
    """
    many, ratio, start = min(tokens, longest), 1.0, thread_time()
    best = {(run, count): inf for count in (1, many) for run in (theirs, ours)}
    for turn in range(1, MOST_TURNS + 1):
        for run, count in best:
            begun = thread_time()
            run(count)
            best[run, count] = min(best[run, count], thread_time() - begun)
        ratio = _smaller_ratio([(best[run, 1], best[run, many]) for run in (theirs, ours)], many, longest)
        if turn >= TURNS and (not UNCLEAR[0] < ratio < UNCLEAR[1] or thread_time() - start > SECONDS):
            break
    return ratio


def _smaller_ratio(times: list[tuple[float, float]], many: int, longest: int) -> float:
    """See `speed_ratio`; `times`: of one token and of `many`, by `generate` and here."""
    measured = times[0][1] / times[1][1]
    if many == longest:
        return measured
    whole = [first + (most - first) * (longest - 1) / (many - 1) for first, most in times]
    return min(measured, whole[0] / whole[1]) if min(whole) > 0 else measured


measure: Callable[[Generate, Generate, int, int], float] = speed_ratio
"""The function that times the two; tests replace it with one that does not depend on a clock."""


def safe_to_repeat(processor: Any) -> bool:
    """Whether extra calls of a processor have no visible effect: one of transformers' own without state or data of the call."""
    kind = type(processor)
    return kind.__module__ == THEIRS and kind.__name__ in (FALLING | BIASES) - OF_ONE_CALL.keys()


class CallKind(NamedTuple):
    """What calls with one measurement have in common: similar lengths (of long prompts the prefill counts, of long outputs the
    rest), and settings of the same kind. Read from the arguments alone, so that a call that is known to be faster by `generate`'s
    own loop loses no time."""

    beams: int
    early_stopping: bool
    bounded: bool
    inputs: int
    prompt: int
    output: int
    processors: tuple[type, ...]
    criteria: bool
    recorded: bool

    @classmethod
    def of(
        cls, config: Any, limits: CallLimits, bounded: bool, processors: Sequence[Any], input_ids: torch.Tensor, encoded: Any
    ) -> CallKind:
        """The kind of a call with these arguments of `generate`; `encoded`: its encoder output, or what stands for it."""
        read = encoded.ids if isinstance(encoded, DeferredEncoderOutput) else getattr(encoded, "last_hidden_state", input_ids)
        return cls(
            config.num_beams,
            config.early_stopping is True,
            bounded,
            min(INPUTS, len(input_ids) // config.num_beams),
            read.shape[1].bit_length() // 2,
            min(MORE_TOKENS, limits.n_max).bit_length(),
            tuple(type(each) for each in processors if safe_to_repeat(each)),
            bool(limits.others),
            bool(config.return_dict_in_generate and config.output_scores),
        )


def known_reason(model: Any, modules: Modules, kind: CallKind) -> str | None:
    """Why `generate`'s own loop runs such calls of a model that consists of `modules`, if an earlier call has found that."""
    record = known_record(model)
    if record is None or record.tried != outline_of(modules) or model.device.type == "cuda":
        return None
    ratio = record.ratios.get(kind, inf)
    return record.unshared or (slower(ratio) if ratio < EVEN else None)


def slower(ratio: float) -> str:
    """Says that a search here would be slower."""
    return f"measured with this model, it takes {ratio:.2f} of the time of a search here"


def ratio(call: Call, kind: CallKind, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> float:
    """`generate`'s time over ours for such calls, measured once for each model and kind.

    Infinite where nothing has to be measured: on a GPU, with a step of the engine's own, for a large model, or after a failure.
    """
    record = record_of(call.model)
    with record.lock:  # the model's windows are narrowed while its steps are checked
        if kind not in record.ratios:
            measured = inf
            try:
                hooked = not call.model.on_gpu and step_for(call.model).name == "hooked"
                checksum.make_checksum(call.model)
                if hooked:
                    measured = _measure_call(call, kind, input_ids, model_kwargs)
            except Exception:  # the call itself will fail the same way, and report it
                _log.debug("not measured", exc_info=True)
            record.ratios[kind] = measured
        return record.ratios[kind]


class Never(StoppingCriteria):
    """Stands for the user's own criteria in the measurement: ends nothing."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _measure_call(call: Call, kind: CallKind, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> float:
    """Time a shortened copy of the call on its first inputs, both ways; infinite if the model's steps show that it is large."""
    if runner_of(call.model).budget().step_seconds > LARGE:
        return inf
    k, n, prompt = kind.beams, kind.inputs, input_ids.shape[1]
    processors = LogitsProcessorList(for_first_rows(each, n * k) for each in call.processors if safe_to_repeat(each))
    others = StoppingCriteriaList([Never()] if kind.criteria else [])
    inputs = call.inputs.first(n)
    few = replace(
        call,
        model=PreparedModel(call.model.model, call.model.modules, (), ()),
        config=copy.copy(call.config),
        inputs=inputs,
        processors=processors,
        may_fall_back=False,
        stats=Stats(),
        _roots={},
    )
    few.config._eos_token_tensor, few.config.num_return_sequences = None, 1
    search = call.model.model._sample if k == 1 else call.model.model._beam_search
    if keeps_nothing(call.model.model, call.model.modules, call.config, call.processors):
        search = partial(in_inference_mode, search, call.model.modules, others)

    def ours(tokens: int) -> None:
        few.config.max_length, few.limits = prompt + tokens, CallLimits(tokens, frozenset(), others)
        few.run(hugging_face_strategy(few.config, tokens, kind.bounded), monotonic=kind.bounded and not call.greedy)

    def theirs(tokens: int) -> None:
        few.config.max_length = prompt + tokens
        whole_batch = with_encoder_output(model_kwargs, len(input_ids))
        arguments = {name: _first_rows(value, n * k) for name, value in whole_batch.items()}
        criteria = StoppingCriteriaList([MaxLengthCriteria(prompt + tokens), *others])
        search(input_ids[: n * k], processors, criteria, few.config, **arguments)

    ours(min(TOKENS, call.limits.n_max))
    step_seconds = few.stats.model_seconds / max(1, few.stats.steps)
    if step_seconds > LARGE:
        return inf
    return measure(theirs, ours, call.limits.n_max, TOKENS if step_seconds > SMALL else MORE_TOKENS)


def _first_rows(value: Any, rows: int) -> Any:
    """An argument of the model, for the first rows. A cache (still empty) is copied, so that the call itself finds it unused."""
    if isinstance(value, torch.Tensor):
        return value[:rows] if value.dim() else value
    if hasattr(value, "keys") and hasattr(value, "to_tuple"):  # the encoder's output
        return type(value)(**{name: _first_rows(part, rows) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(_first_rows(part, rows) for part in value)
    return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value
