"""Reader: inputs of a Hugging Face model, from what a user gives to what the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .model import Source

if TYPE_CHECKING:
    from .transformers import TransformersModel


@dataclass(slots=True)
class Prompt:
    """One input as a Hugging Face model takes it."""

    source: Any  # encoder input: token ids, or features (mel bins, frames); None for a decoder-only model
    tokens: tuple[int, ...]  # what the decoder is given before it generates
    shown: int = 0  # how many of the last `tokens` belong to the output's text
    hidden: torch.Tensor | None = None  # (length, d) what the encoder made of it, where that is known
    length: int = 0  # of the encoder's input

    def __post_init__(self) -> None:
        if not self.length and self.source is not None:
            self.length = len(self.source)


class Reader:
    """Reads the inputs of one decode: texts, or token ids as they are; for Whisper, audio features (mel bins, frames).

    `prefix` is the forced start of the outputs. Whatever is the same for all inputs is looked up once.
    """

    def __init__(self, model: TransformersModel, prefix: str | Sequence[int] | None = None) -> None:
        self._model = model
        self._forced = prefix_ids(model, prefix)
        self._start = (*model.start_tokens, *self._forced)
        self._eos = tuple(model.eos)
        self._limit = model.source_positions if model.encoder_decoder else model.positions
        self._most_new = model.generation.max_new_tokens
        self._most = model.generation.max_length if model.generation.max_length != 20 else None  # 20: nobody's choice

    def __call__(self, raw: Any) -> Source:
        """One input. Raises ValueError, naming the trouble, for one that cannot be decoded."""
        model, forced = self._model, len(self._forced)
        if model.speech:
            features, length = self._features(raw)
            return self._source(Prompt(features, self._start, forced), length)
        ids = token_ids(model, raw, "input")
        if model.encoder_decoder:
            prompt = Prompt(ids, self._start, forced)
        else:
            ids = ids or self._bos()
            prompt = Prompt(None, (*ids, *self._forced), forced)
        if len(ids) > self._limit:
            raise ValueError(f"the input has {len(ids)} tokens, more than the model's {int(self._limit)} positions; split it")
        length = len(ids)
        for token in self._eos:
            length -= ids.count(token)
        return self._source(prompt, length)

    def _source(self, prompt: Prompt, length: int) -> Source:
        room = self._model.positions - len(prompt.tokens)
        if room < 1:
            raise ValueError(f"the prompt of {len(prompt.tokens)} tokens leaves no position to generate in; shorten it")
        return Source(prompt, length, self._default_length(length, len(prompt.tokens) - len(self._forced)), room)

    def _default_length(self, length: int, prompt: int) -> int:
        """The generation config's limit, where the model's own files set one, else 2|x| + 10."""
        if self._most_new:
            return int(self._most_new)
        if self._most and self._most > prompt:
            return int(self._most) - prompt
        return 2 * length + 10

    def _features(self, raw: Any) -> tuple[torch.Tensor, int]:
        """An input of a speech model, as its feature extractor makes it; its length is the encoder's."""
        config = self._model.model.config
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
        given = tuple(getattr(raw, "shape", ()))
        if given != shape:
            got = f"an array of shape {given}" if given else type(raw).__name__
            raise ValueError(f"model {self._model.name!r} takes audio features of shape {shape} (mel bins, frames), got {got}")
        return torch.as_tensor(raw), config.max_source_positions

    def _bos(self) -> tuple[int, ...]:
        bos = self._model.setting("bos_token_id")
        if bos is None:
            raise ValueError(f"an empty prompt needs a bos_token_id, and model {self._model.name!r} has none")
        return (bos,)


def token_ids(model: TransformersModel, raw: Any, what: str) -> tuple[int, ...]:
    """A text's tokens, or token ids as they are."""
    if isinstance(raw, str):
        if model.tokenizer is None:
            raise ValueError(f"model {model.name!r} has no tokenizer: give token ids instead of text")
        ids = tuple(model.tokenizer(readable(raw, what)).input_ids)
        bos = model.tokenizer.bos_token_id
        twice = bos is not None and ids[:2] == (bos, bos) and raw.startswith(model.tokenizer.bos_token)
        return ids[1:] if twice else ids  # a text that says so itself, as chat templates do, begins once
    try:
        ids = tuple(map(int, raw))
    except (TypeError, ValueError):
        raise ValueError(f"the {what} must be a text or token ids, got {type(raw).__name__}") from None
    model.check_tokens(ids, f"the {what}'s tokens")
    return ids


def readable(text: str, what: str) -> str:
    """A text, if it is one: halves of surrogate pairs stand for no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        broken = f"the {what} has {text[error.start]!r} at position {error.start + 1}, which is no character"
        raise ValueError(f"{broken}; replace it, say with text.encode(errors='replace').decode()") from None
    return text


def prefix_ids(model: TransformersModel, prefix: str | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens of an output's beginning, without EOS."""
    if not prefix:
        return ()
    if isinstance(prefix, str) and model.tokenizer is not None:
        text = {"text_target" if model.encoder_decoder else "text": readable(prefix, "prefix")}
        ids = model.tokenizer(**text, add_special_tokens=False).input_ids
        return tuple(token for token in ids if token not in model.eos)
    return token_ids(model, prefix, "prefix")
