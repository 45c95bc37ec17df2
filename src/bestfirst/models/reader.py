"""Reading the inputs of a Hugging Face model: texts, token ids, conversations and audio features become `Prompt`s.
`Reader` does it for the inputs of one decode and validates them. `PackedPrompts` holds many inputs that `generate` got as one
padded batch, without a Python object per input."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any

from .model import Source

if TYPE_CHECKING:
    from .text_model import TextModel

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which is not a character by itself


@dataclass(slots=True)
class Prompt:
    """One input in the form in which a Hugging Face model takes it."""

    source: Any  # encoder input: token ids, or features (mel bins, frames); None for a decoder-only model
    tokens: tuple[int, ...]  # the decoder's prompt
    shown: int = 0  # how many of the last `tokens` (the forced prefix) are part of the output text
    hidden: Any = None  # (length, d) encoder output, if it has been computed
    length: int = 0  # of the encoder input

    def __post_init__(self) -> None:
        if not self.length and self.source is not None:
            self.length = len(self.source)


class PackedPrompt(Prompt):
    """A view of one input in `PackedPrompts`; `source` and `hidden` are sliced on access."""

    __slots__ = ("pack", "start")

    def __init__(self, tokens: tuple[int, ...], pack: PackedPrompts, start: int, length: int) -> None:
        self.tokens, self.shown, self.length = tokens, 0, length
        self.pack, self.start = pack, start

    @property
    def source(self) -> Any:
        ids = self.pack.source_ids
        return None if ids is None else tuple(ids[self.start : self.start + self.length].tolist())

    @property
    def hidden(self) -> Any:
        return None if self.pack.hidden is None else self.pack.hidden[self.start : self.start + self.length]


class PackedPrompts(Sequence[Prompt]):
    """Many inputs, concatenated: encoder input ids (tokens,) and encoder output (tokens, d), each None if not known. A `Prompt`
    is created only on access, so that the device can start on the first inputs without waiting for the rest."""

    def __init__(self, tokens: Sequence[tuple[int, ...]], lengths: Sequence[int], source_ids: Any, hidden: Any) -> None:
        self._tokens, self._lengths, self.source_ids, self.hidden = tokens, lengths, source_ids, hidden
        self._starts = [0, *accumulate(lengths)]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return PackedPrompt(self._tokens[i], self, self._starts[i], self._lengths[i])


class Reader:
    """Reads the inputs of one decode: texts, token ids or conversations; for Whisper, audio features (mel bins, frames).
    `prefix` is the forced start of the outputs. Model settings are looked up once per decode, not for every input."""

    def __init__(self, model: TextModel, prefix: str | Sequence[int] | None = None) -> None:
        self._model = model
        self._forced = prefix_ids(model, prefix)
        self._decoder_start = (*model.start_tokens, *self._forced)
        self._eos = tuple(model.eos)
        self._limit = model.source_positions if model.encoder_decoder else model.positions
        self._positions = model.positions
        pad = model.config_value("pad_token_id") if model.config_value("model_type") == "m2m_100" else None
        self._unplaced = None if pad in self._eos else pad  # M2M100 counts positions without padding, our steps count all
        self._max_new_tokens = model.generation_value("max_new_tokens")
        most = model.generation_value("max_length")
        self._max_length = most if most != 20 else None  # 20 is transformers' default, not the model's setting

    def __call__(self, raw: Any) -> Source:
        """Read one input. ValueError, saying what is wrong, if it cannot be decoded."""
        if isinstance(raw, (bytes, bytearray)):
            raise ValueError("an input is a text or token ids, got bytes; write raw.decode('utf-8')")
        model = self._model
        if model.speech:
            features, length = self._features(raw)
            return self._source(Prompt(features, self._decoder_start, len(self._forced), length=length), length)
        return self._read_ids(chat_ids(model, raw) if is_conversation(raw) else token_ids(model, raw, "input"))

    def batch(self, raws: Sequence[Any]) -> list[Source | ValueError]:
        """Read many inputs, with one batched tokenizer call. An input that cannot be read gives its ValueError."""
        return [self._attempt(raw) for raw in self.tokenised(raws)]

    def tokenised(self, raws: Sequence[Any]) -> list[Any]:
        """These inputs with each text replaced by its `TextIds`; other inputs are unchanged."""
        tokenizer = self._model.text_tokenizer
        inputs: list[Any] = list(raws)
        if tokenizer is not None and not self._model.speech:
            where = [i for i, raw in enumerate(raws) if isinstance(raw, str) and not SURROGATE.search(raw)]
            bos = tokenizer.bos
            for i, ids in zip(where, tokenizer.encode_batch([raws[i] for i in where]), strict=True):
                inputs[i] = TextIds(_without_double_bos(bos, raws[i], ids))
        return inputs

    def _attempt(self, raw: Any) -> Source | ValueError:
        try:
            return self._read_ids(raw) if type(raw) is TextIds else self(raw)
        except ValueError as error:
            return error

    def _read_ids(self, ids: tuple[int, ...]) -> Source:
        forced = len(self._forced)
        if self._model.encoder_decoder:
            if not ids:
                raise ValueError("the input has no tokens; give at least one, such as the model's EOS")
            if self._unplaced is not None and self._unplaced in ids:
                raise ValueError(
                    f"the input contains padding (token {self._unplaced}), which this model gives no position; remove it"
                )
            prompt = Prompt(ids, self._decoder_start, forced, None, len(ids))
        else:
            if not ids:
                ids = (self._model.setting("bos_token_id"),)
                if ids == (None,):
                    raise ValueError(f"an empty prompt needs a bos_token_id, and model {self._model.name!r} has none")
            prompt = Prompt(None, (*ids, *self._forced), forced)
        if len(ids) > self._limit:
            raise ValueError(f"the input has {len(ids)} tokens, more than the model's {int(self._limit)} positions; split it")
        length = len(ids)
        for token in self._eos:
            length -= ids.count(token)
        return self._source(prompt, length)

    def _source(self, prompt: Prompt, length: int) -> Source:
        """The default limit is the generation config's, else 2|x| + 10; prompt tokens count towards its `max_length`."""
        room = self._positions - len(prompt.tokens)
        if room < 1:
            raise ValueError(f"the prompt of {len(prompt.tokens)} tokens leaves no position to generate in; shorten it")
        before, most = len(prompt.tokens) - len(self._forced), 2 * length + 10
        if self._max_new_tokens:
            most = int(self._max_new_tokens)
        elif self._max_length and self._max_length > before:
            most = int(self._max_length) - before
        return Source(prompt, length, most, room)

    def _features(self, raw: Any) -> tuple[Any, int]:
        """A speech model's input, the output of its feature extractor, as a tensor, and the length of the encoder output."""
        import torch

        bins, positions = (self._model.config_value(name) for name in ("num_mel_bins", "max_source_positions"))
        shape = (bins, 2 * positions)
        given = tuple(getattr(raw, "shape", ()))
        if given != shape:
            got = f"an array of shape {given}" if given else type(raw).__name__
            raise ValueError(f"model {self._model.name!r} takes audio features of shape {shape} (mel bins, frames), got {got}")
        return torch.as_tensor(raw), positions


