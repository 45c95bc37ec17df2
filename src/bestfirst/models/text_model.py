"""TextModel: what a Hugging Face model's files say, and how inputs and outputs become tokens and text, however it is run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Any

from .model import Model, Source
from .reader import Prompt, Reader, prefix_ids
from .tokenizer import Tokenizer

INT8 = "int8"  # the dtype whose products are taken in eight bits


class TextModel(Model):
    """An encoder-decoder or decoder-only model with its tokenizer and its generation config. `read_files` is to be called once
    `name` is set and `config_value`, `generation_value` and `texts` answer."""

    hugging_face = True
    encoder_decoder: bool
    speech = False
    cached: Any = None  # who is asked instead, while an engine decodes a model that is made of this one
    decoder: Any = None  # the compiled step that runs it; without one, an engine chooses
    name: str
    eos: frozenset[int]
    texts: Tokenizer | None  # its tokenizer, where it has one
    vocabulary: int  # how many tokens there are
    dtype_name: str  # what its weights are computed with: float32, float16, bfloat16, int8

    # -- what its files say --------------------------------------------------------------------------------------------

    @abstractmethod
    def config_value(self, name: str) -> Any:
        """What its config says; None for nothing."""

    @abstractmethod
    def generation_value(self, name: str) -> Any:
        """What its generation config says; None for nothing."""

    def read_files(self, target_lang: str | None) -> None:
        """Look up what does not change. ValueError where something is missing."""
        eos = self._tokens("eos_token_id")
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
        value = self.generation_value(name)
        return self.config_value(name) if value is None else value

    def check_tokens(self, tokens: Sequence[int], what: str) -> None:
        """ValueError for a token that the model does not have: it would be looked up outside of its tables."""
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            odd = next(token for token in tokens if not 0 <= token < self.vocabulary)
            raise ValueError(f"{what} include {odd}; model {self.name!r} has the tokens 0 to {self.vocabulary - 1}")

    def _tokens(self, name: str, several: bool = True) -> list[int]:
        """The tokens that a file names, one or some. ValueError, with the name, for what are none."""
        value = self.setting(name)
        found = [] if value is None else value if isinstance(value, (list, tuple)) and several else [value]
        if not all(hasattr(token, "__index__") and not isinstance(token, bool) for token in found):
            kind = "a token's number, or a list of such" if several else "a token's number"
            raise ValueError(f"model {self.name!r}: {name} in its files must be {kind}, got {value!r:.60}")
        return list(found)

    def _banned_tokens(self) -> tuple[int, ...]:
        """Tokens that the generation config forbids everywhere (Marian's pad, Whisper's suppressed ones)."""
        words = self.setting("bad_words_ids") or []
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, (list, tuple)) for word in words):
            raise ValueError(f"model {self.name!r}: bad_words_ids in its files must be a list of lists, got {words!r:.60}")
        banned = {word[0] for word in words if len(word) == 1} | set(self._tokens("suppress_tokens"))
        return tuple(sorted(token for token in banned if 0 <= token < self.vocabulary))  # others never come anyway

    def _start_tokens(self, target_lang: str | None) -> tuple[int, ...]:
        """What an encoder-decoder's decoder starts from: the start token, and the target language's code where it has one."""
        if not self.encoder_decoder:
            return ()
        start = self._tokens("decoder_start_token_id", several=False) or self._tokens("bos_token_id", several=False)
        if not start:
            raise ValueError(f"model {self.name!r} has no decoder_start_token_id in its generation config or config")
        forced = self._tokens("forced_bos_token_id", several=False)
        if target_lang is not None:
            code = None if self.texts is None else self.texts.language(target_lang)
            if code is None:
                raise ValueError(f"unknown target language {target_lang!r} for model {self.name!r}")
            forced = [code]
        return (*start, *forced)

    @cached_property
    def positions(self) -> float:
        """How many tokens the decoder has positions for, its prompt included. Asked for every input, so looked up once."""
        for name in ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings", "n_positions"):
            value = self.config_value(name)
            if value and not (name == "n_positions" and self.config_value("model_type") in ("t5", "mt5", "umt5")):
                return float(value)
        return inf

    @cached_property
    def source_positions(self) -> float:
        """How many tokens the encoder has positions for."""
        names = ("max_source_positions", "max_encoder_position_embeddings")
        return float(next((value for value in map(self.config_value, names) if value), self.positions))

    # -- inputs and outputs --------------------------------------------------------------------------------------------

    def reader(self, prefix: str | Sequence[int] | None = None) -> Reader:
        return Reader(self, prefix)

    def read(self, raw: Any, prefix: str | Sequence[int] | None = None) -> Source:
        """One input, tokenised: a text, or token ids as they are; for Whisper, audio features (mel bins, frames)."""
        return self.reader(prefix)(raw)

    def source_length(self, source: Any) -> int:
        return self.read(source).length

    def max_length(self, source: Any) -> int:
        read = self.read(source)
        return int(min(read.max_length, read.limit))

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        return self.texts_of([(source, tokens)])[0]

    def texts_of(self, outputs: Sequence[tuple[Any, Sequence[int]]]) -> list[str | None]:
        """As `text`, for many (source, tokens) at once."""
        if self.texts is None:
            return [None] * len(outputs)
        return [*self.texts.decode_batch([[*_shown(source), *tokens] for source, tokens in outputs])]

    def piece(self, token: int) -> str | None:
        return None if self.texts is None else self.texts.piece(token)

    def special_token(self, text: str) -> int | None:
        return None if self.texts is None else self.texts.special(text)

    def target(self, text: str) -> tuple[int, ...]:
        if self.texts is None:
            raise ValueError(f"model {self.name!r} has no tokenizer: give token ids instead of text")
        tokens = prefix_ids(self, text)
        if self.texts.unknown is not None and self.texts.unknown in tokens:
            words = [word for word in text.split() if self.texts.unknown in prefix_ids(self, word)]
            part = repr(words[0]) if words else "part of it"
            raise ValueError(f"model {self.name!r} cannot write {text!r}: {part} is not in its vocabulary")
        return tokens

    def start(self, source: Any) -> Any:
        return self.read(source).payload if self.cached is None else self.cached.start(source)


def _shown(source: Any) -> Sequence[int]:
    """The part of an output's text that was given."""
    return source.tokens[len(source.tokens) - source.shown :] if isinstance(source, Prompt) else ()
