"""Tiny models of every class that transformers can generate with: its default config with every size made small.

Nothing is downloaded. The classes are those in transformers' own tables for its Auto classes.
"""

from __future__ import annotations

import inspect
import re
from math import sqrt
from typing import Any

import torch
import transformers
from transformers import GenerationMixin
from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto import modeling_auto

VOCABULARY = 64
PAD, EOS, START = 0, 1, 2
LAYERS = 2

SIZES: list[tuple[str, int]] = [
    # by field name, the first that matches; all other fields keep their defaults
    (r"(.*_)?vocab_size|.*vocabulary_size|codebook_size|num_tokens", VOCABULARY),
    (r".*(kv|key_value)_heads|num_key_value_heads.*|multi_query_group_num|num_query_groups|num_kv_groups", 2),
    (r"(.*_)?(num_|n_)?(.*_)?heads|n_head|num_head|.*attention_heads.*", 4),
    (r"experts_per_tok(en)?|num_experts_per_tok(en)?|.*top_?k(_experts)?|moe_k|num_experts_per_token", 2),
    (r"n_group|topk_group|num_expert_groups?|n_shared_experts|num_shared_experts?", 1),
    (r"(num_|n_)?(.*_)?experts|moe_num_experts|n_routed_experts", 4),
    (r"(.*_)?(num_|n_)?(.*_)?(layers|layer|blocks)|(.*_)?depth|num_hidden_layers.*|n_layers?", LAYERS),
    (r".*(head_dim|head_size)|d_kv|attention_key_size|.*head_hidden_size|d_head", 8),
    (r"(.*_)?lora_rank|.*_lora_dim|.*low_rank_dim|.*bottleneck_dim", 16),
    (r"(.*_)?(moe|expert|shared).*intermediate(_size)?|expert_dim|expert_hidden_size", 16),
    (r".*(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|inner_dim|n_inner|mlp_dim)|d_ff|ff_dim|dim_ff", 48),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|embedding_dim|dim|width|d_inner|d_proj)", 32),
    (
        r"(.*_)?max_.*(position|positions|position_embeddings|seq_len|sequence_length|length)|n_positions|n_ctx|.*context_length",
        64,
    ),
    (r"sliding_window.*|window_size|attention_chunk_size|.*local_window.*", 6),
    (r"(.*_)?image_size", 16),
    (r"(.*_)?patch_size", 8),
    (r"num_mel_bins|feat_dim|input_feat_per_channel", 8),
    (r".*state_size|ssm_state.*|.*d_state|mamba_state_dim", 8),
    (r"projection_dim", 32),
]
LISTS: dict[str, list[Any]] = {
    # sizes by stage of an image encoder
    "depths": [1, 1],
    "num_heads": [2, 2],
    "embed_dim": [16, 32],
    "num_groups": [2, 2],
    "patch_padding": [3, 1],
    "patch_prenorm": [False, True],
    "patch_size": [7, 3],
    "patch_stride": [4, 2],
}
EXACT: dict[str, Any] = {
    "max_source_positions": 16,
    "rotary_dim": 4,
    "attention_window": 8,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": START,
}
TOKENS = r".*(_token_id|_token_index|_token)"


def generation_classes() -> list[str]:
    """Every class in the tables of transformers' Auto classes that can generate."""
    names = set()
    for table in vars(modeling_auto):
        if table.startswith("MODEL_FOR_") and table.endswith("_MAPPING_NAMES"):
            for each in getattr(modeling_auto, table).values():
                names.update([each] if isinstance(each, str) else each)
    return sorted(name for name in names if _generates(getattr(transformers, name, None)))


def _generates(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, GenerationMixin) and kind.can_generate()


def tiny(name: str, seed: int = 0, **changes: Any) -> Any:
    """A small model of this class with random weights and peaked distributions; `changes` are for its (text) config."""
    kind = getattr(transformers, name)
    config = shrink(default_config(kind.config_class))
    for part in (config, config.get_text_config(decoder=True)):
        for field in changes.keys() & vars(part).keys():
            setattr(part, field, changes[field])
    if not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True
    torch.manual_seed(seed)
    model = peaked(kind(config).float(), seed)
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.bos_token_id = PAD, EOS, START
    settings.decoder_start_token_id = START if config.is_encoder_decoder else None
    for field in ("forced_eos_token_id", "forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens", "max_length"):
        setattr(settings, field, None)
    return model.eval()


def made_of(encoder: Any, decoder: Any, seed: int = 0) -> Any:
    """A small model of an encoder and a decoder of these configs, for text, images or speech."""
    kinds = {"vit": "VisionEncoderDecoder", "wav2vec2": "SpeechEncoderDecoder"}
    kind = kinds.get(encoder.model_type, "EncoderDecoder")
    config = shrink(getattr(transformers, f"{kind}Config").from_encoder_decoder_configs(encoder(), decoder()))
    model = peaked(getattr(transformers, f"{kind}Model")(config).float(), seed).eval()
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.bos_token_id, settings.decoder_start_token_id = PAD, EOS, START, START
    return model


