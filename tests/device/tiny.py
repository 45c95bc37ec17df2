"""Tiny models of many architectures, each from its own config, with peaked random weights: two layers of width 32."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from engine.builders import ARCHITECTURES, BART, EOS, GPT2, LLAMA, PAD, SMALL, START, T5, WHISPER, peaked
from generate.tiny import made_of

WIDE = {**LLAMA, "head_dim": 8}
WINDOW = {**LLAMA, "sliding_window": 6}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
NEOX = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
OPT = {**SMALL, "bos_token_id": START, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON = {**NEOX, "parallel_attn": True, "alibi": False, "multi_query": True, "bias": False}
XGLM = {**SMALL, "bos_token_id": START, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}
LED_POSITIONS = ("max_encoder_position_embeddings", "max_decoder_position_embeddings")
PARTS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
MOONSHINE = {
    **SMALL, **PARTS, "bos_token_id": START, "decoder_start_token_id": START, "max_position_embeddings": 64,
    "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 2, "pad_head_dim_to_multiple_of": 8,
    "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
}  # fmt: skip

LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", LLAMA),
    "Qwen2": ("Qwen2ForCausalLM", LLAMA),
    "Qwen3": ("Qwen3ForCausalLM", WIDE),
    "Mistral": ("MistralForCausalLM", WINDOW),
    "Gemma": ("GemmaForCausalLM", WIDE),
    "Gemma2": ("Gemma2ForCausalLM", {**WIDE, **LAYERS, "query_pre_attn_scalar": 8}),
    "Gemma3": ("Gemma3ForCausalLM", {**WIDE, **LAYERS, "query_pre_attn_scalar": 8}),
    "Phi": ("PhiForCausalLM", LLAMA),
    "Phi3": ("Phi3ForCausalLM", WINDOW),
    "OPT": ("OPTForCausalLM", {**OPT, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "GPT2": ("GPT2LMHeadModel", GPT2),
    "GPTNeoX": ("GPTNeoXForCausalLM", NEOX),
    "GPTBigCode": ("GPTBigCodeForCausalLM", GPT2),
    "Starcoder2": ("Starcoder2ForCausalLM", WINDOW),
    "Olmo2": ("Olmo2ForCausalLM", LLAMA),
    "Granite": ("GraniteForCausalLM", LLAMA),
    "StableLm": ("StableLmForCausalLM", LLAMA),
    "Cohere": ("CohereForCausalLM", LLAMA),
    "Glm": ("GlmForCausalLM", WIDE),
    "SmolLM3": ("SmolLM3ForCausalLM", LLAMA),
    "Nemotron": ("NemotronForCausalLM", LLAMA),
    "BioGpt": ("BioGptForCausalLM", {**LLAMA, "scale_embedding": True}),
    "Mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 4}),
    "Falcon": ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon7B": ("FalconForCausalLM", FALCON),
    "GPTJ": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    "CodeGen": ("CodeGenForCausalLM", {**GPT2, "rotary_dim": 4}),
    "XGLM": ("XGLMForCausalLM", XGLM),
}

ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5ForConditionalGeneration", T5),
    "MT5": ("MT5ForConditionalGeneration", T5),
    "UMT5": ("UMT5ForConditionalGeneration", T5),
    "Whisper": ("WhisperForConditionalGeneration", WHISPER),
    "Moonshine": ("MoonshineForConditionalGeneration", MOONSHINE),
    "PegasusX": ("PegasusXForConditionalGeneration", {**BART, "block_size": 4, "num_global_tokens": 2}),
    "Blenderbot": ("BlenderbotForConditionalGeneration", BART),
    "LED": ("LEDForConditionalGeneration", {**BART, "attention_window": 8, **dict.fromkeys(LED_POSITIONS, 40)}),
    "MVP": ("MvpForConditionalGeneration", BART),
}

MADE_OF_TWO: dict[str, tuple[str, str]] = {
    "TrOCR": ("ViT", "TrOCR"),
    "ViT-GPT2": ("ViT", "GPT2"),
    "BERT-BERT": ("Bert", "Bert"),
    "BERT-GPT2": ("Bert", "GPT2"),
    "RoBERTa-RoBERTa": ("Roberta", "Roberta"),
    "wav2vec-BERT": ("Wav2Vec2", "Bert"),
}

EVERYTHING = [*LANGUAGE_MODELS, *ENCODER_DECODERS, *MADE_OF_TWO]
FUSED = {"Marian": "marian", "BART": "bart", "mBART": "mbart", "Pegasus": "pegasus", "M2M100": "m2m100"}
"""Architectures with kernels of their own, as `engine.builders` builds them."""


def build(name: str, seed: int = 0) -> Any:
    if name in MADE_OF_TWO:
        return made_of(*(getattr(hf, f"{part}Config") for part in MADE_OF_TWO[name]), seed)
    if name in FUSED:
        return ARCHITECTURES[FUSED[name]].build(seed)
    return build_single(name, seed)


def build_single(name: str, seed: int) -> Any:
    kind, settings = {**LANGUAGE_MODELS, **ENCODER_DECODERS}[name]
    architecture = getattr(hf, kind)
    known = architecture.config_class()
    config = architecture.config_class(
        **{key: value for key, value in settings.items() if hasattr(known, key) or key == "head_dim"}
    )
    model = peaked(architecture(config), seed, 2.0).eval()
    model.generation_config = hf.GenerationConfig(
        pad_token_id=PAD, eos_token_id=EOS, bos_token_id=START,
        decoder_start_token_id=START if model.config.is_encoder_decoder else None,
    )  # fmt: skip
    return model


def inputs(model: Any, n: int, seed: int = 0, shortest: int = 1, longest: int = 12) -> dict[str, torch.Tensor]:
    """Prompts of mixed lengths, padded as `generate` expects; features for speech."""
    dice = torch.Generator().manual_seed(seed)
    device = model.device
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(n, 8, 20, generator=dice).to(device)}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(n, 3, 16, 16, generator=dice).to(device)}
    if model.main_input_name in ("input_values", "inputs"):
        return {model.main_input_name: torch.randn(n, 2000, generator=dice).to(device)}
    left = not model.config.is_encoder_decoder
    lengths = torch.randint(shortest, longest + 1, (n,), generator=dice).tolist()
    ids, mask = torch.full((n, max(lengths)), PAD), torch.zeros(n, max(lengths), dtype=torch.long)
    for i, length in enumerate(lengths):
        place = slice(-length, None) if left else slice(0, length)
        ids[i, place], mask[i, place] = torch.randint(4, 48, (length,), generator=dice), 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
