"""generate: best-first beam search for Hugging Face models, by one argument.

    model.generate(**inputs, num_beams=5, custom_generate=bestfirst.generate)

`docs/from-transformers.md` lists what happens to each argument of `generate`. The call is checked (`refusals`), its inputs and
limits are read (`inputs`, `limits`), the search with the same result is chosen (`parity`), and a `Call` runs it. `generate`'s own
loop runs where only it can do what is asked, or where it is faster. At the end: the entry point of the Hub folder.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from ..constraints import Constraint
from ..drafting import Drafter, SourceLookup
from ..engine import Stats, no_garbage_collection
from ..engine.logits_processing import never_rise
from ..engine.smaller_model import SmallerModel
from ..models.text_model import INT8
from ..models.torch_modules import every_module
from ..models.transformers import TransformersModel
from ..scoring import Score
from ..search import Strategy, Trace
from . import crossover
from .call import Call
from .deferred_encoder import GENERATE, DeferredEncoderOutput, WithDeferredEncoder, with_encoder_output
from .inputs import PreparedModel, read_inputs, with_host_masks
from .limits import read_limits
from .outputs import build_output
from .own_loop import in_inference_mode, keeps_nothing
from .parity import hugging_face_strategy, own_score, own_strategy
from .processors import NotMonotonic, banned_tokens
from .refusals import OwnLoop, reason_for_own_loop, refuse

_log = logging.getLogger(__name__)


@WithDeferredEncoder
@torch.no_grad()
@no_garbage_collection()
def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: Any = None,
    *,
    score: str | Score | None = None,
    score_options: Mapping[str, Any] | None = None,
    strategy: str | Strategy | None = None,
    allowed: Constraint | None = None,
    dtype: str | None = None,
    row_budget: int | None = None,
    deterministic: bool = False,
    trace: Callable[[int], Trace | None] | None = None,
    stats: Stats | None = None,
    inputs_tensor: torch.Tensor | None = None,
    **model_kwargs: Any,
) -> Any:
    """For `model.generate(..., custom_generate=bestfirst.generate)`: the same outputs and scores, from fewer model calls.

    `generate` itself fills in all arguments except these:

    score       what a hypothesis is worth instead of `length_penalty`: an object of `bestfirst.scoring`, or its name and
                parameters (`score_options`)
    strategy    how to search, by name or as a `Strategy`; "best-first" and "beam" still stop as `early_stopping` says
    allowed     the outputs that are possible: a `bestfirst.Trie` of them, or another `Constraint`
    dtype       "int8": matrix products in eight bits, for models with a compiled step; the answers are those of that model
    row_budget  rows in a forward pass; by default what suits the model, measured at its first call
    deterministic  the same bits for an input whatever shares its batch (`Decoding`); on a GPU
    trace       a function from an input's number to the `Trace` that records its search
    stats       a `bestfirst.Stats`, to which the costs are added, as by `decode`; its `search` (the kind of search) and `results`
                (one for each input) are those of the last call

    Where `generate`'s own loop is faster, or only it can do what is requested, that loop runs, and `stats.engine` says so.
    ValueError for what cannot be honoured.
    """
    config = generation_config
    if config is None:
        raise TypeError("bestfirst.generate is not called by itself: use model.generate(..., custom_generate=bestfirst.generate)")
    if stats is not None and not isinstance(stats, Stats):
        raise TypeError(f"stats must be a bestfirst.Stats, got {type(stats).__name__}")
    if trace is not None and not callable(trace):
        raise TypeError(f"trace must be a function from an input's number to a bestfirst.Trace, got {trace!r:.60}")
    if isinstance(allowed, str):
        raise TypeError(f"allowed must be a bestfirst.Trie or another constraint, got {allowed!r:.60}; Trie.of_texts makes one")
    caller = withheld_arguments()
    refuse(config)
    own = score is not None or strategy is not None
    greedy = config.num_beams == 1 and not own
    objective = own_score(0.0 if greedy else config.length_penalty, score, score_options or {})
    draft = caller.drafter(config)
    if dtype not in (None, INT8):
        raise ValueError(f"dtype must be {INT8!r} or None, got {dtype!r}: otherwise it is what the model was loaded in")
    ours = own or draft is not None or deterministic or dtype is not None
    may_fall_back = not ours and trace is None and row_budget is None and allowed is None

    def own_loop(why: object) -> Any:
        """Run Hugging Face's own search with the same arguments, and return its output."""
        _log.info("generate runs its own loop: %s", why)
        count(Stats(engine="generate", search=f"by generate itself: {why}"))
        asked = {"synced_gpus": bool(caller.synced_gpus), **with_encoder_output(model_kwargs, len(input_ids))}
        loop = partial(model._sample, streamer=caller.streamer) if config.num_beams == 1 else model._beam_search
        if caller.sees_tokens_only and keeps_nothing(model, modules, config, logits_processor):
            loop = partial(in_inference_mode, loop, modules, limits.others)
        output = loop(input_ids, logits_processor, stopping_criteria, config, **asked)
        return output if config.num_beams == 1 else streamed(output)

    def count(cost: Stats) -> None:
        if stats is not None:
            stats.add(cost)
            stats.search, stats.results = cost.search, cost.results

    streamed = partial(stream, caller.streamer, config.num_return_sequences, input_ids.shape[1])
    deferred = model_kwargs.get("encoder_outputs")
    modules = deferred.modules if isinstance(deferred, DeferredEncoderOutput) else every_module(model)
    limits, banned = read_limits(stopping_criteria, config, input_ids.shape[1]), banned_tokens(logits_processor)
    processors = () if banned is not None else logits_processor
    bounded = not limits.others and (never_rise(logits_processor) or strategy is not None)
    kind = crossover.CallKind.of(config, limits, bounded, processors, input_ids, deferred)
    if may_fall_back and (known := crossover.known_reason(model, modules, kind)) is not None:
        return own_loop(known)
    host_kwargs = with_host_masks(model_kwargs, config.num_beams)
    why = reason_for_own_loop(model, modules, config, logits_processor, input_ids, host_kwargs)
    if why is None and caller.synced_gpus:
        why = "synced_gpus: every process has to run the model as often as the others"
    if why is None and caller.holds_cache:
        why = "past_key_values: the caller's cache has to be filled"
    if why is None and config.num_beams == 1 and caller.streamer is not None:
        why = "streamer: it gives each token as soon as it is known"
    if why is None and greedy and limits.others and not limits.eos and len(input_ids) > 1:
        why = "without an EOS, what a criterion has ended goes on until all have ended"
    if why is not None:
        if may_fall_back:
            return own_loop(why)
        own_arguments = "score, strategy, allowed, dtype, deterministic, trace, row_budget or a draft"
        raise ValueError(f"bestfirst.generate cannot honour {own_arguments} here: {why}")
    wrapped = PreparedModel(model, modules, limits.eos, banned or ())
    if dtype is not None and wrapped.on_gpu:
        raise ValueError(f"dtype {dtype!r} is for a CPU, the model is on {model.device}; load it in bf16 there")
    wrapped.eight_bits = dtype is not None
    settings = {"score": objective, "allowed": allowed, "row_budget": row_budget, "deterministic": deterministic, "draft": draft}
    call = Call(
        model=wrapped,
        config=config,
        inputs=read_inputs(wrapped, input_ids, config.num_beams, inputs_tensor, host_kwargs),
        limits=limits,
        settings=settings,
        processors=processors,
        greedy=greedy,
        trace=trace,
        may_fall_back=may_fall_back,
    )

    def run(bounded: bool) -> None:
        plan = own_strategy(config, score, strategy, bounded) if own else hugging_face_strategy(config, limits.n_max, bounded)
        call.run(plan, monotonic=bounded and not call.greedy)

    try:
        if may_fall_back and (ratio := crossover.ratio(call, kind, input_ids, model_kwargs)) < crossover.EVEN:
            raise OwnLoop(crossover.slower(ratio))
        try:
            run(bounded)
        except NotMonotonic:
            run(bounded=False)
    except OwnLoop as why_so:
        return own_loop(why_so)
    count(call.summary())
    return streamed(build_output(call))


