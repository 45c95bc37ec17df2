"""The trial: does a step give what the model gives? A few branching hypotheses of the model's own vocabulary show it.

What is promised is tried: in fp32 no log-probability may be off by more than 1e-4, or by what the model itself is off by when its
hypotheses are batched otherwise. Other precisions round more than that; there the mean distance decides.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import torch

from ...models.reader import Prompt
from ...models.transformers import TransformersModel, evaluating
from ..runner import Runner
from .decoder_step import DecoderStep
from .hooked import HookedStep
from .tree import source_width
from .windows import narrow

PROMISED = 1e-4
"""How far off a log-probability may be where products are exact."""

TOLERANCE = {torch.float16: 0.03, torch.bfloat16: 0.2}
"""How far from the model's numbers a step's may lie on average, in units of their own spread; fp32: 1e-4, or 0.02 with TF32."""

_log = logging.getLogger(__name__)
Hypotheses = list[list[tuple[int, ...]]]  # by length


class Distance(NamedTuple):
    """Of two arrays that should be the same: its mean in units of their own spread, and the largest."""

    mean: float
    most: float


@torch.inference_mode()
def agrees(candidate: type[DecoderStep], model: TransformersModel) -> bool:
    """Whether a step gives what the model gives from scratch, for two inputs: one branches at every length, one does not."""
    try:
        prompts = trial_prompts(model)
        trees = [branches(model, 2), branches(model, 1)]
        with narrow(model.model, 3):
            answers = grow(candidate(model.model), model, prompts, trees)
            return close(candidate.__name__, model, prompts, trees, answers)
    except Exception:  # whatever it stumbles over, the next step may not
        _log.debug("%s cannot run %s", candidate.__name__, type(model.model).__name__, exc_info=True)
        return False


@torch.inference_mode()
def agrees_without_masks(step: HookedStep, model: TransformersModel) -> bool:
    """Whether a step gives the same with masks that hide nothing and without them, for a prompt of a few tokens."""
    found: list[torch.Tensor] = []
    try:
        for needless in (False, True):
            step.needless = needless
            [answers] = grow(step, model, trial_prompts(model)[:1], [[[()]]])
            found.append(answers[()].float().log_softmax(-1))
    except Exception:
        _log.debug("%s needs its masks", type(model.model).__name__, exc_info=True)
        return False
    return within("the step without masks", model.model, [distance(*found)], PROMISED if precise(model.model) else inf)


@torch.inference_mode()
def encoder_agrees(encode: Callable[[list[int]], torch.Tensor], model: Any) -> bool:
    """Whether `encode`, from token ids to hidden states (length, d), gives what the encoder of a Hugging Face model gives."""
    encoder, config = model.get_encoder(), model.config
    some = random.Random(0).sample(range(config.vocab_size), min(64, config.vocab_size))
    usual = [token for token in some if token != getattr(config, "pad_token_id", None)]
    tokens = usual[: getattr(config, "max_position_embeddings", None) or 12]
    found = []
    try:
        with evaluating(encoder.modules()):
            for n in (1, 5, 12):
                given = torch.tensor([tokens[:n]], device=model.device)
                its = encoder(input_ids=given, attention_mask=torch.ones_like(given)).last_hidden_state[0]
                found.append(distance(encode(tokens[:n]), its))
    except Exception:
        _log.debug("the encoder of %s cannot be run here", type(model).__name__, exc_info=True)
        return False
    return within("the encoder", model, found, inf)


def precise(model: Any) -> bool:
    """Whether a model's products are meant to be exact to fp32."""
    return model.dtype not in TOLERANCE and torch.get_float32_matmul_precision() == "highest"


def within(name: str, model: Any, found: list[Distance], limit: float) -> bool:
    """Whether these distances are rounding: a sharp model magnifies that here and there."""
    tolerance = TOLERANCE.get(model.dtype, 1e-4 if precise(model) else 0.02)
    mean, worst, most = sum(d.mean for d in found) / len(found), max(d.mean for d in found), max(d.most for d in found)
    _log.debug("%s differs from %s by %.2g, at most %.2g; a number by %.2g", name, type(model).__name__, mean, worst, most)
    return mean <= tolerance and worst <= min(10 * tolerance, 0.5) and most <= limit


def trial_tokens(model: TransformersModel, n: int) -> list[int]:
    """Some tokens of the model's vocabulary, none of them special in its config."""
    config = model.model.config.get_text_config(decoder=True)
    named = (getattr(config, name, None) for name in ("pad_token_id", "bos_token_id"))  # T5 has no BOS
    special = {*model.eos, *model.banned, *model.start_tokens, *named}
    some = random.Random(0).sample(range(config.vocab_size), min(64, config.vocab_size))
    usual = [token for token in some if token not in special]
    return [usual[i % len(usual)] for i in range(n)]


