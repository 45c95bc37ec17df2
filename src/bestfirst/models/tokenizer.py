"""`Tokenizer`, the interface between texts and token ids; and `JsonTokenizer`, which runs a tokenizer.json by `tokenizers`, set
up as transformers does for BART, mBART, NLLB and Pegasus.

For these architectures transformers takes only the vocabulary, the merges and the added tokens from the file, and rebuilds the
normalizer, the pre-tokenizer, the decoder and the post-processor (the special tokens around a text). So does `_configure`."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import first_line
from .folder import ModelNotFound, NeedsTransformers

Ids = Sequence[int]
KINDS = {
    "bart": "bart", "roberta": "bart", "mbart": "mbart", "mbart50": "mbart50", "nllb": "nllb", "pegasus": "pegasus",
    "pretrained": "file", "tokenizersbackend": "file",
}  # fmt: skip
"""The kind of setup for a tokenizer class (lower case, without `Tokenizer` and `Fast`); "file": all as in tokenizer.json."""

BY_MODEL = {"bart": "bart", "mbart": "mbart", "pegasus": "pegasus"}  # by model type, if the config names no tokenizer class
DEFAULT_LANGUAGE = {"mbart": "en_XX", "mbart50": "en_XX", "nllb": "eng_Latn"}  # default source language
SPACE = "\u2581"  # sentencepiece's mark for a space


class Tokenizer(ABC):
    """The tokenizer interface of `TextModel`; results equal those of transformers' (`tests/models/test_tokenizers.py`)."""

    unknown: int | None = None  # the id of the unknown token
    bos: tuple[int, str] | None = None  # the id and text of BOS, if there is one

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of input texts, with the special tokens that the model expects around them."""

    @abstractmethod
    def encode_target(self, text: str) -> list[int]:
        """The token ids of an output text, without special tokens."""

    @abstractmethod
    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        """The texts of token sequences, without special tokens."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """The text of one token, with a leading space if it begins a word."""

    @abstractmethod
    def special(self, text: str) -> int | None:
        """The id of the special token with this text; None if there is none, or it is the unknown token."""

    @abstractmethod
    def language(self, code: str) -> int | None:
        """The id of the token for a language; None if there is none for this code."""


def clean_up(text: str) -> str:
    """Remove spaces before punctuation and English contractions, as `clean_up_tokenization_spaces` in a config requests."""
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


def text_of(token: Any) -> str:
    """A special token's text; configs have a string, or an object with `content`."""
    return str(token["content"] if isinstance(token, dict) else token)


