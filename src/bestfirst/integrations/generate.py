"""generate: best-first beam search for Hugging Face models, by one argument.

    model.generate(**inputs, num_beams=5, custom_generate=bestfirst.generate)

`docs/from-transformers.md` has what happens to each argument of `generate`. At the end: what `generate` keeps back from a
callable, and the folder route.
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
from .deferred_encoder import GENERATE, DeferredEncoderOutput, WithDeferredEncoder, encoded
from .inputs import PreparedModel, read_inputs, with_masks_here
from .limits import read_limits
from .outputs import Outputs, output_of, padding
from .parity import hugging_face_strategy, own_score, own_strategy
from .processors import NotMonotonic, banned_tokens
from .refusals import OwnLoop, left_to_generate, refuse

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

    `generate` itself fills in all arguments but these:

    score       what a hypothesis is worth instead of `length_penalty`: an object of `bestfirst.scoring`, or its name and
                parameters (`score_options`)
    strategy    how to search, by name or as a `Strategy`, instead of what `early_stopping` asks for
    allowed     what may be written: a `bestfirst.Trie` of the outputs there are, or another `Constraint`
    dtype       "int8": products are taken in eight bits, of models that are compiled; the answers are then those of that model
    row_budget  rows in a forward pass; by default what suits the model, measured at its first call
    deterministic  the same bits for an input whatever shares its batch (`Decoding`); on a GPU
    trace       called with an input's number, returns where its search is recorded
    stats       a `bestfirst.Stats`: what it cost is added to it, as by `decode`; `search`, how it was searched, and `results`,
                one for each input, are the last call's

    Where `generate`'s own loop is faster, that runs: `stats.engine` says so. Raises ValueError for whatever cannot be honoured.
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
    caller = kept_back()
    refuse(config)
    own = score is not None or strategy is not None
    draft = caller.drafter(config)
    if dtype not in (None, INT8):
        raise ValueError(f"dtype must be {INT8!r} or None, got {dtype!r}: otherwise it is what the model was loaded in")
    ours = own or draft is not None or deterministic or dtype is not None
    may_be_slower = not ours and trace is None and row_budget is None and allowed is None

    def own_loop(why: object) -> Any:
        """Hugging Face's own search; it gets what we got."""
        _log.info("generate runs its own loop: %s", why)
        count(Stats(engine="generate", search=f"by generate itself: {why}"))
        asked = {"synced_gpus": bool(caller.synced_gpus), **encoded(model_kwargs, len(input_ids))}
        if config.num_beams == 1:
            return model._sample(input_ids, logits_processor, stopping_criteria, config, streamer=caller.streamer, **asked)
        return streamed(model._beam_search(input_ids, logits_processor, stopping_criteria, config, **asked))

    def count(cost: Stats) -> None:
        if stats is not None:
            stats.add(cost)
            stats.search, stats.results = cost.search, cost.results

    streamed = partial(stream, caller.streamer, config.num_return_sequences, input_ids.shape[1])
    given = with_masks_here(model_kwargs, config.num_beams)
    late = model_kwargs.get("encoder_outputs")
    modules = late.modules if isinstance(late, DeferredEncoderOutput) else every_module(model)
    why = left_to_generate(model, modules, config, logits_processor, input_ids, given)
    if why is None and caller.synced_gpus:
        why = "synced_gpus: every process has to run the model as often as the others"
    if why is None and config.num_beams == 1 and caller.streamer is not None:
        why = "streamer: it gives each token as soon as it is known"
    limits = read_limits(stopping_criteria, config, input_ids.shape[1])
    if why is None and not own and config.num_beams == 1 and limits.others and not limits.eos and len(input_ids) > 1:
        why = "without an EOS, what a criterion has ended goes on until all have ended"
    if why is not None:
        if may_be_slower:
            return own_loop(why)
        raise ValueError(
            "bestfirst.generate cannot honour score, strategy, allowed, dtype, deterministic, trace, row_budget or a draft here: "
            f"{why}"
        )
    banned = banned_tokens(logits_processor)
    wrapped = PreparedModel(model, modules, limits.eos, banned or ())
    if dtype is not None and wrapped.on_gpu:
        raise ValueError(f"dtype {dtype!r} is for a CPU, the model is on {model.device}; load it in bf16 there")
    wrapped.eight_bits = dtype is not None
    inputs = read_inputs(wrapped, input_ids, config.num_beams, inputs_tensor, given)
    call = Call(
        model=wrapped,
        config=config,
        inputs=inputs,
        limits=limits,
        settings={
            "score": own_score(config, score, score_options or {}),
            "allowed": allowed,
            "row_budget": row_budget,
            "deterministic": deterministic,
            "draft": draft,
        },
        processors=() if banned is not None else logits_processor,
        greedy=config.num_beams == 1 and not own,
        trace=trace,
        may_be_slower=may_be_slower,
    )

    def run(bounded: bool) -> None:
        plan = own_strategy(config, score, strategy, bounded) if own else hugging_face_strategy(config, limits.n_max, bounded)
        call.run(plan, monotonic=bounded and not call.greedy)

    bounded = not limits.others and (never_rise(logits_processor) or strategy is not None)
    try:
        if may_be_slower and (times := crossover.ratio(call, bounded, input_ids, model_kwargs)) < crossover.EVEN:
            raise OwnLoop(f"measured with this model, it takes {times:.2f} of the time of a search here")
        try:
            run(bounded)
        except NotMonotonic:
            run(bounded=False)
    except OwnLoop as why_so:
        return own_loop(why_so)
    count(call.summary())
    outputs = Outputs(inputs, call.results, config.num_return_sequences, padding(config, call.greedy))
    return streamed(output_of(outputs, config, call.record, wrapped.encoder_decoder, call.greedy))


