"""The sentencepiece tokenizers of Marian and M2M100, without transformers, and how they are read from a folder's files.

A text is first split at added tokens (`Splitter`); the parts between them are tokenized by sentencepiece and mapped to ids by the
folder's own vocabulary. Results equal those of transformers' classes (`tests/models/test_tokenizers.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from os import cpu_count
from pathlib import Path
from typing import Any

from .folder import ModelNotFound, NeedsTransformers
from .tokenizer import SPACE, Ids, Tokenizer, clean_up, cleans_up, read_json, text_of

DENORMALIZER, CHARACTER_MAP = 5, 2  # protobuf field numbers: ModelProto.denormalizer_spec, NormalizerSpec.precompiled_charsmap
SMALL_BATCH = 64  # below this many texts, building the id table and starting sentencepiece's threads costs more than it saves


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched literally in a text before sentencepiece runs, with the flags of transformers' `AddedToken`."""

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Splitter:
    """Splits texts at added tokens: leftmost match, longest token first."""

    def __init__(self, added: Sequence[AddedToken]) -> None:
        self._added = {token.content: token for token in added if token.content}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def matches(self, text: str) -> bool:
        """Whether a text contains an added token."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def __call__(self, text: str) -> list[str | AddedToken]:
        """The non-empty parts of a text between added tokens, and those tokens, in order."""
        if self._pattern is None or not self.matches(text):
            return [text] if text else []
        parts: list[str | AddedToken] = []
        end = 0
        for match in self._pattern.finditer(text):
            parts += [text[end : match.start()], self._added[match.group()]]
            end = match.end()
        parts.append(text[end:])
        parts = [part for part in parts if part != ""]
        for i, token in enumerate(parts):
            if not isinstance(token, AddedToken):
                continue
            if token.single_word:  # must not match inside of a word, which is not implemented
                raise NeedsTransformers("its tokenizer has tokens that are words only by themselves")
            if token.lstrip and i and isinstance(left := parts[i - 1], str):
                parts[i - 1] = left.rstrip()
            if token.rstrip and i + 1 < len(parts) and isinstance(right := parts[i + 1], str):
                parts[i + 1] = right.lstrip()
        return [part for part in parts if part != ""]


@dataclass(eq=False, repr=False)
class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model, with a vocabulary that maps its pieces to the model's token ids, and added tokens. M2M100's: a
    language token such as `__de__` precedes input and output."""

    source: Any  # SentencePieceProcessor for inputs
    target: Any  # SentencePieceProcessor for outputs that are encoded
    vocabulary: Mapping[str, int]  # piece -> token id
    target_vocabulary: Mapping[str, int]
    added: Sequence[AddedToken]
    unknown_piece: str
    before: Ids  # special tokens before and after an input
    after: Ids
    cleans: bool = False  # whether decoded texts are passed to `clean_up`

    def __post_init__(self) -> None:
        self._split = Splitter(self.added)
        self.output_processor = self.source if self.target_vocabulary is self.vocabulary else self.target
        self.unknown = self.vocabulary[self.unknown_piece]
        self._pieces = {token: piece for piece, token in self.target_vocabulary.items()}
        self._pieces |= {token.id: token.content for token in self.added}
        self._special_names = {token.content: token.id for token in self.added if token.special}
        self._special = {*self._special_names.values()}
        self._id_table: tuple[int, list[int]] | None = None  # vocabulary size, and token ids by sentencepiece's piece ids
        self._token_texts: dict[int, str | None] = {}  # cache of `_plain_text`

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._needs_segmenting("\n".join(texts)):
            return [[*self.before, *ids, *self.after] for ids in self._ids([*texts])]
        split = [self._segment(text) for text in texts]
        encoded = iter(self._ids([part for parts in split for part in parts if isinstance(part, str)]))
        out = []
        for parts in split:
            ids = [*self.before]
            for part in parts:
                if isinstance(part, str):
                    ids += next(encoded)
                else:
                    ids.append(part.id)
            out.append([*ids, *self.after])
        return out

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """The token ids of texts without added tokens. Large batches use sentencepiece's threads and a table of piece ids."""
        source, vocabulary, unknown = self.source, self.vocabulary, self.vocabulary[self.unknown_piece]

        def one(text: str) -> list[int]:
            return [vocabulary.get(piece, unknown) for piece in source.encode(text, out_type=str)]

        if len(texts) < SMALL_BATCH and self._id_table is None:
            return [one(text) for text in texts]
        if self._id_table is None or self._id_table[0] != len(vocabulary):
            pieces = map(source.IdToPiece, range(source.GetPieceSize()))
            self._id_table = len(vocabulary), [vocabulary.get(piece, unknown) for piece in pieces]
        table, unknown_id = self._id_table[1], source.unk_id()
        # a piece unknown to sentencepiece may still be in the vocabulary: such texts are looked up by piece
        encoded = zip(texts, source.encode(texts, out_type=int, num_threads=_thread_count(len(texts))), strict=True)
        return [one(text) if unknown_id in ids else [table[i] for i in ids] for text, ids in encoded]

    def encode_target(self, text: str) -> list[int]:
        vocabulary = self.target_vocabulary
        ids: list[int] = []
        for part in self._segment(text):
            if isinstance(part, str):
                ids += [vocabulary.get(piece, vocabulary[self.unknown_piece]) for piece in self.target.encode(part, out_type=str)]
            else:
                ids.append(part.id)
        return ids

    def _segment(self, text: str) -> list[str | AddedToken]:
        """The parts of a text that sentencepiece has to encode, and the tokens between them."""
        return self._split(text)

    def _needs_segmenting(self, text: str) -> bool:
        """Whether `_segment` may find a token in a text; a cheap test for a whole batch."""
        return self._split.matches(text)

    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        table = self._token_texts
        for token in set(chain.from_iterable(batch)) - table.keys():
            table[token] = self._plain_text(token)
        texts = []
        for ids in batch:
            try:
                texts.append(self._clean("".join(map(table.__getitem__, ids))))  # type: ignore[arg-type]
            except TypeError:
                pieces = [self._name(token) for token in ids if token not in self._special]
                texts.append(self._clean(self.output_processor.decode(pieces)) if pieces else "")  # it does not decode []
        return texts

    def _plain_text(self, token: int) -> str | None:
        """The text of a token independent of its neighbours; None if sentencepiece has to decode the whole sequence.

        sentencepiece concatenates pieces and replaces their space marks, except for control, unknown, unused and byte pieces.
        What it does at the ends of a text, `_clean` does as well."""
        if token in self._special:
            return ""
        processor, name = self.output_processor, self._name(token)
        piece_id = processor.PieceToId(name)
        kinds = (processor.IsUnknown, processor.IsControl, processor.IsByte, processor.IsUnused)
        return None if self._denormalizes or any(kind(piece_id) for kind in kinds) else name.replace(SPACE, " ")

    @cached_property
    def _denormalizes(self) -> bool:
        """Whether the sentencepiece model has a denormalization table, which changes decoded texts."""
        fields = _length_delimited_fields(self.output_processor.serialized_model_proto())
        specs = [spec for number, spec in fields if number == DENORMALIZER]
        return any(number == CHARACTER_MAP and table for spec in specs for number, table in _length_delimited_fields(spec))

    def _clean(self, text: str) -> str:
        """A decoded text without spaces at its ends, cleaned up if the config says so."""
        text = text.strip()
        return clean_up(text) if self.cleans else text

    def _name(self, token: int) -> str:
        """The piece of a token id."""
        return self._pieces.get(token, self.unknown_piece)

    def piece(self, token: int) -> str:
        name = self._name(token)
        if token in self._special or SPACE in name:
            return name.replace(SPACE, " ")
        return self._clean(self.output_processor.decode([name]))

    def special(self, text: str) -> int | None:
        return None if text == self.unknown_piece else self._special_names.get(text)

    def language(self, code: str) -> int | None:
        return self.vocabulary.get(f"__{code}__")


