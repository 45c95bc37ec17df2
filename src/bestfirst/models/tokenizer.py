"""Tokenizer: texts to token ids and back, many at a time; and what its files say, whatever kind it is."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .folder import ModelNotFound

Ids = Sequence[int]


class Tokenizer(ABC):
    """What a model that reads text asks. Strings are those of transformers' tokenizers (`tests/models/test_tokenizers.py`)."""

    unknown: int | None = None  # the token that stands for what is in no vocabulary
    bos: tuple[int, str] | None = None  # the token that begins a text, and how it is written, where there is one

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of inputs, with what the model wants before and after them."""

    @abstractmethod
    def encode_target(self, text: str) -> list[int]:
        """The tokens of an output, and nothing else."""

    @abstractmethod
    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        """Texts, without special tokens."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """The text of one token, with a space in front where it begins a word."""

    @abstractmethod
    def special(self, text: str) -> int | None:
        """The special token that is written like this; None where there is none, or it stands for what is unknown."""

    @abstractmethod
    def language(self, code: str) -> int | None:
        """The token that stands for a language; None where there is none of that name."""


def clean_up(text: str) -> str:
    """What `clean_up_tokenization_spaces` of a tokenizer's config asks for."""
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


def text_of(token: Any) -> str:
    """A special token's text, however a config writes it."""
    return str(token["content"] if isinstance(token, dict) else token)


def cleans_up(config: Mapping[str, Any]) -> bool:
    return bool(config.get("clean_up_tokenization_spaces", False))


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(f"it lacks {path.name}") from None
    except ValueError as error:
        raise ModelNotFound(f"{path.name} is no JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise ModelNotFound(f"{path.name} must be a JSON object, and is a {type(found).__name__}")
    return found