class KeptBack(NamedTuple):
    """Arguments of `generate` that it does not hand to a callable; None where not given."""

    streamer: Any = None
    synced_gpus: bool | None = None
    assistant_model: Any = None
    kwargs: Mapping[str, Any] | None = None  # all those that `generate` does not name: for its config and for the model

    @property
    def sees_tokens_only(self) -> bool:
        """Whether the caller neither watches the search nor holds the cache that it fills."""
        return self.kwargs is not None and not self.holds_cache and self.streamer is None and not self.synced_gpus

    @property
    def holds_cache(self) -> bool:
        """Whether the caller passes a cache, which is to be filled for its next call."""
        return any((self.kwargs or {}).get(name) is not None for name in ("past_key_values", "cache_params"))

    def drafter(self, config: Any) -> Drafter | None:
        """The drafter for `assistant_model` or `prompt_lookup_num_tokens`; None without either."""
        if self.assistant_model is None:
            most = getattr(config, "prompt_lookup_num_tokens", None)
            return SourceLookup(most) if most else None
        if not hasattr(self.assistant_model, "get_output_embeddings"):
            raise ValueError(f"assistant_model must be a model of transformers, got {type(self.assistant_model).__name__}")
        return SmallerModel(TransformersModel(self.assistant_model))


def withheld_arguments() -> KeptBack:
    """Read these arguments from the stack frame of `generate`. Without them, a streamer's consumer would wait forever."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not GENERATE:
        frame = frame.f_back  # type: ignore[assignment]
    return KeptBack() if frame is None else KeptBack(*map(frame.f_locals.get, KeptBack._fields))


def stream(streamer: Any, n: int, prompt_length: int, output: Any) -> Any:
    """Returns the output, after giving a streamer the best of each input's `n`, token by token as greedy search would. It gets
    them all at the end, since no token of a beam search is final earlier."""
    if streamer is not None:
        sequences: torch.Tensor = output if isinstance(output, torch.Tensor) else output.sequences
        for tokens in sequences[::n, prompt_length:].cpu().unbind(1):
            streamer.put(tokens)
        streamer.end()
    return output


def generate_with(model: Any, arguments: dict[str, Any]) -> Any:
    """The entry point of the Hub folder: `custom_generate="<folder>"` passes on the raw arguments of `generate`. Handles those
    that a callable does not get: refuses a paged cache, and combines `stop_strings` with the tokenizer."""
    if arguments.get("cache_implementation") == "paged":
        raise ValueError("bestfirst.generate cannot honour cache_implementation='paged': it is not beam search; leave it out")
    given = {name: value for name, value in arguments.items() if value is not None}
    if "streamer" in given:
        given["streamer"] = OnePrompt(given["streamer"])
    tokenizer, config = given.pop("tokenizer", None), copy.copy(given.get("generation_config"))
    strings = given.get("stop_strings", getattr(config, "stop_strings", None))
    if tokenizer is not None and strings is not None:
        given.pop("stop_strings", None)
        if config is not None:
            given["generation_config"], config.stop_strings = config, None
        criteria = given.get("stopping_criteria", ())
        if not any(type(each) is StopStringCriteria for each in criteria):  # the user's own replaces it, as in `generate`
            given["stopping_criteria"] = StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, strings)])
    return model.generate(**given, custom_generate=generate)


class OnePrompt:
    """Wraps a streamer so that it gets the prompt once, although `generate` has repeated it for every row of the beam."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self.end = streamer.end

    def put(self, tokens: torch.Tensor) -> None:
        copies = tokens.dim() == 2 and bool((tokens == tokens[0]).all())
        self._streamer.put(tokens[:1] if copies else tokens)
