"""Tokenizers that are sentencepiece models, Marian's and M2M100's, from a folder's files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from os import cpu_count
from pathlib import Path
from typing import Any

from .folder import ModelNotFound, NeedsTransformers
from .tokenizer import Ids, Tokenizer, clean_up, cleans_up, read_json, text_of


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of a text before anything else is done with it."""

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Splitter:
    """Cuts texts at added tokens: the first that begins, of those the longest."""

    def __init__(self, added: Sequence[AddedToken]) -> None:
        self._added = {token.content: token for token in added if token.content}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def finds(self, text: str) -> bool:
        """Whether an added token is in a text."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def __call__(self, text: str) -> list[str | AddedToken]:
        """Pieces of text and added tokens, none of them empty."""
        if self._pattern is None or not self.finds(text):
            return [text] if text else []
        parts: list[str | AddedToken] = []
        end = 0
        for match in self._pattern.finditer(text):
            parts += [text[end : match.start()], self._added[match.group()]]
            end = match.end()
        parts.append(text[end:])
        parts = [part for part in parts if part != ""]
        for i, part in enumerate(parts):
            if isinstance(part, AddedToken):
                self._strip_beside(parts, i, part)
        return [part for part in parts if part != ""]

    @staticmethod
    def _strip_beside(parts: list[Any], i: int, token: AddedToken) -> None:
        left = parts[i - 1] if i and isinstance(parts[i - 1], str) else ""
        right = parts[i + 1] if i + 1 < len(parts) and isinstance(parts[i + 1], str) else ""
        if token.rstrip and right:
            parts[i + 1] = right.lstrip()
        if token.lstrip and left:
            parts[i - 1] = left.rstrip()
        if token.single_word:  # part of a word is not the token
            raise NeedsTransformers("its tokenizer has tokens that are words only by themselves")


@dataclass(eq=False, repr=False)
class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model whose pieces have ids of their own (`vocabulary`), and added tokens."""

    source: Any  # sentencepiece's processor
    target: Any
    vocabulary: Mapping[str, int]
    target_vocabulary: Mapping[str, int]
    added: Sequence[AddedToken]
    unknown_piece: str
    before: Ids
    after: Ids
    shown: Any  # the processor that outputs are put together by
    cleans: bool = False

    def __post_init__(self) -> None:
        self._split = Splitter(self.added)
        self.unknown = self.vocabulary[self.unknown_piece]
        self._pieces = {token: piece for piece, token in self.target_vocabulary.items()}
        self._pieces |= {token.id: token.content for token in self.added}
        self._special_names = {token.content: token.id for token in self.added if token.special}
        self._special = {*self._special_names.values()}
        self._read: tuple[int, list[int]] | None = None  # of the vocabulary's size: tokens by sentencepiece's own numbers
        self._shown_as: dict[int, str | None] = {}  # what a token adds to a text

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._any_cut("\n".join(texts)):
            return [[*self.before, *ids, *self.after] for ids in self._ids([*texts])]
        split = [self._cut(text) for text in texts]
        found = iter(self._ids([part for parts in split for part in parts if isinstance(part, str)]))
        out = []
        for parts in split:
            ids = [*self.before]
            for part in parts:
                if isinstance(part, str):
                    ids += next(found)
                else:
                    ids.append(part.id)
            out.append([*ids, *self.after])
        return out

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Tokens of texts without added tokens."""
        source, vocabulary, unknown = self.source, self.vocabulary, self.vocabulary[self.unknown_piece]

        def one(text: str) -> list[int]:
            return [vocabulary.get(piece, unknown) for piece in source.encode(text, out_type=str)]

        if len(texts) < FEW and self._read is None:
            return [one(text) for text in texts]
        if self._read is None or self._read[0] != len(vocabulary):
            pieces = map(source.IdToPiece, range(source.GetPieceSize()))
            self._read = len(vocabulary), [vocabulary.get(piece, unknown) for piece in pieces]
        table, odd = self._read[1], source.unk_id()
        # a piece that sentencepiece does not know may be in the vocabulary all the same
        every = zip(texts, source.encode(texts, out_type=int, num_threads=_threads(len(texts))), strict=True)
        return [one(text) if odd in ids else [table[i] for i in ids] for text, ids in every]

    def encode_target(self, text: str) -> list[int]:
        vocabulary = self.target_vocabulary
        ids: list[int] = []
        for part in self._cut(text):
            if isinstance(part, str):
                ids += [vocabulary.get(piece, vocabulary[self.unknown_piece]) for piece in self.target.encode(part, out_type=str)]
            else:
                ids.append(part.id)
        return ids

    def _cut(self, text: str) -> list[str | AddedToken]:
        return self._split(text)

    def _any_cut(self, text: str) -> bool:
        """Whether a part of a text may have to be cut out."""
        return self._split.finds(text)

    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        table = self._shown_as
        for token in set(chain.from_iterable(batch)) - table.keys():
            table[token] = self._plain_text(token)
        texts = []
        for ids in batch:
            try:
                texts.append(self._finish("".join(map(table.__getitem__, ids))))  # type: ignore[arg-type]
            except TypeError:
                texts.append(self._text([token for token in ids if token not in self._special]))
        return texts

    def _plain_text(self, token: int) -> str | None:
        """What a token adds to a text wherever it stands; None where sentencepiece has to see the others.

        It puts pieces one behind the other and makes spaces of their marks, but for control, unknown and unused ones, and bytes;
        what it does at either end of a text, `_finish` does as well.
        """
        if token in self._special:
            return ""
        shown, name = self.shown, self._name(token)
        number = shown.PieceToId(name)
        kinds = (shown.IsUnknown, shown.IsControl, shown.IsByte, shown.IsUnused)
        return None if self._denormalizes or any(kind(number) for kind in kinds) else name.replace(SPACE, " ")

    @cached_property
    def _denormalizes(self) -> bool:
        """Whether sentencepiece changes a text that it has put together, by a table of its model."""
        found = [spec for number, spec in _message(self.shown.serialized_model_proto()) if number == DENORMALIZER]
        return any(number == CHARACTER_MAP and table for spec in found for number, table in _message(spec))

    def _text(self, ids: Ids) -> str:
        """By the pieces' names; of no pieces sentencepiece makes no text."""
        return self._finish(self.shown.decode([*map(self._name, ids)])) if ids else ""

    def _finish(self, text: str) -> str:
        text = text.strip()
        return clean_up(text) if self.cleans else text

    def _name(self, token: int) -> str:
        return self._pieces.get(token, self.unknown_piece)

    def piece(self, token: int) -> str:
        name = self._name(token)
        if token in self._special or SPACE in name:
            return name.replace(SPACE, " ")
        return self._finish(self.shown.decode([name]))

    def special(self, text: str) -> int | None:
        return None if text == self.unknown_piece else self._special_names.get(text)

    def language(self, code: str) -> int | None:
        return None


