"""Reader: inputs of a Hugging Face model, from what a user gives to what the model takes."""

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

HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: it stands for no character


@dataclass(slots=True)
class Prompt:
    """One input as a Hugging Face model takes it."""

    source: Any  # encoder input: token ids, or features (mel bins, frames); None for a decoder-only model
    tokens: tuple[int, ...]  # what the decoder is given before it generates
    shown: int = 0  # how many of the last `tokens` belong to the output's text
    hidden: Any = None  # (length, d) what the encoder made of it, where that is known
    length: int = 0  # of the encoder's input

    def __post_init__(self) -> None:
        if not self.length and self.source is not None:
            self.length = len(self.source)


class PackedPrompt(Prompt):
    """One of `PackedPrompts`."""

    __slots__ = ("pack", "start")

    def __init__(self, tokens: tuple[int, ...], pack: PackedPrompts, start: int, length: int) -> None:
        self.tokens, self.shown, self.length = tokens, 0, length
        self.pack, self.start = pack, start

    @property
    def source(self) -> Any:
        return None if self.pack.read is None else tuple(self.pack.read[self.start : self.start + self.length].tolist())

    @property
    def hidden(self) -> Any:
        return None if self.pack.hidden is None else self.pack.hidden[self.start : self.start + self.length]


class PackedPrompts(Sequence[Prompt]):
    """Many inputs, one behind the other: what the encoder read, (tokens,), and made of it, (tokens, d), each where it is known.
    A prompt is made when it is asked for: a device that has some to work on does not wait."""

    def __init__(self, tokens: Sequence[tuple[int, ...]], lengths: Sequence[int], read: Any, hidden: Any) -> None:
        self._tokens, self._lengths, self.read, self.hidden = tokens, lengths, read, hidden
        self._starts = [0, *accumulate(lengths)]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return PackedPrompt(self._tokens[i], self, self._starts[i], self._lengths[i])


class Reader:
    """Reads the inputs of one decode: texts, or token ids as they are; for Whisper, audio features (mel bins, frames).

    `prefix` is the forced start of the outputs. Whatever is the same for all inputs is looked up once.
    """

    def __init__(self, model: TextModel, prefix: str | Sequence[int] | None = None) -> None:
        self._model = model
        self._forced = prefix_ids(model, prefix)
        self._start = (*model.start_tokens, *self._forced)
        self._eos = tuple(model.eos)
        self._limit = model.source_positions if model.encoder_decoder else model.positions
        self._positions = model.positions
        self._most_new = model.generation_value("max_new_tokens")
        most = model.generation_value("max_length")
        self._most = most if most != 20 else None  # 20: nobody's choice

    def __call__(self, raw: Any) -> Source:
        """One input. Raises ValueError, naming the trouble, for one that cannot be decoded."""
        if isinstance(raw, (bytes, bytearray)):
            raise ValueError("an input is a text or token ids, got bytes; write raw.decode('utf-8')")
        model, forced = self._model, len(self._forced)
        if model.speech:
            features, length = self._features(raw)
            return self._source(Prompt(features, self._start, forced, length=length), length)
        return self._read(chat_ids(model, raw) if is_conversation(raw) else token_ids(model, raw, "input"))

    def batch(self, raws: Sequence[Any]) -> list[Source | ValueError]:
        """As called one by one, the texts tokenised together; what an input raises is in its place."""
        return [self._attempt(raw) for raw in self.tokenised(raws)]

    def tokenised(self, raws: Sequence[Any]) -> list[Any]:
        """The texts among these inputs as `TextIds`, all else as it is."""
        texts = self._model.texts
        found: list[Any] = list(raws)
        if texts is not None and not self._model.speech:
            where = [i for i, raw in enumerate(raws) if isinstance(raw, str) and not HALF.search(raw)]
            bos = texts.bos
            for i, ids in zip(where, texts.encode_batch([raws[i] for i in where]), strict=True):
                found[i] = TextIds(_once(bos, raws[i], ids))
        return found

    def _attempt(self, raw: Any) -> Source | ValueError:
        try:
            return self._read(raw) if type(raw) is TextIds else self(raw)
        except ValueError as error:
            return error

    def _read(self, ids: tuple[int, ...]) -> Source:
        forced = len(self._forced)
        if self._model.encoder_decoder:
            if not ids:
                raise ValueError("the input has no tokens; give at least one, such as the model's EOS")
            prompt = Prompt(ids, self._start, forced, None, len(ids))
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
        room = self._positions - len(prompt.tokens)
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

    def _features(self, raw: Any) -> tuple[Any, int]:
        """An input of a speech model, as its feature extractor makes it; its length is the encoder's."""
        import torch

        bins, positions = (self._model.config_value(name) for name in ("num_mel_bins", "max_source_positions"))
        shape = (bins, 2 * positions)
        given = tuple(getattr(raw, "shape", ()))
        if given != shape:
            got = f"an array of shape {given}" if given else type(raw).__name__
            raise ValueError(f"model {self._model.name!r} takes audio features of shape {shape} (mel bins, frames), got {got}")
        return torch.as_tensor(raw), positions

    def _bos(self) -> tuple[int, ...]:
        bos = self._model.setting("bos_token_id")
        if bos is None:
            raise ValueError(f"an empty prompt needs a bos_token_id, and model {self._model.name!r} has none")
        return (bos,)


