"""Hugging Face models: loaded from a folder or by name, or wrapped as they are in memory; and their tokenizers.

What a model says is `TransformersModel`; how its decoder is run fast is `bestfirst.engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

from .folder import ModelNotFound, check_folder, damage, first_line, has_tokenizer
from .model import Query, Scored
from .reader import Prompt
from .sentencepiece_tokenizer import AddedToken, MarianTokenizer
from .text_model import INT8, TextModel
from .tokenizer import Ids, Tokenizer
from .torch_modules import Modules, every_module

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {INT8: torch.float32, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_transformers(
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    trust_remote_code: bool = False,
) -> TransformersModel:
    """As `bestfirst.load`, by transformers whatever it is."""
    check_folder(name)
    precision = _dtype(dtype)
    with _quiet_about_tokenizers():
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
            reading = {"trust_remote_code": trust_remote_code, "output_loading_info": True, "ignore_mismatched_sizes": True}
            model, found = _auto_class(config).from_pretrained(name, dtype=precision, **reading)
            tokenizer = _tokenizer(name, source_lang, target_lang, trust_remote_code)
        except Exception as error:  # whatever a damaged file makes of itself
            raise ModelNotFound(f"cannot load a model from {name!r}: {damage(name, error)}") from error
    if found["mismatched_keys"]:
        weight, stored, wanted = min(found["mismatched_keys"])
        shapes = f"{weight!r} is {tuple(stored)}, config.json makes it {tuple(wanted)}"
        raise ModelNotFound(f"cannot load a model from {name!r}: its weights and config.json differ: {shapes}")
    if missing := sorted(found["missing_keys"]):
        # transformers would fill them with random numbers
        raise ModelNotFound(f"cannot load a model from {name!r}: its weights lack {missing[0]!r} and {len(missing) - 1} more")
    try:
        model = model.to(torch.device(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"cannot use device {str(device)!r}: {first_line(error)}") from error
    loaded = TransformersModel(model.eval(), tokenizer, target_lang=target_lang, name=Path(name).name)
    loaded.eight_bits = dtype == INT8
    if loaded.eight_bits and loaded.model.device.type != "cpu":
        raise ValueError(f"dtype 'int8' is for a CPU, not for device {str(device)!r}; use fp16 or bf16 there")
    return loaded


def wrap(model: Any, tokenizer: Any = None, *, target_lang: str | None = None, name: str | None = None) -> TransformersModel:
    """A model that is in memory already. It is left as it was found whenever a decode ends, also by an exception."""
    return TransformersModel(model, tokenizer, target_lang=target_lang, name=name)


class TransformersModel(TextModel):
    """An encoder-decoder or decoder-only model with its tokenizer and its generation config."""

    def __init__(self, model: Any, tokenizer: Any = None, *, target_lang: str | None = None, name: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or type(model).__name__
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.generation = model.generation_config
        self.speech = self.encoder_decoder and getattr(model, "main_input_name", "input_ids") == "input_features"
        self.step: Any = None  # what the engine runs its decoder with, where that holds the whole model
        self._texts: TransformersTokenizer | None = None
        self.read_files(target_lang)

    @property
    def known_as(self) -> Any:
        return self.model

    def without_weights(self) -> TransformersModel:
        """What reads inputs and writes outputs of this model, and computes nothing: to be sent to another process."""
        other, its = copy(self), self.model
        other.vocabulary, other._texts, other.step, other.cached = self.vocabulary, None, None, None
        kind = {"device": torch.device("meta"), "dtype": its.dtype, "main_input_name": its.main_input_name}
        other.model = SimpleNamespace(config=its.config, generation_config=its.generation_config, **kind)
        return other

    @property
    def modules(self) -> Modules:
        """All modules of the model, as it is now."""
        return every_module(self.model)

    @property
    def on_gpu(self) -> bool:  # type: ignore[override]
        return bool(self.model.device.type == "cuda")

    @property
    def chats(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def vocabulary(self) -> int:  # type: ignore[override]
        head = self.model.get_output_embeddings()
        return int(self.model.config.get_text_config(decoder=True).vocab_size if head is None else len(head.weight))

    @property
    def dtype_name(self) -> str:  # type: ignore[override]
        return INT8 if self.eight_bits else str(self.model.dtype).removeprefix("torch.")

    @property
    def texts(self) -> TransformersTokenizer | None:  # type: ignore[override]
        if self.tokenizer is None:
            return None
        if self._texts is None or self._texts.tokenizer is not self.tokenizer:
            self._texts = TransformersTokenizer(self.tokenizer, self.encoder_decoder)
        return self._texts

    def config_value(self, name: str) -> Any:
        return getattr(self.model.config, name, None)

    def generation_value(self, name: str) -> Any:
        return getattr(self.generation, name, None)

    # -- scoring -------------------------------------------------------------------------------------------------------

    def encode(self, prompts: Sequence[Prompt]) -> tuple[torch.Tensor, list[int]]:
        """The encoder's output for a batch, (batch, length, d) padded on the right, and each input's length."""
        known = [prompt.hidden for prompt in prompts if prompt.hidden is not None]
        if known:
            return torch.nn.utils.rnn.pad_sequence(known, batch_first=True), [len(hidden) for hidden in known]
        device = self.model.device
        if self.speech:
            features = torch.stack([prompt.source for prompt in prompts]).to(device, self.model.dtype)
            given = {"input_features": features}
            lengths = [self.model.config.max_source_positions] * len(prompts)
        else:
            lengths = [len(prompt.source) for prompt in prompts]
            longest = max(lengths)
            ids = torch.tensor([[*prompt.source, *[0] * (longest - len(prompt.source))] for prompt in prompts], device=device)
            mask = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
            given = {"input_ids": ids, "attention_mask": mask.long()}
        encoder = self.model.get_encoder()
        with evaluating(encoder.modules()):
            return encoder(**given).last_hidden_state, lengths

    def logits(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """The model from scratch, no cache: logits (rows, length, vocabulary) after every token of `tokens` (rows, length).

        `tokens` is all that the decoder is given; of the prompt only the encoder's side is looked at.
        """
        if not self.encoder_decoder:
            with evaluating(self.model.modules()):
                return self.model(input_ids=tokens, use_cache=False).logits
        hidden, _ = self.encode([prompt])
        output = encoder_output(hidden.expand(len(tokens), -1, -1).contiguous())  # GPT-2 wants it so
        more = {}
        if self.model.config.model_type == "umt5":  # before transformers 5.18 it looks ahead, for want of a mask
            least = torch.finfo(self.model.dtype).min
            seen = torch.full(2 * tokens.shape[1:], least, dtype=self.model.dtype, device=tokens.device).triu(1)
            more["decoder_attention_mask"] = seen.expand(len(tokens), 1, -1, -1)
        with evaluating(self.model.modules()):
            return self.model(encoder_outputs=output, decoder_input_ids=tokens, use_cache=False, **more).logits

    @torch.inference_mode()
    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """Each hypothesis from scratch, one by one: slow and plain, what the engine is tested against. Inside another model that
        is being decoded, all of them in one forward pass, from keys and values that were kept."""
        if self.cached is not None:
            return self.cached.score(batch)
        out = []
        for state, prefix in batch:
            decoder = torch.tensor([[*state.tokens, *prefix]], device=self.model.device)
            logprobs = torch.log_softmax(self.logits(state, decoder)[0, -1].float(), -1).clamp_(max=0)
            logprobs[list(self.banned)] = -inf
            out.append(Scored(logprobs.cpu().numpy(), state))
        return out


def encoder_output(hidden: Any) -> BaseModelOutput:
    """What the encoder made of the input, (batch, length, d), as models take it."""
    output = BaseModelOutput(last_hidden_state=hidden)
    output.attention_mask = None  # Moonshine looks there
    return output


@contextmanager
def evaluating(modules: Iterable[Any]) -> Iterator[None]:
    """Modules in evaluation mode, and then each of them back in the mode it was in."""
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _auto_class(config: Any) -> Any:
    if config.model_type == "whisper":
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def _tokenizer(name: str, source_lang: str | None, target_lang: str | None, trust_remote_code: bool) -> Any:
    """The model's tokenizer, or None for a folder without one (then inputs are token ids)."""
    if not has_tokenizer(name):
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    if source_lang is not None:
        tokenizer.src_lang = source_lang
    if target_lang is not None and hasattr(tokenizer, "tgt_lang"):
        tokenizer.tgt_lang = target_lang
    return tokenizer


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; choose from fp32, fp16, bf16, int8")
    return DTYPES[dtype or "fp32"]


@contextmanager
def _quiet_about_tokenizers() -> Any:
    """Marian's tokenizer recommends sacremoses, which changes nothing here; loading bars say nothing in 0.1 s."""
    level = transformers.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


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
            parts = (its.spm_source, its.spm_target, vocabulary, target, tokens, str(its.unk_token))
            cleaning = bool(its.clean_up_tokenization_spaces)
            self._faster = state, MarianTokenizer(*parts, [], [its.eos_token_id], shown, cleaning)
        return self._faster[1]