SPACE = "\u2581"  # sentencepiece's mark of a space
DENORMALIZER, CHARACTER_MAP = 5, 2  # fields of its model, and of what changes texts
FEW = 64  # texts that are not worth a table of all pieces, nor a list of sentencepiece's, for which it begins threads


def _message(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Of a protocol buffer: the fields that have a length, each with its number."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 2:
            size, at = _number(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        elif key & 7 == 0:
            _, at = _number(data, at)
        else:
            at += 8 if key & 7 == 1 else 4


def _number(data: bytes, at: int) -> tuple[int, int]:
    """One of a protocol buffer, seven bits a byte, and where it ends."""
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _threads(texts: int) -> int:
    """That sentencepiece begins for so many: each takes as long to begin as a hundred texts."""
    return max(1, min(4, cpu_count() or 1, texts // 128))


class MarianTokenizer(SentencePieceTokenizer):
    """Marian's: a text may begin with a code of the target language, `>>fra<<`."""

    def _cut(self, text: str) -> list[str | AddedToken]:
        cut: list[str | AddedToken] = []
        for part in self._split(text):
            if isinstance(part, str) and part.startswith(">>") and (end := part.find("<<")) != -1:
                code = part[: end + 2]
                cut.append(AddedToken(code, self.vocabulary.get(code, self.unknown or 0)))
                part = part[end + 2 :]
            cut += [part] if part else []
        return cut

    def _any_cut(self, text: str) -> bool:
        return ">>" in text or super()._any_cut(text)

    def _finish(self, text: str) -> str:
        return super()._finish(text.replace(SPACE, " "))

    def _name(self, token: int) -> str:
        if token in self._pieces:
            return self._pieces[token]
        return str(self.shown.IdToPiece(token)) or self.unknown_piece  # as transformers has it


@dataclass(eq=False, repr=False)
class M2M100Tokenizer(SentencePieceTokenizer):
    """M2M100's: `__de__` stands for German, before the input and before the output. Their ids follow the vocabulary's."""

    languages: Mapping[str, int] = field(default_factory=dict)

    def language(self, code: str) -> int | None:
        return self.languages.get(code)

    def _name(self, token: int) -> str:
        return self._codes.get(token) or super()._name(token)

    @cached_property
    def _codes(self) -> dict[int, str]:
        return {token: f"__{code}__" for code, token in self.languages.items()}


# -- from a folder's files ----------------------------------------------------------------------------------------------

M2M100_LANGUAGES = (
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el", "en",
    "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig",
    "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn",
    "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si", "sk", "sl", "so",
    "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh",
    "zu",
)  # fmt: skip
WMT21_LANGUAGES = ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


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
    shown = target if separate else source
    return MarianTokenizer(source, target, vocabulary, target_vocabulary, added, unknown, [], after, shown, cleans_up(config))


def m2m100_tokenizer(folder: Path, config: Mapping[str, Any], source_lang: str | None) -> M2M100Tokenizer:
    """The tokenizer of an M2M100 folder: sentencepiece.bpe.model, vocab.json."""
    vocabulary = read_json(folder / "vocab.json")
    codes = WMT21_LANGUAGES if config.get("language_codes") == "wmt21" else M2M100_LANGUAGES
    languages = {code: len(vocabulary) + i for i, code in enumerate(codes)}
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    every = {**vocabulary, **{f"__{code}__": token for code, token in languages.items()}}
    added = added_tokens(folder, config, every, named)
    speaking = source_lang or config.get("src_lang") or "en"
    if speaking not in languages:
        raise ModelNotFound(f"unknown source language {speaking!r}")
    eos = next(token.id for token in added if token.content == text_of(config.get("eos_token") or "</s>"))
    model = load_spm(folder / "sentencepiece.bpe.model", config)
    unknown = text_of(config.get("unk_token") or "<unk>")
    return M2M100Tokenizer(
        model, model, every, every, added, unknown, [languages[speaking]], [eos], model, cleans_up(config), languages
    )


def added_tokens(
    folder: Path, config: Mapping[str, Any], vocabulary: Mapping[str, int], named: Mapping[str, str]
) -> list[AddedToken]:
    """Those that the files name, then the special tokens that are not among them, as transformers numbers them."""
    settings: dict[str, Any] = {**named, **{name: value for name, value in config.items() if value is not None}}
    found: dict[str, AddedToken] = {}
    if "added_tokens_decoder" in config:
        for token, entry in config["added_tokens_decoder"].items():
            found[entry["content"]] = _added(entry, int(token))
    else:
        if (folder / "special_tokens_map.json").is_file():
            settings.update(read_json(folder / "special_tokens_map.json"))
        if (folder / "added_tokens.json").is_file():
            raise NeedsTransformers("its tokenizer has an added_tokens.json")
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    special = [settings[name] for name in NAMED if settings.get(name)]
    special += list(extra.values()) if isinstance(extra, dict) else list(extra)
    names = {text_of(token) for token in special}
    found = {name: replace(token, special=token.special or name in names) for name, token in found.items()}
    beyond = len({*vocabulary, *found})
    for token in special:
        name = text_of(token)
        if name and name not in found:
            entry = token if isinstance(token, dict) else {"content": name}
            where = vocabulary.get(name)
            if where is None:
                where, beyond = beyond, beyond + 1
            found[name] = _added({**entry, "special": True}, where)
    return list(found.values())


def _added(entry: Mapping[str, Any], token: int) -> AddedToken:
    flags = {name: bool(entry.get(name, False)) for name in ("special", "lstrip", "rstrip", "single_word")}
    return AddedToken(entry["content"], token, **flags)


def load_spm(path: Path, config: Mapping[str, Any]) -> Any:
    from sentencepiece import SentencePieceProcessor

    if config.get("sp_model_kwargs"):
        raise NeedsTransformers("its tokenizer asks for sampling")
    if not path.is_file():
        raise ModelNotFound(f"its tokenizer lacks {path.name}")
    try:
        return SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # of sentencepiece's own kinds
        raise ModelNotFound(f"{path.name} is damaged") from error