class TextIds(tuple[int, ...]):
    """Tokens that a text was found to have, as against tokens that a user gave."""


def token_ids(model: TextModel, raw: Any, what: str) -> tuple[int, ...]:
    """A text's tokens, or token ids as they are."""
    if isinstance(raw, str):
        if model.texts is None:
            raise ValueError(f"model {model.name!r} has no tokenizer: give token ids instead of text")
        return _once(model.texts.bos, raw, model.texts.encode_batch([readable(raw, what)])[0])
    try:
        ids = tuple(map(index, raw))
    except TypeError:
        raise ValueError(f"the {what} must be a text or token ids, got {type(raw).__name__}") from None
    model.check_tokens(ids, f"the {what}'s tokens")
    return ids


def _once(bos: tuple[int, str] | None, raw: str, ids: Sequence[int]) -> tuple[int, ...]:
    """A text that begins with BOS itself, as chat templates do, begins once."""
    twice = bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos[0] and raw.startswith(bos[1])
    return tuple(ids[1:]) if twice else tuple(ids)


def readable(text: str, what: str) -> str:
    """A text, if it is one."""
    if half := HALF.search(text):
        broken = f"the {what} has {half[0]!r} at position {half.start() + 1}, which is no character"
        raise ValueError(f"{broken}; replace it, say with text.encode(errors='replace').decode()")
    return text


def prefix_ids(model: TextModel, prefix: str | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens of an output's beginning, without EOS."""
    if not prefix:
        return ()
    if isinstance(prefix, str) and model.texts is not None:
        ids = model.texts.encode_target(readable(prefix, "prefix"))
        return tuple(token for token in ids if token not in model.eos)
    return token_ids(model, prefix, "prefix")


# -- conversations --------------------------------------------------------------------------------------------------------

Messages = Sequence[Mapping[str, Any]]
"""What was said: `{"role": "user", "content": "..."}` and so on."""


def is_conversation(raw: Any) -> bool:
    """Whether an input is a list of messages, as against a text or token ids."""
    return isinstance(raw, (list, tuple)) and bool(raw) and all(isinstance(each, Mapping) and "role" in each for each in raw)


def conversation(text: str) -> Messages:
    """A line of a file as a conversation: a JSON list of messages, or else what a user says."""
    if text.lstrip().startswith("["):
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if is_conversation(given):
            return given
    return [{"role": "user", "content": text}]


def chat_ids(model: TextModel, messages: Messages) -> tuple[int, ...]:
    """The tokens of a conversation up to where the model speaks. ValueError if its tokenizer knows no conversations."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"model {model.name!r} has no chat template; give it the text that it is to go on with")
    try:
        text = tokenizer.apply_chat_template([dict(each) for each in messages], tokenize=False, add_generation_prompt=True)
    except Exception as error:  # of the template's own code, which looks at what was said
        raise ValueError(f"the chat template of model {model.name!r} refuses this conversation: {error}") from error
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)
