"""Calls the settings' logits processors for batches with hypotheses of mixed lengths and inputs.

A processor sees token ids of one length, so rows are passed in groups of equal length, with the prompt and with
log-probabilities: what `generate` passes to its processors in beam search. Ids and scores are tensors for transformers models
and for transformers' processors; for functions beside a user's own model they are numpy arrays, and there is no prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from ..models import Model
from ..search import ROUNDING, BrokenLaw, Hypothesis
from ..settings import Decoding

THEIRS = "transformers.generation.logits_process"
FALLING = frozenset({
    "EncoderNoRepeatNGramLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor", "EpsilonLogitsWarper", "EtaLogitsWarper",
    "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization",
    "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper", "NoRepeatNGramLogitsProcessor",
    "PrefixConstrainedLogitsProcessor", "RepetitionPenaltyLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper",
    "WhisperNoSpeechDetection", "WhisperTimeStampLogitsProcessor",
})  # fmt: skip
"""The transformers processors that keep log-probabilities at or below 0, except for NaN and infinite ones."""
BIASES = frozenset({"SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"})
OF_ONE_CALL = {
    "EncoderNoRepeatNGramLogitsProcessor": "the inputs of one call",
    "EncoderRepetitionPenaltyLogitsProcessor": "the inputs of one call",
    "PrefixConstrainedLogitsProcessor": "the numbers of a call's inputs; here that is allowed=",
    "SynthIDTextWatermarkLogitsProcessor": "what it has seen before",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "a second run of the model",
    "WhisperNoSpeechDetection": "the first step of a call",
}
"""The transformers processors that work only inside `generate`, and what they depend on."""


def never_rise(processors: Sequence[Any]) -> bool:
    """Whether no processor can raise a log-probability above 0, as bounds require. Others than transformers' say so by
    `never_rises = True`."""
    return all(map(_never_rises, processors))


def _never_rises(processor: Any) -> bool:
    kind = type(processor)
    if kind.__module__ != THEIRS:
        return getattr(processor, "never_rises", False) is True
    biased = kind.__name__ in BIASES
    return kind.__name__ in FALLING or (biased and max(processor.sequence_bias.values(), default=0) <= 0)


def bounds_hold(decoding: Decoding) -> bool:
    """Whether the search's bounds are valid with these processors, or it does not use bounds."""
    return never_rise(decoding.processors) or (decoding.plan.level_by_level and decoding.plan.stop.name == "exhausted")


def processing_for(model: Model, decoding: Decoding) -> Processing:
    """The processors of these settings, as a scorer calls them."""
    bounded = never_rise(decoding.processors) or decoding.plan.order.relies_on_bound
    return Processing(decoding.processors, model.hugging_face, bounded)


class Processing:
    """(hypotheses, log-probabilities (rows, vocabulary)) -> log-probabilities, of the same type.

    `bounded`: the search relies on bounds, so BrokenLaw if a processor raises a log-probability above 0.
    """

    def __init__(self, processors: Sequence[Any], hugging_face: bool, bounded: bool) -> None:
        for each in processors:
            if type(each).__module__ == THEIRS and (why := OF_ONE_CALL.get(type(each).__name__)) is not None:
                raise ValueError(f"{_name(each)} goes by {why}: give it to generate(..., custom_generate=bestfirst.generate)")
        self._prompt: Callable[[Hypothesis], Sequence[int]] = (lambda y: y.state[0].prompt) if hugging_face else (lambda y: ())
        self._bounded = bounded
        theirs = [any(kind.__module__ == THEIRS for kind in type(each).__mro__) for each in processors]
        if (hugging_face or any(theirs)) and find_spec("torch") is None:
            raise ValueError("processors of such a model get tensors: pip install 'bestfirst[transformers]'")
        self._processors = [(each, hugging_face or its) for each, its in zip(processors, theirs, strict=True)]

    def __call__(self, batch: Sequence[Hypothesis], scores: Any) -> Any:
        ids = [[*self._prompt(y), *y.tokens] for y in batch]
        scores = apply_by_length(self._group, ids, [*map(len, ids)], scores)
        if self._bounded and (highest := float(scores.max())) > 0:
            if highest > ROUNDING:
                after = batch[int((scores == scores.max()).any(1).nonzero()[0][0])].tokens
                raise BrokenLaw(
                    f"a processor lifts a log-probability after {list(after)} to {highest:.4g}, above 0, where no bound holds; "
                    "use strategy='beam'"
                )
            scores = scores.clip(max=0)
        return scores

    def _group(self, ids: list[list[int]], scores: Any) -> Any:
        import numpy as np

        tokens = np.array(ids, np.int64).reshape(len(ids), -1)
        for processor, of_tensors in self._processors:
            out = _on_tensors(processor, tokens, scores) if of_tensors else processor(tokens, scores)
            if getattr(out, "shape", None) != scores.shape:
                got = "None" if out is None else f"shape {tuple(out.shape)}" if hasattr(out, "shape") else type(out).__name__
                given = f"processor {_name(processor)} was given scores of shape {tuple(scores.shape)}"
                raise BrokenLaw(f"{given} and returned {got}; return as many")
            scores = out
        return scores


def apply_by_length(group: Callable[[Any, Any], Any], items: Sequence[Any], lengths: Sequence[int], scores: Any) -> Any:
    """Calls `group(items, scores)` for the items of each length; returns all scores (rows, vocabulary) in their order."""
    groups: dict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(lengths):
        groups[length].append(row)
    if len(groups) == 1:
        return group(items, scores)
    for rows in groups.values():
        scores[rows] = group([items[row] for row in rows], scores[rows])
    return scores


def _name(processor: Any) -> str:
    return getattr(processor, "__name__", type(processor).__name__)


def _on_tensors(processor: Any, ids: Any, scores: Any) -> Any:
    """Calls the processor with tensors, on the scores' device; `ids` is an array, and scores and result may be."""
    import torch

    if hasattr(scores, "detach"):
        return processor(torch.from_numpy(ids).to(scores.device), scores)
    out = processor(torch.from_numpy(ids), torch.from_numpy(scores))
    return out.numpy() if hasattr(out, "detach") else out