def _length_delimited_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a serialized protobuf message, as (field number, content)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 2:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        elif key & 7 == 0:
            _, at = _varint(data, at)
        else:
            at += 8 if key & 7 == 1 else 4


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A protobuf varint at this offset, and the offset after it."""
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _thread_count(texts: int) -> int:
    """The number of sentencepiece threads for so many texts: starting one takes as long as encoding a hundred texts."""
    return max(1, min(4, cpu_count() or 1, texts // 128))


class MarianTokenizer(SentencePieceTokenizer):
    """Marian's tokenizer: a text may begin with a target language code, such as `>>fra<<`."""

    def _segment(self, text: str) -> list[str | AddedToken]:
        segments: list[str | AddedToken] = []
        for part in self._split(text):
            if isinstance(part, str) and part.startswith(">>") and (end := part.find("<<")) != -1:
                code = part[: end + 2]
                segments.append(AddedToken(code, self.vocabulary.get(code, self.unknown or 0)))
                part = part[end + 2 :]
            segments += [part] if part else []
        return segments

    def _needs_segmenting(self, text: str) -> bool:
        return ">>" in text or super()._needs_segmenting(text)

    def _clean(self, text: str) -> str:
        return super()._clean(text.replace(SPACE, " "))

    def _name(self, token: int) -> str:
        if token in self._pieces:
            return self._pieces[token]
        return str(self.output_processor.IdToPiece(token)) or self.unknown_piece  # as in transformers


