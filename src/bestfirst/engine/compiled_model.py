"""CompiledModel: a Marian, BART, mBART, Pegasus, M2M100 or NLLB model straight from its folder's files into compiled steps.

Neither torch nor transformers is loaded. What only they can do is asked of `model`, which loads them then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from math import inf
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ..models import Query, Scored
from ..models.folder import ModelNotFound, NeedsTransformers, WeightFiles
from ..models.reader import Prompt
from ..models.sentencepiece_tokenizer import m2m100_tokenizer, marian_tokenizer
from ..models.text_model import INT8, TextModel
from ..models.tokenizer import Tokenizer, json_tokenizer, read_json
from ..scoring import log_softmax

if TYPE_CHECKING:
    from .steps.bart_weights import BartWeights
    from .steps.native.decoder import NativeDecoder

SHARED = {
    "activation_function": "gelu", "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "max_position_embeddings": 1024, "scale_embedding": False, "tie_word_embeddings": True,
    "is_encoder_decoder": True,
}  # fmt: skip
BART = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
DEFAULTS: dict[str, dict[str, Any]] = {
    "marian": {**SHARED, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
    "bart": {**SHARED, **BART, "decoder_start_token_id": 2},
    "mbart": {**SHARED, **BART},
    "pegasus": {**SHARED, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    "m2m_100": {**SHARED, **BART, "decoder_start_token_id": 2, "activation_function": "relu", "scale_embedding": True},
}
"""What transformers takes for granted where a config.json does not say it."""

ELSEWHERE = ("quantization_config", "auto_map", "adapters")  # what a config may ask for that is not done here


class CompiledModel(TextModel):
    """One model, on a CPU, in float32 or with products in eight bits."""

    encoder_decoder = True
    _first: ref[CompiledModel] | None = None  # whose second it is
    _decoder: NativeDecoder | None = None

    def __init__(
        self, folder: str, *, source_lang: str | None = None, target_lang: str | None = None, eight_bits: bool = False
    ) -> None:
        """NeedsTransformers for a folder whose model is not of these kinds; ModelNotFound for one that is damaged."""
        self.folder = Path(folder)
        self.name = self.folder.name
        self.eight_bits, self.dtype_name = eight_bits, INT8 if eight_bits else "float32"
        self._lock = RLock()  # who makes the decoder, or runs it
        self.languages = {"source_lang": source_lang, "target_lang": target_lang}
        try:
            self.config = read_config(self.folder)
            own = self.folder / "generation_config.json"
            self.generation: Mapping[str, Any] = read_json(own) if own.is_file() else self.config
            self.texts = read_tokenizer(self.folder, self.config["model_type"], source_lang)
            self._weights: Any = read_weights(self.config, WeightFiles(self.folder))
            self.vocabulary = len(self._weights.head.weight)
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # a value that is not what it should be
            raise error if isinstance(error, ModelNotFound) else ModelNotFound(str(error)) from error
        self.read_files(target_lang)

    @property
    def decoder(self) -> NativeDecoder:
        """The step that runs it, made of the weights when it is first asked for."""
        with self._lock:
            if self._decoder is None:
                from .steps.native.decoder import NativeDecoder

                self._decoder = NativeDecoder(self._weights, self.eight_bits)
                self._decoder.lock, self._weights = self._lock, None  # what is needed of them is in it
            return self._decoder

    def config_value(self, name: str) -> Any:
        return self.config.get(name)

    def generation_value(self, name: str) -> Any:
        return self.generation.get(name)

    @cached_property
    def second(self) -> CompiledModel:
        """The same model with memory of its own to work in: both may be at work at once."""
        made = copy(self)
        made._decoder, made._lock, made._first = self.decoder.with_own_workspace(), RLock(), ref(self)
        return made

    @property
    def known_as(self) -> Any:
        return (self._first and self._first()) or self

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """Each hypothesis from scratch, one by one."""
        if self.cached is not None:
            return self.cached.score(batch)
        out = []
        for prompt, prefix in batch:
            tokens, (tree, sources) = (*prompt.tokens, *prefix), self.decoder.new_tree()
            slots = tree.allocate(len(tokens))
            table = [(token, i, slots[i], slots[i - 1] if i else 0, 0) for i, token in enumerate(tokens)]
            with self.decoder.lock:
                self.decoder.add_inputs(self, [prompt], sources)
                logits = self.decoder.step(tree.rows(table, [len(table)]), tree, sources)[-1].astype(np.float64)
            logprobs = log_softmax(logits).clip(max=0)
            logprobs[list(self.banned)] = -inf
            out.append(Scored(logprobs, prompt))
        return out

    # -- transformers ----------------------------------------------------------------------------------------------------

    @cached_property
    def loaded(self) -> Any:
        """The same folder as transformers loads it, a `TransformersModel`."""
        from ..models.transformers import load_transformers

        return load_transformers(str(self.folder), **self.languages)  # type: ignore[arg-type]

    @property
    def model(self) -> Any:
        """transformers' own module of this model; loaded when first asked for."""
        return self.loaded.model

    def logits(self, prompt: Prompt, tokens: Any) -> Any:
        """As `TransformersModel.logits`."""
        return self.loaded.logits(prompt, tokens)

    @property
    def tokenizer(self) -> Any:
        """transformers' own tokenizer of this model; loaded when first asked for."""
        return self.loaded.tokenizer


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json with what it takes for granted, if it is of a model that is compiled here."""
    written = read_json(folder / "config.json")
    kind = written.get("model_type")
    if kind not in DEFAULTS:
        raise NeedsTransformers(f"models of type {kind!r} are not compiled here")
    config = {**DEFAULTS[kind], **written}
    for name in ELSEWHERE:
        if config.get(name):
            raise NeedsTransformers(f"its config.json has {name!r}")
    if not config["is_encoder_decoder"]:
        raise NeedsTransformers("it has no encoder")
    if not any(folder.glob("*.safetensors")):
        raise NeedsTransformers("its weights are not in safetensors files")
    return config


def read_weights(config: Mapping[str, Any], tensors: WeightFiles) -> BartWeights:
    """A folder's weights, if there are kernels for what is made of them."""
    from .steps.bart_weights import read_folder
    from .steps.native.parts import ACTIVATIONS

    if config["activation_function"] not in ACTIVATIONS:
        raise NeedsTransformers(f"its activation is {config['activation_function']!r}")
    weights = read_folder(config, tensors)
    vocabulary = len(weights.head.weight)
    stated = int(config.get("vocab_size") or vocabulary)
    if config["model_type"] != "marian" and stated != vocabulary:
        raise ModelNotFound(f"its weights and config.json differ: {vocabulary} tokens, and {stated}")
    return weights


def read_tokenizer(folder: Path, kind: str, source_lang: str | None) -> Tokenizer | None:
    """A folder's tokenizer; None where there is none."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        if (folder / "tokenizer.json").is_file():
            return json_tokenizer(folder, {}, kind, source_lang)
        return None
    config = read_json(path)
    named = str(config.get("tokenizer_class", ""))
    if named == "MarianTokenizer" or (not named and kind == "marian"):
        return marian_tokenizer(folder, config)
    if named == "M2M100Tokenizer" or (not named and kind == "m2m_100"):
        return m2m100_tokenizer(folder, config, source_lang)
    return json_tokenizer(folder, config, kind, source_lang)