def default_config(kind: Any) -> Any:
    """A class's default config. Composed models have none before transformers 5.18: they get that of later releases."""
    if not getattr(kind, "has_no_defaults_at_init", False):
        return kind()
    encoder = {"encoder-decoder": "bert", "vision-encoder-decoder": "vit", "speech-encoder-decoder": "wav2vec2"}[kind.model_type]
    return kind.from_encoder_decoder_configs(*(transformers.AutoConfig.for_model(part) for part in (encoder, "bert")))


def shrink(config: Any, token: int = VOCABULARY) -> Any:
    """The config with small sizes, also in the configs that it holds."""
    before = getattr(config, "num_hidden_layers", None)
    for field, value in list(vars(config).items()):
        if field.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            shrink(value)
        elif field in EXACT and value is not None:
            setattr(config, field, EXACT[field])
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, int) and re.fullmatch(TOKENS, field):
            token -= 1
            setattr(config, field, token if value >= 4 else value)
        elif isinstance(value, int):
            size = next((size for name, size in SIZES if re.fullmatch(name, field)), None)
            if size is not None and value > size:
                setattr(config, field, size)
        elif isinstance(value, (list, tuple)) and field in LISTS:
            setattr(config, field, LISTS[field])
        elif isinstance(value, list) and len(value) == before and len(value) > LAYERS:
            setattr(config, field, _kinds(value))
    if config.model_type == "moonshine":  # it splits queries into as many heads as keys
        config.encoder_num_key_value_heads = config.decoder_num_key_value_heads = config.decoder_num_attention_heads
    if hasattr(config, "kv_lora_rank") and getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = config.num_attention_heads
    for rope in (getattr(config, "rope_parameters", None), getattr(config, "rope_scaling", None)):
        if isinstance(rope, dict) and "mrope_section" in rope:
            rope["mrope_section"] = [2, 1, 1]
    return config


def _kinds(layers: list[Any]) -> list[Any]:
    """The kinds of `LAYERS` layers, different ones if there are several."""
    kinds = sorted(set(map(str, layers)), key=lambda kind: list(map(str, layers)).index(kind))
    picked = [next(layer for layer in layers if str(layer) == kind) for kind in kinds[-LAYERS:]]
    return (picked * LAYERS)[:LAYERS]


@torch.no_grad()
def peaked(model: Any, seed: int, logits: float = 4.0) -> Any:
    """Random matrices, scaled to keep magnitudes; vectors (norms, biases) as the class initializes them."""
    rng = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    for name, parameter in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".")[0])
        if head is not None and parameter is getattr(head, "weight", None):
            parameter.normal_(0, logits / sqrt(parameter.shape[1]), generator=rng)
            parameter[EOS] *= 1.5
        elif isinstance(layer, torch.nn.Embedding):
            parameter.normal_(0, 1, generator=rng)
        elif isinstance(layer, torch.nn.Linear) and parameter.dim() == 2:
            parameter.normal_(0, 1 / sqrt(parameter.shape[1]), generator=rng)
    return model


def inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two inputs as the class takes them: token ids, audio features, or images."""
    rng = torch.Generator().manual_seed(seed)
    main, config = model.main_input_name, model.config
    if not config.is_encoder_decoder or main == "input_ids":
        ids = torch.randint(4, VOCABULARY - 12, (2, 9), generator=rng)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        needed = inspect.signature(type(model).generate).parameters
        if "pixel_values" in needed and needed["pixel_values"].default is inspect.Parameter.empty:
            given["pixel_values"] = torch.randn(2, 3, 16, 16, generator=rng)
        return given
    if main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 8)
        bins = getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 8))
        return {main: torch.randn(2, *((bins, frames) if "Whisper" in type(model).__name__ else (frames, bins)), generator=rng)}
    if main in ("input_values", "inputs"):
        return {main: torch.randn(2, 1600, generator=rng)}
    if main == "flattened_patches":  # each after its row and column
        patches = torch.randn(2, 6, config.vision_config.patch_embed_hidden_size, generator=rng)
        return {main: torch.cat([torch.tensor([(1.0, 1 + i) for i in range(6)]).expand(2, -1, -1), patches], -1)}
    if main == "pixel_values":
        vision = getattr(config, "vision_config", getattr(config, "encoder", config))
        size = getattr(vision, "image_size", 16)
        return {main: torch.randn(2, 3, *(size if isinstance(size, (list, tuple)) else (size, size)), generator=rng)}
    raise ValueError(f"inputs of {main} are not known here")


def takes_padding(model: Any) -> bool:
    """Whether prompts can be padded on the left."""
    return not model.config.is_encoder_decoder and "attention_mask" in inspect.signature(model.forward).parameters