def trial_prompts(model: TransformersModel) -> list[Prompt]:
    """Two inputs of unequal lengths, the first with a prompt of several tokens."""
    first, second = (*model.start_tokens, *trial_tokens(model, 3)), model.start_tokens or tuple(trial_tokens(model, 1))
    if not model.encoder_decoder:
        return [Prompt(None, first), Prompt(None, second)]
    # Only the decoder is on trial: any encoder output will do. Sounds and images have sources of one length only.
    lengths = (5, 3) if model.model.main_input_name == "input_ids" else (5, 5)
    size = source_width(model.model.config)
    noise = [torch.randn(n, size, generator=torch.Generator().manual_seed(n)) for n in lengths]
    hidden = [x.to(model.model.device, model.model.dtype) for x in noise]
    return [Prompt(None, first, hidden=hidden[0]), Prompt(None, second, hidden=hidden[1])]


def branches(model: TransformersModel, width: int, depth: int = 3) -> Hypotheses:
    """Hypotheses by length: each has `width` continuations."""
    tokens = trial_tokens(model, width + depth)
    levels: Hypotheses = [[()]]
    for level in range(depth):
        levels.append([(*y, token) for y in levels[-1] for token in tokens[level : level + width]])
    return levels


def grow(
    step: DecoderStep, model: TransformersModel, prompts: list[Prompt], trees: list[Hypotheses]
) -> list[dict[tuple[int, ...], torch.Tensor]]:
    """The step's logits after every hypothesis of each input's tree, level by level, all inputs at once."""
    runner = Runner(model, step)
    sentences = runner.admit(prompts)
    slots: list[dict[tuple[int, ...], int]] = [{} for _ in prompts]
    answers: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in prompts]
    for level in zip(*trees, strict=True):
        batch = [(i, y) for i, ys in enumerate(level) for y in ys]
        given, logits = runner.step([sentences[i].row(y, slots[i].get(y[:-1], 0)) for i, y in batch])
        logits = logits.clone()  # the next step may use the same memory
        for (i, y), slot, row in zip(batch, given, logits, strict=True):
            slots[i][y] = slot
            answers[i][y] = row
    return answers


def differences(
    model: TransformersModel, prompt: Prompt, levels: Hypotheses, answers: dict[tuple[int, ...], torch.Tensor]
) -> tuple[list[Distance], float]:
    """How far the answer after each hypothesis lies from the model's; and how far the model's do, when one is run by itself."""
    leaves = levels[-1]
    whole = torch.tensor([[*prompt.tokens, *leaf] for leaf in leaves], device=model.model.device)

    def logprobs(tokens: torch.Tensor) -> torch.Tensor:
        """(hypotheses, depth + 1, vocabulary)"""
        return model.logits(prompt, tokens)[:, len(prompt.tokens) - 1 :].float().log_softmax(-1)

    its = logprobs(whole)
    found = []
    for y, answer in answers.items():
        leaf = next(i for i, leaf in enumerate(leaves) if leaf[: len(y)] == y)
        found.append(distance(answer.float().log_softmax(-1), its[leaf, len(y)]))
    alone = distance(logprobs(whole[:1])[0], its[0]).most
    return found, alone if alone < inf else 0.0


def close(
    name: str, model: TransformersModel, prompts: list[Prompt], trees: list[Hypotheses], answers: list[dict[tuple[int, ...], Any]]
) -> bool:
    """Whether the answers after all hypotheses of each input are the model's own, but for rounding."""
    compared = [differences(model, *each) for each in zip(prompts, trees, answers, strict=True)]
    found = [distance for distances, _ in compared for distance in distances]
    noise = max(own for _, own in compared)
    return within(name, model.model, found, max(PROMISED, 4 * noise) if precise(model.model) else inf)


def distance(mine: torch.Tensor, its: torch.Tensor) -> Distance:
    """How far two arrays are apart; what is no number in one must be none in the other."""
    mine, its = mine.float(), its.float()
    possible = its.isfinite()
    if not torch.equal(possible, mine.isfinite()):
        return Distance(inf, inf)
    if not possible.any():
        return Distance(0.0, 0.0)  # the model itself gives no numbers: that is not for this place to say
    mine, its = mine[possible], its[possible]
    spread = (its - its.median()).abs().median().clamp(min=0.01)
    off = (mine - its).abs()
    return Distance(float(off.mean() / spread), float(off.max()))