class TextIds(tuple[int, ...]):
    """Token ids from the tokenizer, which need no validation, as opposed to ids that a user passed."""


def token_ids(model: TextModel, raw: Any, what: str) -> tuple[int, ...]:
    """The tokens of a text, or the given token ids after validation. `what` names the argument in error messages."""
    if isinstance(raw, str):
        if model.text_tokenizer is None:
            raise ValueError(f"model {model.name!r} has no tokenizer: give token ids instead of text")
        (encoded,) = model.text_tokenizer.encode_batch([check_characters(raw, what)])
        return _without_double_bos(model.text_tokenizer.bos, raw, encoded)
    try:
        ids = tuple(map(index, raw))
    except TypeError:
        raise ValueError(f"the {what} must be a text or token ids, got {type(raw).__name__}") from None
    model.check_tokens(ids, f"the {what}'s tokens")
    return ids


def _without_double_bos(bos: tuple[int, str] | None, raw: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Drop the tokenizer's BOS if the text starts with BOS itself, as the output of chat templates does."""
    twice = bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos[0] and raw.startswith(bos[1])
    return tuple(ids[1:]) if twice else tuple(ids)


def check_characters(text: str, what: str) -> str:
    """The text, unchanged. ValueError if it contains a lone surrogate, which tokenizers cannot encode."""
    if half := SURROGATE.search(text):
        broken = f"the {what} has {half[0]!r} at position {half.start() + 1}, which is no character"
        raise ValueError(f"{broken}; replace it, say with text.encode(errors='replace').decode()")
    return text


def prefix_ids(model: TextModel, prefix: str | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens of a forced prefix of the output, without EOS; () for none."""
    if not prefix:
        return ()
    if isinstance(prefix, str) and model.text_tokenizer is not None:
        ids = model.text_tokenizer.encode_target(check_characters(prefix, "prefix"))
        return tuple(token for token in ids if token not in model.eos)
    return token_ids(model, prefix, "prefix")


# -- conversations --------------------------------------------------------------------------------------------------------

Messages = Sequence[Mapping[str, Any]]
"""A conversation: messages such as `{"role": "user", "content": "..."}`."""


def is_conversation(raw: Any) -> bool:
    """Whether an input is a list of messages, not a text or token ids."""
    return isinstance(raw, (list, tuple)) and bool(raw) and all(isinstance(each, Mapping) and "role" in each for each in raw)


def conversation(text: str) -> Messages:
    """A line of a file as a conversation: a JSON list of messages, or else the text of one user message."""
    if text.lstrip().startswith("["):
        try:
            messages = json.loads(text)
        except ValueError:
            messages = None
        if is_conversation(messages):
            return messages
    return [{"role": "user", "content": text}]


def chat_ids(model: TextModel, messages: Messages) -> tuple[int, ...]:
    """The prompt tokens of a conversation, up to the start of the assistant's reply. ValueError without a chat template."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"model {model.name!r} has no chat template; give it the text that it is to go on with")
    try:
        text = tokenizer.apply_chat_template([dict(each) for each in messages], tokenize=False, add_generation_prompt=True)
    except Exception as error:  # raised by the template's own code, which may reject a sequence of roles
        raise ValueError(f"the chat template of model {model.name!r} refuses this conversation: {error}") from error
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)
