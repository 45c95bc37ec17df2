"""Step check: whether a step computes what the model computes, on a few branching hypotheses of the model's own vocabulary.

The check tests what the library promises: in fp32 no log-probability differs by more than 1e-4, or by more than four times
what the model's own differ when its hypotheses are batched otherwise. Other precisions round more; there the mean difference
decides.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

import torch

from ...models.reader import Prompt
from ...models.transformers import TransformersModel, evaluating
from ..runner import Runner
from .decoder_step import DecoderStep
from .hooked import HookedStep
from .tree import source_width
from .windows import narrowed

PROMISED = 1e-4  # how far off a log-probability may be where matmuls are exact to fp32
MEAN_LIMITS = {torch.float16: 0.03, torch.bfloat16: 0.2}  # of `Distance.mean`, by dtype; fp32: 1e-4, or 0.02 with TF32

_log = logging.getLogger(__name__)
Hypotheses = list[list[tuple[int, ...]]]  # token tuples by length


class Distance(NamedTuple):
    """How far apart two arrays are: the mean difference in units of the reference's spread, and the largest difference."""

    mean: float
    most: float


def agreeing_step(candidate: type[DecoderStep], model: TransformersModel) -> DecoderStep | None:
    """A step of this class for the model, if it computes what the model computes from scratch, for two inputs, one of which
    branches at every length."""
    try:
        step, narrow = candidate(model.model), narrowed(model, 3)
        tried = step if narrow is model else candidate(narrow.model)
        return step if agrees(tried, narrow) else None
    except Exception:  # any failure rules out this candidate only
        _log.debug("%s cannot run %s", candidate.__name__, type(model.model).__name__, exc_info=True)
        return None


@torch.inference_mode()
def agrees(step: DecoderStep, model: TransformersModel) -> bool:
    """Whether the step's logits after some hypotheses of two inputs are the model's own, up to rounding."""
    prompts, trees = trial_prompts(model), [branches(model, 2), branches(model, 1)]
    logits = run_trees(step, model, prompts, trees)
    return close(type(step).__name__, model, prompts, trees, logits)


@torch.inference_mode()
def agrees_without_masks(step: HookedStep, model: TransformersModel) -> bool:
    """Whether a step computes the same with masks that hide nothing and without them, for a prompt of a few tokens."""
    logprobs: list[torch.Tensor] = []
    try:
        for omit_masks in (False, True):
            step.omit_masks = omit_masks
            [logits] = run_trees(step, model, trial_prompts(model)[:1], [[[()]]])
            logprobs.append(logits[()].float().log_softmax(-1))
    except Exception:
        _log.debug("%s needs its masks", type(model.model).__name__, exc_info=True)
        return False
    return within("the step without masks", model.model, [distance(*logprobs)], PROMISED if precise(model.model) else inf)


@torch.inference_mode()
def encoder_agrees(encode: Callable[[list[int]], torch.Tensor], model: Any) -> bool:
    """Whether `encode` (token ids to hidden states (length, d)) computes what a Hugging Face model's encoder computes."""
    encoder, config = model.get_encoder(), model.config
    tokens = sample_tokens(encoder, config.vocab_size, {getattr(config, "pad_token_id", None)})
    tokens = tokens[: getattr(config, "max_position_embeddings", None) or 12]
    distances = []
    try:
        with evaluating(encoder.modules()):
            for n in (1, 5, 12):
                ids = torch.tensor([tokens[:n]], device=model.device)
                expected = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
                distances.append(distance(encode(tokens[:n]), expected))
    except Exception:
        _log.debug("the encoder of %s cannot be run here", type(model).__name__, exc_info=True)
        return False
    return within("the encoder", model, distances, inf)


def precise(model: Any) -> bool:
    """Whether a model's matmuls are meant to be exact to fp32."""
    return model.dtype not in MEAN_LIMITS and torch.get_float32_matmul_precision() == "highest"


def within(name: str, model: Any, distances: list[Distance], limit: float) -> bool:
    """Whether these are rounding errors, at most `limit`. A sharp model magnifies some: a mean may be ten times the tolerance."""
    tolerance = MEAN_LIMITS.get(model.dtype, 1e-4 if precise(model) else 0.02)
    means = [d.mean for d in distances]
    mean, worst, most = sum(means) / len(means), max(means), max(d.most for d in distances)
    _log.debug("%s differs from %s by %.2g, at most %.2g; a number by %.2g", name, type(model).__name__, mean, worst, most)
    return mean <= tolerance and worst <= min(10 * tolerance, 0.5) and most <= limit


def sample_tokens(module: Any, vocabulary: int, special: set[Any]) -> list[int]:
    """Up to 64 pseudo-random tokens that an encoder or decoder has embeddings for, none of them special: the same each time.

    A token without an embedding would be an error of the device, after which its process cannot use it again.
    """
    with suppress(AttributeError, NotImplementedError):  # embeddings that cannot be asked for
        vocabulary = min(vocabulary, len(module.get_input_embeddings().weight))
    sample = random.Random(0).sample(range(vocabulary), min(64, vocabulary))
    return [token for token in sample if token not in special]


