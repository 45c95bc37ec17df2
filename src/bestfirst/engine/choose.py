"""Which decoder runs a model: the fused one of its architecture, its own modules on the tree, or plain recomputation.

None is trusted by name. The first time a model is decoded with, a candidate scores a few branching hypotheses of the model's own
vocabulary, and is taken only if it agrees with the model run from scratch.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from .decoder import Decoder
from .fused_bart import FusedBart
from .fused_llama import FusedLlama
from .hooked import HookedDecoder
from .recompute import RecomputeDecoder

if TYPE_CHECKING:
    from ..models.reader import Prompt
    from ..models.transformers import TransformersModel

TOLERANCE = {torch.float16: 0.03, torch.bfloat16: 0.2}
"""How far from the model's a decoder's log-probabilities may lie on average, in units of their own spread."""

_log = logging.getLogger(__name__)
_warned: set[str] = set()


def decoder_for(model: TransformersModel) -> Decoder:
    """The fastest decoder that agrees with the model; the one of the last decode while the weights are the same."""
    if model.decoder is None or not model.decoder[0].holds(model.model) or not untouched(model.model):
        model.decoder = (Fingerprint(model.model), choose(model))
    return model.decoder[1]


class Fingerprint:
    """What tells whether any weight has changed: where they lie, how often they were written to, and some of the numbers.

    The numbers, because averaged weights and adapters are often written through `.data`, which is not counted.
    """

    def __init__(self, model: Any) -> None:
        self._places = self._look(model)
        self._some: dict[Any, list[torch.Tensor]] = {}
        for p in list(model.parameters())[::5]:
            if p.numel():
                self._some.setdefault((p.device, p.dtype), []).append(p.detach()[(0,) * p.dim()])
        self._numbers = self._read()

    def holds(self, model: Any) -> bool:
        """Whether the model's weights are still those."""
        return self._look(model) == self._places and self._read() == self._numbers

    def _look(self, model: Any) -> list[tuple[int, int]]:
        return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters()]

    def _read(self) -> list[list[float]]:
        return [torch.stack(some).tolist() for some in self._some.values()]


def choose(model: TransformersModel) -> Decoder:
    """Each candidate is tried once a model; the verdicts stay with it."""
    for candidate in candidates(model):
        if candidate not in model.agreed:
            model.agreed[candidate] = agrees(candidate, model)
        if model.agreed[candidate]:
            if candidate is RecomputeDecoder:
                warn_of_recomputing(model)
            return candidate(model.model)
    raise ValueError(
        f"{type(model.model).__name__} ({model.model.config.model_type}) cannot be decoded with by this engine: "
        "even run from the first token, hypotheses of a batch do not get the scores that the model gives each of them"
    )


def warn_of_recomputing(model: TransformersModel) -> None:
    """Once a class of models."""
    kind = type(model.model).__name__
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{kind} ({model.model.config.model_type}) cannot share keys and values between hypotheses as this engine does: "
            "falling back to a slower path that runs every hypothesis from its first token. Results are the same.",
            stacklevel=2,
        )


def candidates(model: TransformersModel) -> Iterator[type[Decoder]]:
    """Decoders that may fit, fastest first."""
    if not changes_with_length(model):
        if untouched(model.model.get_decoder()):
            fused: tuple[type[Decoder], ...] = (*native(), FusedBart, FusedLlama)
            yield from (each for each in fused if each.takes(model.model))
        yield HookedDecoder
    yield RecomputeDecoder


def native() -> tuple[type[Decoder], ...]:
    """The compiled decoders, where numba is installed."""
    try:
        from .native.bart import NativeBart
    except ImportError:
        return ()
    return (NativeBart,)


def changes_with_length(model: TransformersModel) -> bool:
    """Whether attention or positions work otherwise beyond some length, which short hypotheses cannot show."""
    config = model.model.config.get_text_config(decoder=True)
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - {"full_attention", "sliding_attention"}:
        return True
    rope = getattr(config, "rope_parameters", None) or {}
    if any(each.get("rope_type") in ("dynamic", "longrope") for each in (rope, *rope.values()) if isinstance(each, dict)):
        return True
    if layers == {"full_attention"}:
        return False
    windows = (getattr(config, name, None) for name in ("sliding_window", "window_size", "attention_chunk_size"))
    return any(isinstance(window, int) and window < model.positions for window in windows)


def untouched(decoder: Any) -> bool:
    """Whether its classes and weights are all there is to a decoder: no adapters, no hooks of somebody's, no replaced methods."""
    for module in decoder.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        parts = [type(module).__module__, *(getattr(hook, "__module__", "") for hook in hooks)]
        if "forward" in vars(module) or not all(part.startswith(("torch.nn.", "transformers.")) for part in parts):
            return False
    return True


