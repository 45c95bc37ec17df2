"""CompiledStep: the compiled decoder (`steps.native`) as runners ask for it. Kernels are loaded when it is first used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models.folder import ModelNotFound, NeedsTransformers
from ..models.reader import Prompt
from ..models.tensors import Tensors
from ..scoring.score import log_softmax
from .steps.rows import Rows

if TYPE_CHECKING:
    from .steps.native.bart import NativeDecoder

ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish")
"""Those that there are kernels of."""


class CompiledStep:
    """A step of one model."""

    name = "native"
    attends = True
    by_place = False
    watching = False

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, eight_bits: bool = False) -> None:
        from .steps.bart_folder import read_folder

        if config["activation_function"] not in ACTIVATIONS:
            raise NeedsTransformers(f"its activation is {config['activation_function']!r}")
        self._weights: Any = read_folder(config, tensors)
        self._eight_bits = eight_bits
        self.vocabulary = len(self._weights.head.weight)
        stated = int(config.get("vocab_size") or self.vocabulary)
        if config["model_type"] != "marian" and stated != self.vocabulary:
            raise ModelNotFound(f"its weights and config.json differ: {self.vocabulary} tokens, and {stated}")

    @cached_property
    def native(self) -> NativeDecoder:
        from .steps.native.bart import NativeDecoder

        made = NativeDecoder(self._weights, self._eight_bits)
        if self._eight_bits and not made.eight_bits:
            warnings.warn("this CPU has neither VNNI nor AVX2: dtype 'int8' is computed in fp32", stacklevel=2)
        self._weights = None  # what is needed of them is in it
        return made

    @property
    def attention(self) -> Any:
        return self.native.attention

    def room(self, _: Any, tokens: int = 0) -> tuple[Any, Any]:
        return self.native.room(tokens)

    def take_in(self, _: Any, prompts: Sequence[Prompt], sources: Any) -> list[int]:
        return self.native.take_in([prompt.source for prompt in prompts], sources)

    def step(self, rows: Rows, tree: Any, sources: Any) -> Any:
        self.native.watching = self.watching
        return self.native.step(rows, tree, sources)

    read = step

    def best(self, logits: Any, width: int, banned: Any, allowed: Any = None) -> tuple[Any, Any]:
        return self.native.best(logits, width, banned, allowed)

    def from_scratch(self, prompt: Prompt) -> Any:
        """The log-probabilities of what follows a prompt, (vocabulary,)."""
        tree, sources = self.room(None)
        self.take_in(None, [prompt], sources)
        slots = tree.allocate(len(prompt.tokens))
        table = [(token, i, slots[i], slots[i - 1] if i else 0, 0) for i, token in enumerate(prompt.tokens)]
        logits = self.step(tree.prompt_rows(table, [len(table)]), tree, sources)[-1]
        return log_softmax(logits.astype(np.float64)).clip(max=0)