def cleans_up(config: Mapping[str, Any]) -> bool:
    return bool(config.get("clean_up_tokenization_spaces", False))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a model's file. ModelNotFound if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(f"it lacks {path.name}") from None
    except ValueError as error:
        raise ModelNotFound(f"{path.name} is no JSON: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise ModelNotFound(f"{path.name} must be a JSON object, and is a {type(found).__name__}")
    return found


class JsonTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`, behind the `Tokenizer` interface."""

    def __init__(self, tokenizer: Any, unknown: int | None, bos: str, cleans: bool) -> None:
        self._tokenizer = tokenizer
        self._cleans = cleans
        self.unknown = unknown
        bos_id = tokenizer.token_to_id(bos)
        self.bos = None if bos_id is None else (int(bos_id), bos)
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def encode_target(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        texts = self._tokenizer.decode_batch([list(ids) for ids in batch], skip_special_tokens=True)
        return [clean_up(text) for text in texts] if self._cleans else list(texts)

    def piece(self, token: int) -> str:
        name = str(self._tokenizer.id_to_token(token))
        if token in self._special or SPACE in name:
            return name.replace(SPACE, " ")
        decoder = self._tokenizer.decoder
        return str(decoder.decode([name]) if decoder is not None else name)

    def special(self, text: str) -> int | None:
        token = self._tokenizer.token_to_id(text)
        return int(token) if token in self._special and token != self.unknown else None

    def language(self, code: str) -> int | None:
        token = self._tokenizer.token_to_id(code)
        added = token is not None and token in self._tokenizer.get_added_tokens_decoder()
        return int(token) if added and token != self.unknown else None


def json_tokenizer(folder: Path, config: Mapping[str, Any], model_type: str, source_lang: str | None) -> JsonTokenizer:
    """The tokenizer in a folder's tokenizer.json. NeedsTransformers if it is of an unknown kind, ModelNotFound if damaged."""
    from tokenizers import Tokenizer as Backend

    kind = kind_of(config, model_type)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NeedsTransformers("its tokenizer has no tokenizer.json")
    written = read_json(path)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # of whatever kind `tokenizers` raises
        raise ModelNotFound(f"tokenizer.json is damaged: {first_line(error)}") from error
    backend.no_padding()
    backend.no_truncation()
    if (config.get("add_prefix_space") and kind != "bart") or config.get("split_special_tokens"):
        raise NeedsTransformers("its tokenizer's config asks for what only transformers does")
    if kind != "file":
        _configure(backend, kind, config, written, source_lang)
    unknown = config.get("unk_token", "<unk>")
    token = None if unknown is None else backend.token_to_id(text_of(unknown))
    is_bpe = written.get("model", {}).get("type") == "BPE"  # transformers does not clean up the spaces of BPE output
    return JsonTokenizer(backend, token, text_of(config.get("bos_token") or "<s>"), cleans_up(config) and not is_bpe)


def kind_of(config: Mapping[str, Any], model_type: str) -> str:
    """The kind of setup (a value of `KINDS`). NeedsTransformers if the config's tokenizer class is not supported here."""
    named = config.get("tokenizer_class")
    if named is None:
        if model_type in BY_MODEL:
            return BY_MODEL[model_type]
        raise NeedsTransformers("its tokenizer's config does not name its class")
    kind = KINDS.get(str(named).lower().removesuffix("fast").removesuffix("tokenizer"))
    if kind is None:
        raise NeedsTransformers(f"its tokenizer is a {named}")
    return kind


def _configure(backend: Any, kind: str, config: Mapping[str, Any], written: Mapping[str, Any], source_lang: str | None) -> None:
    """Rebuild normalizer, pre-tokenizer, decoder and post-processor as transformers does. `written` is the tokenizer.json."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

    charsmap = _charsmap(written.get("normalizer"))
    precompiled = [] if charsmap is None else [normalizers.Precompiled(charsmap)]
    spaces = normalizers.Replace(Regex(r" {2,}"), " ")
    metaspace: dict[str, Any] = {"replacement": SPACE, "prepend_scheme": "always", "split": True}
    words = [pre_tokenizers.WhitespaceSplit()] if kind == "mbart" else []
    eos = text_of(config.get("eos_token") or "</s>")
    if kind == "bart":
        first = bool(config.get("add_prefix_space", False))
        backend.normalizer = None
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=first), decoders.ByteLevel()
        ends = [text_of(config.get(name) or usual) for name, usual in (("sep_token", "</s>"), ("cls_token", "<s>"))]
        trim = bool(config.get("trim_offsets", True))
        sep, cls = ((end, _token_id(backend, end)) for end in ends)
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim, first)
        return
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.Metaspace(**metaspace)])
    backend.decoder = decoders.Metaspace(**metaspace)
    if kind == "mbart":
        backend.normalizer = None
    elif kind == "nllb":
        backend.normalizer = normalizers.Sequence([*precompiled, spaces]) if precompiled else None
    else:
        lines = [] if precompiled or kind == "mbart50" else [normalizers.Replace(Regex(r"\n"), " ")]
        backend.normalizer = normalizers.Sequence([*precompiled, *lines, spaces])
    template = ["$A", eos]
    if kind in DEFAULT_LANGUAGE:
        code = source_lang or config.get("src_lang") or DEFAULT_LANGUAGE[kind]
        if backend.token_to_id(code) is None:
            raise ModelNotFound(f"unknown source language {code!r}")
        behind = kind == "mbart" or (kind == "nllb" and config.get("legacy_behaviour"))
        template = ["$A", eos, code] if behind else [code, "$A", eos]
    named = [(token, _token_id(backend, token)) for token in template if token != "$A"]
    backend.post_processor = processors.TemplateProcessing(single=template, pair=[*template, "$B"], special_tokens=named)


def _token_id(backend: Any, token: str) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise NeedsTransformers(f"its tokenizer's vocabulary has no {token!r}")
    return int(token_id)


def _charsmap(normalizer: Any) -> bytes | None:
    """sentencepiece's precompiled normalization table in a tokenizer.json; None if it has none."""
    if not normalizer:
        return None
    for each in normalizer.get("normalizers", [normalizer]):
        if each.get("type") == "Precompiled" and each.get("precompiled_charsmap"):
            return base64.b64decode(each["precompiled_charsmap"])
    return None