class KeptBack(NamedTuple):
    """What `generate` was given; None where nobody gave it."""

    streamer: Any = None
    synced_gpus: bool | None = None
    assistant_model: Any = None

    def drafter(self, config: Any) -> Drafter | None:
        """Who guesses ahead: `assistant_model`, or `prompt_lookup_num_tokens`; None where neither is asked for."""
        if self.assistant_model is None:
            most = getattr(config, "prompt_lookup_num_tokens", None)
            return SourceLookup(most) if most else None
        if not hasattr(self.assistant_model, "get_output_embeddings"):
            raise ValueError(f"assistant_model must be a model of transformers, got {type(self.assistant_model).__name__}")
        return SmallerModel(TransformersModel(self.assistant_model))


def kept_back() -> KeptBack:
    """Read from the frame of the `generate` that called us. Else a streamer's consumer would wait for its end for ever."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not GENERATE:
        frame = frame.f_back  # type: ignore[assignment]
    return KeptBack() if frame is None else KeptBack(*map(frame.f_locals.get, KeptBack._fields))


def stream(streamer: Any, n: int, prompt_length: int, output: Any) -> Any:
    """The output. A streamer gets each input's best of `n`, a token at a time as greedy search would have given it: none was
    final before the end."""
    if streamer is not None:
        sequences: torch.Tensor = output if isinstance(output, torch.Tensor) else output.sequences
        for tokens in sequences[::n, prompt_length:].cpu().unbind(1):
            streamer.put(tokens)
        streamer.end()
    return output


def generate_with(model: Any, arguments: dict[str, Any]) -> Any:
    """The folder route: `custom_generate="<folder>"` hands over the arguments of `generate` before anything was done with them.
    What a callable would not be given is honoured or refused, stop strings meet their tokenizer."""
    if arguments.get("cache_implementation") == "paged":
        raise ValueError("bestfirst.generate cannot honour cache_implementation='paged': it is not beam search; leave it out")
    kept = {name: value for name, value in arguments.items() if value is not None}
    if "streamer" in kept:
        kept["streamer"] = OnePrompt(kept["streamer"])
    tokenizer, config = kept.pop("tokenizer", None), copy.copy(kept.get("generation_config"))
    strings = kept.get("stop_strings", getattr(config, "stop_strings", None))
    if tokenizer is not None and strings is not None:
        kept.pop("stop_strings", None)
        if config is not None:
            kept["generation_config"], config.stop_strings = config, None
        given = kept.get("stopping_criteria", ())
        if not any(type(each) is StopStringCriteria for each in given):  # as in `generate`, one that is given is all there is
            kept["stopping_criteria"] = StoppingCriteriaList([*given, StopStringCriteria(tokenizer, strings)])
    return model.generate(**kept, custom_generate=generate)


class OnePrompt:
    """A streamer that sees a prompt once: `generate` has copied it for every row of the beam by then."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self.end = streamer.end

    def put(self, tokens: torch.Tensor) -> None:
        copies = tokens.dim() == 2 and bool((tokens == tokens[0]).all())
        self._streamer.put(tokens[:1] if copies else tokens)
