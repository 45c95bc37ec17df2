"""TransformersTokenizer: a tokenizer of transformers, asked for many texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .sentencepiece_tokenizer import AddedToken, MarianTokenizer
from .tokenizer import Ids, Tokenizer


class TransformersTokenizer(Tokenizer):
    """Asks the tokenizer as it is now: its owner may change it."""

    def __init__(self, tokenizer: Any, encoder_decoder: bool) -> None:
        self.tokenizer = tokenizer
        self._target = "text_target" if encoder_decoder else "text"
        self._faster: tuple[Any, Tokenizer] | None = None

    @property
    def unknown(self) -> int | None:  # type: ignore[override]
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def bos(self) -> tuple[int, str] | None:  # type: ignore[override]
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return None if bos is None else (bos, self.tokenizer.bos_token)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if (faster := self._marian()) is not None:
            return faster.encode_batch(texts)
        return list(self.tokenizer(list(texts)).input_ids) if texts else []

    def encode_target(self, text: str) -> list[int]:
        return list(self.tokenizer(**{self._target: text}, add_special_tokens=False).input_ids)

    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        if (faster := self._marian()) is not None:
            return faster.decode_batch(batch)
        return [str(text) for text in self.tokenizer.batch_decode([list(ids) for ids in batch], skip_special_tokens=True)]

    def piece(self, token: int) -> str:
        name = str(self.tokenizer.convert_ids_to_tokens(token))
        if token in self.tokenizer.all_special_ids or "\u2581" in name:  # sentencepiece's mark of a space
            return name.replace("\u2581", " ")
        return str(self.tokenizer.convert_tokens_to_string([name]))

    def special(self, text: str) -> int | None:
        token = self.tokenizer.convert_tokens_to_ids(text)  # the unknown one for whatever is none
        added = self.tokenizer.added_tokens_decoder.get(token)
        return int(token) if added is not None and added.special and token != self.unknown else None

    def language(self, code: str) -> int | None:
        """`__de__` (M2M100), `deu_Latn` (NLLB), `de_DE` (mBART); not the mere word "de"."""
        tokenizer = self.tokenizer
        for token in (f"__{code}__", code):
            found = tokenizer.convert_tokens_to_ids(token)
            special = token != code or found in tokenizer.added_tokens_decoder
            if found is not None and found != tokenizer.unk_token_id and special:
                return int(found)
        return None

    def _marian(self) -> Tokenizer | None:
        """Marian's own goes through texts one by one in Python; the same from its parts is ten times as fast."""
        import transformers

        its: Any = self.tokenizer
        if type(its) is not transformers.MarianTokenizer or its.split_special_tokens:
            return None
        added = its._added_tokens_decoder
        state = (tuple((n, token.content, token.lstrip, token.rstrip) for n, token in added.items()), tuple(its.all_special_ids))
        if self._faster is None or self._faster[0] != state:
            if any(token.single_word for token in added.values()):
                return None
            special = set(its.all_special_ids)
            tokens = [AddedToken(t.content, n, n in special, t.lstrip, t.rstrip) for n, t in added.items()]
            vocabulary: Any = its.encoder
            target: Any = its.target_encoder if its.separate_vocabs else vocabulary
            shown = its.spm_target if its.separate_vocabs else its.spm_source
            words, cleaning = str(its.unk_token), bool(its.clean_up_tokenization_spaces)
            self._faster = (
                state,
                MarianTokenizer(
                    its.spm_source, its.spm_target, vocabulary, target, tokens, words, [], [its.eos_token_id], shown, cleaning
                ),
            )
        return self._faster[1]
