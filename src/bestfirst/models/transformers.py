"""Hugging Face models in torch: loading them by transformers, wrapping models in memory (`wrap`), and their tokenizers.
`TransformersModel` scores by plain forward passes, as the reference; the fast decoders are in `bestfirst.engine`."""

from __future__ import annotations

import re
import warnings
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

from ..errors import first_line
from .folder import ModelNotFound, check_folder, describe_damage, has_tokenizer
from .model import Model, Query, Scored
from .reader import Prompt
from .sentencepiece_tokenizer import AddedToken, MarianTokenizer
from .text_model import INT8, TextModel
from .tokenizer import SPACE, Ids, Tokenizer
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
    """`bestfirst.load`, always by transformers. ModelNotFound, with the cause, for a model that is missing or damaged."""
    check_folder(name)
    precision = _dtype(dtype)
    with _quiet_about_tokenizers():
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
            options = {"trust_remote_code": trust_remote_code, "output_loading_info": True, "ignore_mismatched_sizes": True}
            model, info = _auto_class(config).from_pretrained(name, dtype=precision, **options)
            tokenizer = _tokenizer(name, source_lang, target_lang, trust_remote_code)
        except Exception as error:  # a damaged file can raise anything
            raise ModelNotFound(f"cannot load a model from {name!r}: {describe_damage(name, error)}") from error
    if info["mismatched_keys"]:
        weight, stored, wanted = min(info["mismatched_keys"])
        shapes = f"{weight!r} is {tuple(stored)}, config.json makes it {tuple(wanted)}"
        raise ModelNotFound(f"cannot load a model from {name!r}: its weights and config.json differ: {shapes}")
    if missing := sorted(info["missing_keys"]):
        # transformers initializes them randomly
        raise ModelNotFound(f"cannot load a model from {name!r}: its weights lack {missing[0]!r} and {len(missing) - 1} more")
    if (more := _layers_left_out(model, info["unexpected_keys"])) is not None:
        warnings.warn(f"{name}: {more}, which is left out, as by transformers", stacklevel=2)
    try:
        model = model.to(torch.device(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"cannot use device {str(device)!r}: {first_line(error)}") from error
    loaded = TransformersModel(model.eval(), tokenizer, target_lang=target_lang, name=Path(name).name)
    loaded.eight_bits = dtype == INT8
    if loaded.eight_bits and loaded.model.device.type != "cpu":
        raise ValueError(f"dtype 'int8' is for a CPU, not for device {str(device)!r}; use fp16 or bf16 there")
    return loaded


def _layers_left_out(model: Any, unexpected: Iterable[str]) -> str | None:
    """Which layers have weights but no place in the model. transformers' own warning is not seen: its log is quiet here."""
    lists = {name: len(part) for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList)}
    for weight in sorted(unexpected):
        found = re.match(r"(.+?)\.(\d+)\.", weight)
        if found and int(found[2]) >= lists.get(found[1], int(found[2]) + 1):
            return f"config.json makes {lists[found[1]]} layers of {found[1]}, and there is {weight!r}"
    return None


def wrap(model: Any, tokenizer: Any = None, *, target_lang: str | None = None, name: str | None = None) -> TransformersModel:
    """A Hugging Face model in memory as a model for `bestfirst`. When a decode ends, also by an exception, it is unchanged."""
    if isinstance(model, Model):
        raise TypeError(f"{type(model).__name__} is a model for bestfirst already; give it to decode as it is")
    return TransformersModel(model, tokenizer, target_lang=target_lang, name=name)


