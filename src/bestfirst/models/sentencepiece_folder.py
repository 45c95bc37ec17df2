"""The sentencepiece tokenizer of a Marian or M2M100 folder, from its files, with added tokens numbered as by transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .folder import ModelNotFound, NeedsTransformers
from .sentencepiece_tokenizer import AddedToken, M2M100Tokenizer, MarianTokenizer
from .tokenizer import cleans_up, read_json, text_of

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
    decoding = target if separate else source
    return MarianTokenizer(source, target, vocabulary, target_vocabulary, added, unknown, [], after, decoding, cleans_up(config))


def m2m100_tokenizer(folder: Path, config: Mapping[str, Any], source_lang: str | None) -> M2M100Tokenizer:
    """The tokenizer of an M2M100 folder: sentencepiece.bpe.model, vocab.json."""
    vocabulary = read_json(folder / "vocab.json")
    codes = WMT21_LANGUAGES if config.get("language_codes") == "wmt21" else M2M100_LANGUAGES
    languages = {code: len(vocabulary) + i for i, code in enumerate(codes)}
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    with_codes = {**vocabulary, **{f"__{code}__": token for code, token in languages.items()}}
    added = added_tokens(folder, config, with_codes, named)
    source_code = source_lang or config.get("src_lang") or "en"
    if source_code not in languages:
        raise ModelNotFound(f"unknown source language {source_code!r}")
    eos = next(token.id for token in added if token.content == text_of(config.get("eos_token") or "</s>"))
    model = load_spm(folder / "sentencepiece.bpe.model", config)
    unknown = text_of(config.get("unk_token") or "<unk>")
    before, cleans = [languages[source_code]], cleans_up(config)
    return M2M100Tokenizer(model, model, with_codes, with_codes, added, unknown, before, [eos], model, cleans, languages)


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