# -- from a folder's files -------------------------------------------------------------------------------------------------

M2M100_LANGUAGES = (
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el", "en",
    "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig",
    "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn",
    "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si", "sk", "sl", "so",
    "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh",
    "zu",
)  # fmt: skip
WMT21_LANGUAGES = ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")
SPECIAL_TOKEN_SETTINGS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def marian_tokenizer(folder: Path, config: Mapping[str, Any]) -> MarianTokenizer:
    """The tokenizer of a Marian folder: source.spm, target.spm, vocab.json."""
    separate = bool(config.get("separate_vocabs", False))
    vocabulary = read_json(folder / "vocab.json")
    target_vocabulary = read_json(folder / "target_vocab.json") if separate else vocabulary
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    added = added_tokens(folder, config, vocabulary, named)
    source, target = load_spm(folder / "source.spm", config), load_spm(folder / "target.spm", config)
    eos, unknown = (text_of({**named, **config}[name]) for name in ("eos_token", "unk_token"))
    after = [next(token.id for token in added if token.content == eos)]
    return MarianTokenizer(source, target, vocabulary, target_vocabulary, added, unknown, [], after, cleans_up(config))


def m2m100_tokenizer(folder: Path, config: Mapping[str, Any], source_lang: str | None) -> SentencePieceTokenizer:
    """The tokenizer of an M2M100 folder: sentencepiece.bpe.model, vocab.json; the ids of languages follow the vocabulary's."""
    vocabulary = read_json(folder / "vocab.json")
    codes = WMT21_LANGUAGES if config.get("language_codes") == "wmt21" else M2M100_LANGUAGES
    vocabulary |= {f"__{code}__": token for token, code in enumerate(codes, len(vocabulary))}
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    added = added_tokens(folder, config, vocabulary, named)
    source_code = source_lang or config.get("src_lang") or "en"
    if source_code not in codes:
        raise ModelNotFound(f"unknown source language {source_code!r}")
    eos, unknown = (text_of(config.get(name) or named[name]) for name in ("eos_token", "unk_token"))
    after = [next(token.id for token in added if token.content == eos)]
    model, before = load_spm(folder / "sentencepiece.bpe.model", config), [vocabulary[f"__{source_code}__"]]
    return SentencePieceTokenizer(model, model, vocabulary, vocabulary, added, unknown, before, after, cleans_up(config))


def added_tokens(
    folder: Path, config: Mapping[str, Any], vocabulary: Mapping[str, int], named: Mapping[str, str]
) -> list[AddedToken]:
    """The added tokens in the folder's files, then all other special tokens (`named`: defaults), numbered as by transformers."""
    settings: dict[str, Any] = {**named, **{name: value for name, value in config.items() if value is not None}}
    added: dict[str, AddedToken] = {}
    if "added_tokens_decoder" in config:
        for token, entry in config["added_tokens_decoder"].items():
            added[entry["content"]] = _added(entry, int(token))
    else:
        if (folder / "special_tokens_map.json").is_file():
            settings.update(read_json(folder / "special_tokens_map.json"))
        if (folder / "added_tokens.json").is_file():
            raise NeedsTransformers("its tokenizer has an added_tokens.json")
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    special = [settings[name] for name in SPECIAL_TOKEN_SETTINGS if settings.get(name)]
    special += list(extra.values()) if isinstance(extra, dict) else list(extra)
    names = {text_of(token) for token in special}
    added = {name: replace(token, special=token.special or name in names) for name, token in added.items()}
    next_id = len({*vocabulary, *added})
    for token in special:
        name = text_of(token)
        if name and name not in added:
            entry = token if isinstance(token, dict) else {"content": name}
            token_id = vocabulary.get(name)
            if token_id is None:
                token_id, next_id = next_id, next_id + 1
            added[name] = _added({**entry, "special": True}, token_id)
    return list(added.values())


def _added(entry: Mapping[str, Any], token: int) -> AddedToken:
    """The added token with this id that an entry of a config describes."""
    flags = {name: bool(entry.get(name, False)) for name in ("special", "lstrip", "rstrip", "single_word")}
    return AddedToken(entry["content"], token, **flags)


def load_spm(path: Path, config: Mapping[str, Any]) -> Any:
    """The sentencepiece model in a file. ModelNotFound if it is missing or damaged."""
    from sentencepiece import SentencePieceProcessor

    if config.get("sp_model_kwargs"):
        raise NeedsTransformers("its tokenizer asks for sampling")
    if not path.is_file():
        raise ModelNotFound(f"its tokenizer lacks {path.name}")
    try:
        return SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # sentencepiece raises several types
        raise ModelNotFound(f"{path.name} is damaged") from error