# -- the trial -----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def agrees(candidate: type[Decoder], model: TransformersModel) -> bool:
    """Whether a decoder gives what the model gives from scratch, for two inputs: one branches at every length, one does not."""
    try:
        prompts = trial_prompts(model)
        trees = [branches(model, 2), branches(model, 1)]
        answers = grow(candidate(model.model), model, prompts, trees)
        errors = [error for each in zip(prompts, trees, answers, strict=True) for error in differences(model, *each)]
    except Exception:  # whatever it stumbles over, the next decoder may not
        _log.debug("%s cannot run %s", candidate.__name__, type(model.model).__name__, exc_info=True)
        return False
    precise = torch.get_float32_matmul_precision() == "highest"
    tolerance = TOLERANCE.get(model.model.dtype, 0.001 if precise else 0.02)
    mean, worst = sum(errors) / len(errors), max(errors)
    _log.debug("%s differs from %s by %.2g, at most %.2g", candidate.__name__, type(model.model).__name__, mean, worst)
    return mean <= tolerance and worst <= min(10 * tolerance, 0.5)  # a sharp model magnifies rounding here and there


def trial_tokens(model: TransformersModel, n: int) -> list[int]:
    """Some tokens of the model's vocabulary, none of them special in its config."""
    config = model.model.config.get_text_config(decoder=True)
    special = {*model.eos, *model.banned, *model.start_tokens, config.pad_token_id, config.bos_token_id}
    some = random.Random(0).sample(range(config.vocab_size), min(64, config.vocab_size))
    usual = [token for token in some if token not in special]
    return [usual[i % len(usual)] for i in range(n)]


def trial_prompts(model: TransformersModel) -> list[Prompt]:
    """Two inputs of unequal lengths, the first with a prompt of several tokens."""
    from ..models.reader import Prompt

    first, second = (*model.start_tokens, *trial_tokens(model, 3)), model.start_tokens or tuple(trial_tokens(model, 1))
    if not model.encoder_decoder:
        return [Prompt(None, first), Prompt(None, second)]
    # Only the decoder is on trial: any encoder output will do. Speech models have sources of one length only.
    lengths = (5, 5) if model.speech else (5, 3)
    size = model.model.config.hidden_size
    noise = [torch.randn(n, size, generator=torch.Generator().manual_seed(n)) for n in lengths]
    hidden = [x.to(model.model.device, model.model.dtype) for x in noise]
    return [Prompt(None, first, hidden=hidden[0]), Prompt(None, second, hidden=hidden[1])]


def branches(model: TransformersModel, width: int, depth: int = 3) -> list[list[tuple[int, ...]]]:
    """Hypotheses by length: each has `width` continuations."""
    tokens = trial_tokens(model, width + depth)
    levels: list[list[tuple[int, ...]]] = [[()]]
    for level in range(depth):
        levels.append([(*y, token) for y in levels[-1] for token in tokens[level : level + width]])
    return levels


def grow(
    decoder: Decoder, model: TransformersModel, prompts: list[Prompt], trees: list[list[list[tuple[int, ...]]]]
) -> list[dict[tuple[int, ...], torch.Tensor]]:
    """The decoder's logits after every hypothesis of each input's tree, level by level, all inputs in one step."""
    from .runner import Runner

    runner = Runner(model, decoder)
    sentences = runner.admit(prompts)
    slots: list[dict[tuple[int, ...], int]] = [{} for _ in prompts]
    answers: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in prompts]
    for level in zip(*trees, strict=True):
        batch = [(i, y) for i, ys in enumerate(level) for y in ys]
        rows = []
        for i, y in batch:
            sentence = sentences[i]
            before = slots[i][y[:-1]] if y else sentence.prompt_slot
            rows.append((sentence, before, y[-1] if y else sentence.start, sentence.offset + len(y)))
        given, logits = runner.step(rows)
        logits = logits.clone()  # the next step may use the same memory
        for (i, y), slot, row in zip(batch, given, logits, strict=True):
            slots[i][y] = slot
            answers[i][y] = row
    return answers


def differences(
    model: TransformersModel, prompt: Prompt, levels: list[list[tuple[int, ...]]], answers: dict[tuple[int, ...], torch.Tensor]
) -> Iterator[float]:
    """How far the answer after each hypothesis lies from the model's own."""
    leaves = levels[-1]
    whole = torch.tensor([[*prompt.tokens, *leaf] for leaf in leaves], device=model.model.device)
    logits = model.logits(prompt, whole)[:, len(prompt.tokens) - 1 :]  # (leaves, depth + 1, vocabulary)
    for y, answer in answers.items():
        leaf = next(i for i, leaf in enumerate(leaves) if leaf[: len(y)] == y)
        yield difference(answer, logits[leaf, len(y)])


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The mean distance of two rows' log-probabilities, in units of their own spread."""
    mine, its = got.float().log_softmax(-1), want.float().log_softmax(-1)
    possible = its.isfinite()
    if not torch.equal(possible, mine.isfinite()):
        return inf
    if not possible.any():
        return 0.0  # the model itself gives no numbers: that is not for this place to say
    mine, its = mine[possible], its[possible]
    spread = (its - its.median()).abs().median().clamp(min=0.01)
    return float((mine - its).abs().mean() / spread)
