"""Small models of every architecture that the engine covers, built from their own configs, with peaked random weights.

Nothing is downloaded. Distributions are peaked, so that some hypotheses are clearly better; output lengths vary.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import sqrt
from typing import Any

import torch
import transformers as hf
from transformers.pytorch_utils import Conv1D

VOCABULARY = 48
PAD, EOS, START = 0, 1, 2
LANGUAGE = 3  # the forced first token of M2M100 and mBART
SMALL = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": EOS}
SEQ2SEQ = {**SMALL, "bos_token_id": START, "decoder_start_token_id": START, "forced_eos_token_id": None}
BART = {
    **SEQ2SEQ,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
}
UNTIED = {**BART, "tie_word_embeddings": False}
T5 = {**SEQ2SEQ, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
WHISPER = {
    **{name: value for name, value in BART.items() if name != "max_position_embeddings"},
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 40,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
LLAMA = {
    **SMALL,
    "bos_token_id": START,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TIED_LLAMA = {**LLAMA, "tie_word_embeddings": True}
GPT2 = {**SMALL, "bos_token_id": START, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "tie_word_embeddings": False}


@dataclass(frozen=True)
class Architecture:
    """How to build a small model, and which step should run its decoder."""

    model: type
    config: type
    settings: dict[str, Any]
    decoder: str
    eos: float  # the spread of EOS' logit over that of the others, so that output lengths vary
    forced: int | None = None  # the forced first token

    @property
    def decoder_only(self) -> bool:
        return self.model.__name__.endswith(("CausalLM", "LMHeadModel"))

    @property
    def speech(self) -> bool:
        return self.model is hf.WhisperForConditionalGeneration

    def build(self, seed: int = 0, attention: str = "sdpa", **changes: Any) -> Any:
        config = self.config(**{**self.settings, **changes})
        config._attn_implementation = attention
        model = peaked(self.model(config), seed, self.eos)
        model.generation_config.bad_words_ids = [[PAD]]
        model.generation_config.forced_bos_token_id = self.forced
        model.generation_config.max_length = None
        return model.eval()

    def inputs(self, n: int, seed: int = 0) -> list[Any]:
        """Token ids of 1 to 12 tokens, or features."""
        dice = torch.Generator().manual_seed(seed)
        if self.speech:
            return [torch.randn(8, 20, generator=dice) for _ in range(n)]
        lengths = torch.randint(1, 13, (n,), generator=dice).tolist()
        ids = [torch.randint(4, VOCABULARY, (length,), generator=dice).tolist() for length in lengths]
        return ids if self.decoder_only else [[*each, EOS] for each in ids]


FAST = "native" if find_spec("numba") else "fused"
"""The step that runs BART-like decoders on a CPU."""

ARCHITECTURES = {
    "marian": Architecture(hf.MarianMTModel, hf.MarianConfig, {**UNTIED, "scale_embedding": True}, FAST, eos=2.0),
    "bart": Architecture(hf.BartForConditionalGeneration, hf.BartConfig, UNTIED, FAST, eos=2.5),
    "mbart": Architecture(hf.MBartForConditionalGeneration, hf.MBartConfig, BART, FAST, eos=2.5, forced=LANGUAGE),
    "pegasus": Architecture(hf.PegasusForConditionalGeneration, hf.PegasusConfig, BART, FAST, eos=2.0),
    "m2m100": Architecture(hf.M2M100ForConditionalGeneration, hf.M2M100Config, UNTIED, FAST, eos=1.7, forced=LANGUAGE),
    "t5": Architecture(hf.T5ForConditionalGeneration, hf.T5Config, T5, "fused", eos=1.5),
    "mt5": Architecture(hf.MT5ForConditionalGeneration, hf.MT5Config, {**T5, "tie_word_embeddings": False}, "fused", eos=3.5),
    "whisper": Architecture(hf.WhisperForConditionalGeneration, hf.WhisperConfig, WHISPER, FAST, eos=1.5),
    "umt5": Architecture(hf.UMT5ForConditionalGeneration, hf.UMT5Config, T5, "fused", eos=1.5),
    "gpt2": Architecture(hf.GPT2LMHeadModel, hf.GPT2Config, GPT2, "hooked", eos=1.5),
    "llama": Architecture(hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA, "fused", eos=1.5),
    "qwen2": Architecture(hf.Qwen2ForCausalLM, hf.Qwen2Config, LLAMA, "fused", eos=1.5),
    "qwen3": Architecture(hf.Qwen3ForCausalLM, hf.Qwen3Config, {**TIED_LLAMA, "head_dim": 16}, "fused", eos=2.5),
    "mistral": Architecture(
        hf.MistralForCausalLM, hf.MistralConfig, {**LLAMA, "num_key_value_heads": 1, "sliding_window": None}, "fused", eos=1.5
    ),
}


@torch.no_grad()
def peaked(model: Any, seed: int, eos: float, logits: float = 4.0) -> Any:
    """The model with random weights: logits have a standard deviation of about `logits`, that of EOS `eos` times as much."""
    dice = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight
    for name, parameter in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".")[0])
        if parameter is head:
            parameter.normal_(0, logits / sqrt(parameter.shape[1]), generator=dice)
            parameter[EOS] *= eos
        elif isinstance(layer, torch.nn.Embedding):
            scaled = getattr(model.config, "scale_embedding", False)
            parameter.normal_(0, 1 / sqrt(parameter.shape[1]) if scaled else 1, generator=dice)
        elif parameter.dim() > 1:
            inputs = parameter.shape[0] if isinstance(layer, Conv1D) else parameter[0].numel()
            parameter.normal_(0, 1.5 / sqrt(inputs), generator=dice)
            if name.endswith("Attention.q.weight"):
                parameter /= sqrt(model.config.d_kv)  # T5 does not scale its attention
        elif "norm" in name and name.endswith("weight"):
            parameter.uniform_(0.5, 1.5, generator=dice)
        else:
            parameter.normal_(0, 0.2, generator=dice)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(0, 0.5, generator=dice)
    return model
