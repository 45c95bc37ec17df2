"""CompiledModel: a Marian, BART, mBART, Pegasus, M2M100 or NLLB model, read from its folder's files into compiled decoder steps.

Neither torch nor transformers is imported. Features that need them use `model`, which imports them on first use.
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
from ..models.folder import FilesDiffer, ModelNotFound, NeedsTransformers, WeightFiles
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
"""The defaults of transformers for values that a config.json leaves out, by model type."""

UNSUPPORTED = ("quantization_config", "auto_map", "adapters")  # config.json entries that need transformers


class CompiledModel(TextModel):
    """A model on a CPU, in float32 or with int8 matmuls."""

    encoder_decoder = True
    _first: ref[CompiledModel] | None = None  # the model that this one is the `second` of
    _decoder: NativeDecoder | None = None

    def __init__(
        self, folder: str, *, source_lang: str | None = None, target_lang: str | None = None, eight_bits: bool = False
    ) -> None:
        """NeedsTransformers for a folder with an unsupported model; ModelNotFound for a damaged one."""
        self.folder = Path(folder)
        self.name = self.folder.name
        self.eight_bits, self.dtype_name = eight_bits, INT8 if eight_bits else "float32"
        self._lock = RLock()  # held while the decoder is created or runs
        self.languages = {"source_lang": source_lang, "target_lang": target_lang}
        try:
            self.config = read_config(self.folder)
            path = self.folder / "generation_config.json"
            self.generation: Mapping[str, Any] = read_json(path) if path.is_file() else self.config
            self.text_tokenizer = read_tokenizer(self.folder, self.config["model_type"], source_lang)
            self._weights: Any = read_weights(self.config, WeightFiles(self.folder))
            self.vocabulary = len(self._weights.head.weight)
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # an invalid value in a file
            raise error if isinstance(error, ModelNotFound) else ModelNotFound(str(error)) from error
        self.read_files(target_lang)
        if self.config["model_type"] == "m2m_100" and self.config["pad_token_id"] in {*self.eos, *self.start_tokens}:
            raise NeedsTransformers("its padding token, which M2M100 gives no position, also begins or ends texts")

    @property
    def decoder(self) -> NativeDecoder:
        """The decoder step, created from the weights on first use."""
        with self._lock:
            if self._decoder is None:
                from .steps.native.decoder import NativeDecoder

                self._decoder = NativeDecoder(self._weights, self.eight_bits)
                self._decoder.lock, self._weights = self._lock, None  # the decoder holds what it needs of them
            return self._decoder

    def config_value(self, name: str) -> Any:
        return self.config.get(name)

    def generation_value(self, name: str) -> Any:
        return self.generation.get(name)

    @cached_property
    def second(self) -> CompiledModel:
        """The same model with its own working memory: both may run at the same time."""
        twin = copy(self)
        twin._decoder, twin._lock, twin._first = self.decoder.with_own_workspace(), RLock(), ref(self)
        return twin

    @property
    def known_as(self) -> Any:
        return (self._first and self._first()) or self

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """Scores each hypothesis from scratch, one at a time; with its cache, inside `use_caches`."""
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
        """The same folder loaded by transformers, a `TransformersModel`."""
        from ..models.transformers import load_transformers

        return load_transformers(str(self.folder), **self.languages)  # type: ignore[arg-type]

    @property
    def model(self) -> Any:
        """The transformers module of this model, loaded on first use."""
        return self.loaded.model

    def logits(self, prompt: Prompt, tokens: Any) -> Any:
        """As `TransformersModel.logits`."""
        return self.loaded.logits(prompt, tokens)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer of this model, loaded on first use."""
        return self.loaded.tokenizer


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json with defaults filled in. NeedsTransformers if the model is not supported here."""
    stated_config = read_json(folder / "config.json")
    kind = stated_config.get("model_type")
    if kind not in DEFAULTS:
        raise NeedsTransformers(f"models of type {kind!r} are not compiled here")
    config = {**DEFAULTS[kind], **stated_config}
    for name, usual in DEFAULTS[kind].items():
        if isinstance(config[name], str) != isinstance(usual, str):
            raise ModelNotFound(f"config.json: {name!r} is {config[name]!r}, and must be of type {type(usual).__name__}")
    for name in UNSUPPORTED:
        if config.get(name):
            raise NeedsTransformers(f"its config.json has {name!r}")
    if not config["is_encoder_decoder"]:
        raise NeedsTransformers("it has no encoder")
    if not any(folder.glob("*.safetensors")):
        raise NeedsTransformers("its weights are not in safetensors files")
    return config


def read_weights(config: Mapping[str, Any], tensors: WeightFiles) -> BartWeights:
    """A folder's weights. NeedsTransformers if there is no kernel for the activation."""
    from .steps.bart_weights import read_folder
    from .steps.native.parts import ACTIVATIONS

    if config["activation_function"] not in ACTIVATIONS:
        raise NeedsTransformers(f"its activation is {config['activation_function']!r}")
    weights = read_folder(config, tensors)
    vocabulary = len(weights.head.weight)
    shared = config.get("share_encoder_decoder_embeddings", True)  # if not, vocab_size is the encoder's
    stated = config.get("vocab_size") if shared else config.get("decoder_vocab_size")
    if int(stated or vocabulary) != vocabulary:
        raise FilesDiffer(f"its weights and config.json differ: there are {vocabulary} tokens, and vocab_size is {stated}")
    return weights


def read_tokenizer(folder: Path, kind: str, source_lang: str | None) -> Tokenizer | None:
    """A folder's tokenizer; None if it has none."""
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
