"""TextModel: the base class of Hugging Face models, for all that does not depend on how the model is run.

It reads the settings in a model's config and generation config (EOS, start tokens, banned tokens, positions) and converts inputs
and outputs between text and tokens. Subclasses: `TransformersModel` (torch) and `CompiledModel` (`engine/compiled_model.py`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Any

from .model import Model, Source
from .reader import Prompt, Reader, prefix_ids
from .tokenizer import Tokenizer

INT8 = "int8"  # the dtype name for matrix products in int8


class TextModel(Model):
    """An encoder-decoder or decoder-only model with its tokenizer and its generation config. Subclasses call `read_files` in
    `__init__`, after setting up `name`, `config_value`, `generation_value`, `text_tokenizer` and `vocabulary`."""

    hugging_face = True
    encoder_decoder: bool
    speech = False
    cached: Any = None  # the `CachedModel` that scores in its place while an engine decodes a combination with this model
    decoder: Any = None  # the compiled decoder step; None: the engine chooses one
    name: str
    eos: frozenset[int]
    text_tokenizer: Tokenizer | None  # a common interface to its tokenizer, if it has one
    vocabulary: int  # vocabulary size
    dtype_name: str  # of the computation: float32, float16, bfloat16, int8

    # -- settings in its files -----------------------------------------------------------------------------------------

    @abstractmethod
    def config_value(self, name: str) -> Any:
        """A value of the model's config; None if it is not set."""

    @abstractmethod
    def generation_value(self, name: str) -> Any:
        """A value of the model's generation config; None if it is not set."""

    def read_files(self, target_lang: str | None) -> None:
        """Read the settings that do not change: EOS, banned tokens, start tokens. ValueError if one is missing or invalid."""
        eos = self._token_setting("eos_token_id")
        if self.setting("eos_token_id") is None:
            raise ValueError(f"model {self.name!r} has no eos_token_id in its generation config or config")
        self.eos = frozenset(eos)
        self.banned = self._banned_tokens()
        self.start_tokens = self._start_tokens(target_lang)
        self.check_tokens(self.start_tokens, "the tokens that outputs start from")
        for name in ("max_length", "max_new_tokens"):
            if not isinstance(most := self.generation_value(name), (int, type(None))):
                raise ValueError(f"model {self.name!r}: {name} in its files must be a whole number, got {most!r:.60}")

    def setting(self, name: str) -> Any:
        """A value of the generation config, else of the config, else None."""
        value = self.generation_value(name)
        return self.config_value(name) if value is None else value

    def check_tokens(self, tokens: Sequence[int], what: str) -> None:
        """ValueError for a token outside of the vocabulary, which would be an out-of-bounds embedding lookup."""
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            odd = next(token for token in tokens if not 0 <= token < self.vocabulary)
            raise ValueError(f"{what} include {odd}; model {self.name!r} has the tokens 0 to {self.vocabulary - 1}")

    def _token_setting(self, name: str, several: bool = True) -> list[int]:
        """The token ids in a setting, as a list; it may be a single id, or a list if `several`. ValueError for anything else."""
        value = self.setting(name)
        tokens = [] if value is None else value if isinstance(value, (list, tuple)) and several else [value]
        if not all(hasattr(token, "__index__") and not isinstance(token, bool) for token in tokens):
            kind = "a token's number, or a list of such" if several else "a token's number"
            raise ValueError(f"model {self.name!r}: {name} in its files must be {kind}, got {value!r:.60}")
        return list(tokens)

    def _banned_tokens(self) -> tuple[int, ...]:
        """Tokens that the generation config forbids at every position (Marian's pad, Whisper's suppressed tokens)."""
        words = self.setting("bad_words_ids") or []
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, (list, tuple)) for word in words):
            raise ValueError(f"model {self.name!r}: bad_words_ids in its files must be a list of lists, got {words!r:.60}")
        banned = {word[0] for word in words if len(word) == 1} | set(self._token_setting("suppress_tokens"))
        return tuple(sorted(token for token in banned if 0 <= token < self.vocabulary))

    def _start_tokens(self, target_lang: str | None) -> tuple[int, ...]:
        """The decoder prompt of an encoder-decoder: the start token and, if any, the target language's token."""
        if not self.encoder_decoder:
            if target_lang is not None:
                raise ValueError(f"target language {target_lang!r}: {self.name!r} is a language model; name it in the prompt")
            return ()
        start = self._token_setting("decoder_start_token_id", several=False) or self._token_setting("bos_token_id", several=False)
        if not start:
            raise ValueError(f"model {self.name!r} has no decoder_start_token_id in its generation config or config")
        forced = self._token_setting("forced_bos_token_id", several=False)
        if target_lang is not None:
            forced = [self.language(target_lang, "target")]
        return (*start, *forced)

    def language(self, code: str, side: str) -> int:
        """The token of a language. ValueError if there is none. `side`: "source" or "target"."""
        token = None if self.text_tokenizer is None else self.text_tokenizer.language(code)
        if token is None:
            unknown = f"unknown {side} language {code!r} for model {self.name!r}"
            raise ValueError(f"{unknown}; leave it out unless the model has several")
        return token

    @cached_property
    def positions(self) -> float:
        """The number of positions of the decoder, its prompt included; inf for relative positions."""
        for name in ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings", "n_positions"):
            value = self.config_value(name)
            if value and not (name == "n_positions" and self.config_value("model_type") in ("t5", "mt5", "umt5")):
                return float(value)
        return inf

    @cached_property
    def source_positions(self) -> float:
        """The number of positions of the encoder."""
        names = ("max_source_positions", "max_encoder_position_embeddings")
        return float(next((value for value in map(self.config_value, names) if value), self.positions))

    # -- inputs and outputs --------------------------------------------------------------------------------------------

    def reader(self, prefix: str | Sequence[int] | None = None) -> Reader:
        return Reader(self, prefix)

    def read(self, raw: Any, prefix: str | Sequence[int] | None = None) -> Source:
        """Read one input: a text, token ids, or a conversation; for Whisper, audio features (mel bins, frames)."""
        return self.reader(prefix)(raw)

    def source_length(self, source: Any) -> int:
        return self.read(source).length

    def max_length(self, source: Any) -> int:
        source = self.read(source)
        return int(min(source.max_length, source.limit))

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        return self.texts_of([(source, tokens)])[0]

    def texts_of(self, outputs: Sequence[tuple[Any, Sequence[int]]]) -> list[str | None]:
        """`text` for many (source, tokens) pairs at once. A forced prefix is part of it."""
        if self.text_tokenizer is None:
            return [None] * len(outputs)
        batch = [
            [*source.tokens[len(source.tokens) - source.shown :], *tokens] if isinstance(source, Prompt) else tokens
            for source, tokens in outputs
        ]
        return [*self.text_tokenizer.decode_batch(batch)]

    def piece(self, token: int) -> str | None:
        return None if self.text_tokenizer is None else self.text_tokenizer.piece(token)

    def special_token(self, text: str) -> int | None:
        return None if self.text_tokenizer is None else self.text_tokenizer.special(text)

    def target(self, text: str) -> tuple[int, ...]:
        if self.text_tokenizer is None:
            raise ValueError(f"model {self.name!r} has no tokenizer: give token ids instead of text")
        tokens = prefix_ids(self, text)
        if self.text_tokenizer.unknown is not None and self.text_tokenizer.unknown in tokens:
            words = [word for word in text.split() if self.text_tokenizer.unknown in prefix_ids(self, word)]
            part = repr(words[0]) if words else "part of it"
            raise ValueError(f"model {self.name!r} cannot write {text!r}: {part} is not in its vocabulary")
        return tokens

    def start(self, source: Any) -> Any:
        return self.read(source).payload if self.cached is None else self.cached.start(source)