class TransformersModel(TextModel):
    """A Hugging Face model in torch, encoder-decoder or decoder-only, with its tokenizer and its generation config."""

    def __init__(self, model: Any, tokenizer: Any = None, *, target_lang: str | None = None, name: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or type(model).__name__
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.generation = model.generation_config
        self.speech = self.encoder_decoder and getattr(model, "main_input_name", "input_ids") == "input_features"
        self.step: Any = None  # the engine's decoder step, cached here if it holds a copy of the whole model
        self._text_tokenizer: TransformersTokenizer | None = None
        self.read_files(target_lang)

    @property
    def known_as(self) -> Any:
        return self.model

    def without_weights(self) -> TransformersModel:
        """A copy that can only tokenize inputs and decode outputs, cheap to send to another process."""
        other, model = copy(self), self.model
        other.vocabulary, other._text_tokenizer, other.step, other.cached = self.vocabulary, None, None, None
        kind = {"device": torch.device("meta"), "dtype": model.dtype, "main_input_name": model.main_input_name}
        other.model = SimpleNamespace(config=model.config, generation_config=model.generation_config, **kind)
        return other

    @property
    def modules(self) -> Modules:
        """All modules of the model, collected anew because the user may change it."""
        return every_module(self.model)

    @property
    def on_gpu(self) -> bool:  # type: ignore[override]
        return bool(self.model.device.type == "cuda")

    @property
    def chats(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def vocabulary(self) -> int:  # type: ignore[override]
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        if isinstance(weight, torch.Tensor):  # a method where torch has quantised the head
            return len(weight)
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    @property
    def dtype_name(self) -> str:  # type: ignore[override]
        return INT8 if self.eight_bits else str(self.model.dtype).removeprefix("torch.")

    @property
    def text_tokenizer(self) -> TransformersTokenizer | None:  # type: ignore[override]
        if self.tokenizer is None:
            return None
        if self._text_tokenizer is None or self._text_tokenizer.tokenizer is not self.tokenizer:
            self._text_tokenizer = TransformersTokenizer(self.tokenizer, self.encoder_decoder)
        return self._text_tokenizer

    def config_value(self, name: str) -> Any:
        return getattr(self.model.config, name, None)

    def generation_value(self, name: str) -> Any:
        return getattr(self.generation, name, None)

    # -- scoring -------------------------------------------------------------------------------------------------------

    def encode(self, prompts: Sequence[Prompt]) -> tuple[torch.Tensor, list[int]]:
        """Encoder output (batch, length, d), right-padded, and each input's length; from the prompts' `hidden`, if known."""
        computed = [prompt.hidden for prompt in prompts if prompt.hidden is not None]
        if computed:
            return torch.nn.utils.rnn.pad_sequence(computed, batch_first=True), [len(hidden) for hidden in computed]
        device = self.model.device
        if self.speech:
            features = torch.stack([prompt.source for prompt in prompts]).to(device, self.model.dtype)
            arguments = {"input_features": features}
            lengths = [self.model.config.max_source_positions] * len(prompts)
        else:
            lengths = [len(prompt.source) for prompt in prompts]
            longest = max(lengths)
            ids = torch.tensor([[*prompt.source, *[0] * (longest - len(prompt.source))] for prompt in prompts], device=device)
            mask = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
            arguments = {"input_ids": ids, "attention_mask": mask.long()}
        encoder = self.model.get_encoder()
        with evaluating(encoder.modules()):
            return encoder(**arguments).last_hidden_state, lengths

    def logits(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """A forward pass without KV cache: logits (rows, length, vocabulary) after every token of `tokens` (rows, length), the
        complete decoder input. Of the prompt, only the encoder input is used."""
        if not self.encoder_decoder:
            with evaluating(self.model.modules()):
                return self.model(input_ids=tokens, use_cache=False).logits
        hidden, _ = self.encode([prompt])
        output = encoder_output(hidden.expand(len(tokens), -1, -1).contiguous())  # GPT-2 needs it contiguous
        extra = {}
        if self.model.config.model_type == "umt5":  # before transformers 5.18 it applies no causal mask by default
            least = torch.finfo(self.model.dtype).min
            mask = torch.full(2 * tokens.shape[1:], least, dtype=self.model.dtype, device=tokens.device).triu(1)
            extra["decoder_attention_mask"] = mask.expand(len(tokens), 1, -1, -1)
        with evaluating(self.model.modules()):
            return self.model(encoder_outputs=output, decoder_input_ids=tokens, use_cache=False, **extra).logits

    @torch.inference_mode()
    def score(self, batch: Sequence[Query]) -> list[Scored]:
        """Score each hypothesis by a forward pass of its own without KV cache: the reference that engines are tested against.
        While an engine decodes a combination with this model, `cached` scores the batch in one pass with a KV cache instead."""
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
    """Encoder hidden states (batch, length, d) in the form that models take as `encoder_outputs`."""
    output = BaseModelOutput(last_hidden_state=hidden)
    output.attention_mask = None  # Moonshine reads this attribute
    return output


@contextmanager
def evaluating(modules: Iterable[Any]) -> Iterator[None]:
    """Put modules into evaluation mode, uncompiled: torch.compile fails on tensors of an engine. On exit, restore each one."""
    modules = list(modules)
    training = [module for module in modules if module.training]
    replaced = [own for module in modules if "forward" in (own := vars(module)) or "_compiled_call_impl" in own]
    compiled = [(own, parts) for own in replaced if (parts := _compiled_parts(own))]
    try:
        for module in training:
            module.training = False
        for attributes, parts in compiled:
            attributes.update({name: before for name, (before, _) in parts.items()})
        yield
    finally:
        for module in training:
            module.training = True
        for attributes, parts in compiled:
            attributes.update({name: after for name, (_, after) in parts.items()})


def _compiled_parts(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What torch.compile has replaced among the attributes of a module: by name, what was there before, and what is now."""
    call, forward = attributes.get("_compiled_call_impl"), attributes.get("forward")
    parts = {} if call is None else {"_compiled_call_impl": (None, call)}
    original = getattr(forward, "_torchdynamo_orig_callable", None)
    return parts if original is None else {**parts, "forward": (original, forward)}


def _auto_class(config: Any) -> Any:
    if config.model_type == "whisper":
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def _tokenizer(name: str, source_lang: str | None, target_lang: str | None, trust_remote_code: bool) -> Any:
    """The model's tokenizer, or None for a folder without one (then inputs are token ids)."""
    if not has_tokenizer(name):
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    if source_lang is not None and TransformersTokenizer(tokenizer, True).language(source_lang) is not None:
        tokenizer.src_lang = source_lang  # `load` refuses any other
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
    """No warnings or progress bars while loading: Marian's tokenizer recommends sacremoses, which makes no difference here."""
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
    """A transformers tokenizer behind the `Tokenizer` interface; read anew on each call, since the user may change it."""

    def __init__(self, tokenizer: Any, encoder_decoder: bool) -> None:
        self.tokenizer = tokenizer
        self._target_argument = "text_target" if encoder_decoder else "text"
        self._fast_marian: tuple[Any, Tokenizer] | None = None

    @property
    def unknown(self) -> int | None:  # type: ignore[override]
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def bos(self) -> tuple[int, str] | None:  # type: ignore[override]
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return None if bos is None else (bos, self.tokenizer.bos_token)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if (fast := self._fast_tokenizer()) is not None:
            return fast.encode_batch(texts)
        return list(self.tokenizer(list(texts)).input_ids) if texts else []

    def encode_target(self, text: str) -> list[int]:
        return list(self.tokenizer(**{self._target_argument: text}, add_special_tokens=False).input_ids)

    def decode_batch(self, batch: Sequence[Ids]) -> list[str]:
        if (fast := self._fast_tokenizer()) is not None:
            return fast.decode_batch(batch)
        return [str(text) for text in self.tokenizer.batch_decode([list(ids) for ids in batch], skip_special_tokens=True)]

    def piece(self, token: int) -> str:
        name = str(self.tokenizer.convert_ids_to_tokens(token))
        if token in self.tokenizer.all_special_ids or SPACE in name:
            return name.replace(SPACE, " ")
        return str(self.tokenizer.convert_tokens_to_string([name]))

    def special(self, text: str) -> int | None:
        token = self.tokenizer.convert_tokens_to_ids(text)  # the unknown token's id if there is no such token
        added = self.tokenizer.added_tokens_decoder.get(token)
        return int(token) if added is not None and added.special and token != self.unknown else None

    def language(self, code: str) -> int | None:
        """The id of a language token: `__de__` (M2M100), `deu_Latn` (NLLB), `de_DE` (mBART); not the ordinary word "de"."""
        tokenizer = self.tokenizer
        for name in (f"__{code}__", code):
            token = tokenizer.convert_tokens_to_ids(name)
            special = name != code or token in tokenizer.added_tokens_decoder
            if token is not None and token != tokenizer.unk_token_id and special:
                return int(token)
        return None

    def _fast_tokenizer(self) -> Tokenizer | None:
        """For a Marian tokenizer, our own `MarianTokenizer` made of its parts: the same results ten times as fast, because
        transformers loops over texts in Python. None for any other. Rebuilt when the added or special tokens change."""
        its: Any = self.tokenizer
        if type(its) is not transformers.MarianTokenizer or its.split_special_tokens:
            return None
        added = its._added_tokens_decoder
        state = (tuple((n, token.content, token.lstrip, token.rstrip) for n, token in added.items()), tuple(its.all_special_ids))
        if self._fast_marian is None or self._fast_marian[0] != state:
            if any(token.single_word for token in added.values()):
                return None
            special = set(its.all_special_ids)
            tokens = [AddedToken(t.content, n, n in special, t.lstrip, t.rstrip) for n, t in added.items()]
            vocabulary: Any = its.encoder
            target: Any = its.target_encoder if its.separate_vocabs else vocabulary
            parts = (its.spm_source, its.spm_target, vocabulary, target, tokens, str(its.unk_token))
            cleaning = bool(its.clean_up_tokenization_spaces)
            self._fast_marian = state, MarianTokenizer(*parts, [], [its.eos_token_id], cleaning)
        return self._fast_marian[1]