def trial_tokens(model: TransformersModel, n: int) -> list[int]:
    """`n` tokens of the model's vocabulary, none of them special in its config; repeated if it has fewer."""
    config = model.model.config.get_text_config(decoder=True)
    named = (getattr(config, name, None) for name in ("pad_token_id", "bos_token_id"))  # T5 has no BOS
    special = {*model.eos, *model.banned, *model.start_tokens, *named}
    tokens = sample_tokens(model.model.get_decoder(), config.vocab_size, special)
    return [tokens[i % len(tokens)] for i in range(n)]


def trial_prompts(model: TransformersModel) -> list[Prompt]:
    """Two inputs of unequal lengths, the first with a prompt of several tokens."""
    first, second = (*model.start_tokens, *trial_tokens(model, 3)), model.start_tokens or tuple(trial_tokens(model, 1))
    if not model.encoder_decoder:
        return [Prompt(None, first), Prompt(None, second)]
    # Only the decoder is checked: any encoder output will do. Audio and image encoders have sources of one length only.
    lengths = (5, 3) if model.model.main_input_name == "input_ids" else (5, 5)
    size = source_width(model.model.config)
    noise = [torch.randn(n, size, generator=torch.Generator().manual_seed(n)) for n in lengths]
    hidden = [x.to(model.model.device, model.model.dtype) for x in noise]
    return [Prompt(None, first, hidden=hidden[0]), Prompt(None, second, hidden=hidden[1])]


def branches(model: TransformersModel, width: int) -> Hypotheses:
    """A tree of hypotheses by length, up to 3, in which each has `width` continuations."""
    tokens = trial_tokens(model, width + 3)
    levels: Hypotheses = [[()]]
    for level in range(3):
        levels.append([(*y, token) for y in levels[-1] for token in tokens[level : level + width]])
    return levels


def run_trees(
    step: DecoderStep, model: TransformersModel, prompts: list[Prompt], trees: list[Hypotheses]
) -> list[dict[tuple[int, ...], torch.Tensor]]:
    """The step's logits after every hypothesis of each input's tree, level by level, all inputs at once."""
    runner = Runner(model, step)
    sentences = runner.admit(prompts)
    slots: list[dict[tuple[int, ...], int]] = [{} for _ in prompts]
    results: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in prompts]
    for level in zip(*trees, strict=True):
        batch = [(i, y) for i, ys in enumerate(level) for y in ys]
        new_slots, logits = runner.step([sentences[i].row(y, slots[i].get(y[:-1], 0)) for i, y in batch])
        logits = logits.clone()  # the next step may reuse this memory
        for (i, y), slot, row in zip(batch, new_slots, logits, strict=True):
            slots[i][y] = slot
            results[i][y] = row
    return results


def differences(
    model: TransformersModel, prompt: Prompt, levels: Hypotheses, logits: dict[tuple[int, ...], torch.Tensor]
) -> tuple[list[Distance], float]:
    """The distance of each hypothesis' log-probabilities from the model's; and how far the model's own vary with the batch."""
    leaves = levels[-1]
    whole = torch.tensor([[*prompt.tokens, *leaf] for leaf in leaves], device=model.model.device)

    def logprobs(tokens: torch.Tensor) -> torch.Tensor:
        """(hypotheses, depth + 1, vocabulary)"""
        return model.logits(prompt, tokens)[:, len(prompt.tokens) - 1 :].float().log_softmax(-1)

    expected = logprobs(whole)
    distances = []
    for y, row in logits.items():
        leaf = next(i for i, leaf in enumerate(leaves) if leaf[: len(y)] == y)
        distances.append(distance(row.float().log_softmax(-1), expected[leaf, len(y)]))
    noise = distance(logprobs(whole[:1])[0], expected[0]).most
    return distances, noise if noise < inf else 0.0


def close(
    name: str, model: TransformersModel, prompts: list[Prompt], trees: list[Hypotheses], logits: list[dict[tuple[int, ...], Any]]
) -> bool:
    """Whether the logits after all hypotheses of each input are the model's own, up to rounding."""
    compared = [differences(model, *each) for each in zip(prompts, trees, logits, strict=True)]
    distances = [distance for each, _ in compared for distance in each]
    noise = max(own for _, own in compared)
    return within(name, model.model, distances, max(PROMISED, 4 * noise) if precise(model.model) else inf)


def distance(computed: torch.Tensor, expected: torch.Tensor) -> Distance:
    """How far two arrays are apart; infinitely, if they are not finite in the same places."""
    computed, expected = computed.float(), expected.float()
    finite = expected.isfinite()
    if not torch.equal(finite, computed.isfinite()):
        return Distance(inf, inf)
    if not finite.any():
        return Distance(0.0, 0.0)  # the model itself returns no numbers, which a search reports
    computed, expected = computed[finite], expected[finite]
    spread = (expected - expected.median()).abs().median().clamp(min=0.01)
    off = (computed - expected).abs()
    return Distance(float(off.mean() / spread), float(off.max()))
