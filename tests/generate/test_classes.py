"""Classes of transformers that can generate, through the drop-in: a sample here, all of them at full scale."""

from __future__ import annotations

import pytest
import transformers

from generate.compatibility import verdict
from generate.tiny import generation_classes
from scale import FULL

SAMPLE = [
    "AfmoeForCausalLM",
    "ApertusForCausalLM",
    "AyaVisionForConditionalGeneration",
    "BartForCausalLM",
    "BertGenerationDecoder",
    "BigBirdPegasusForConditionalGeneration",
    "BlenderbotForConditionalGeneration",
    "BlipForConditionalGeneration",
    "BloomForCausalLM",
    "CodeGenForCausalLM",
    "CohereForCausalLM",
    "CTRLLMHeadModel",
    "DeepseekV3ForCausalLM",
    "EncoderDecoderModel",
    "FSMTForConditionalGeneration",
    "Florence2ForConditionalGeneration",
    "FalconForCausalLM",
    "FalconMambaForCausalLM",
    "GPTBigCodeForCausalLM",
    "GPTJForCausalLM",
    "GPTNeoForCausalLM",
    "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM",
    "GptOssForCausalLM",
    "LEDForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "MambaForCausalLM",
    "MixtralForCausalLM",
    "MoonshineForConditionalGeneration",
    "MptForCausalLM",
    "NllbMoeForConditionalGeneration",
    "OPTForCausalLM",
    "OpenAIGPTLMHeadModel",
    "PaliGemmaForConditionalGeneration",
    "PegasusXForConditionalGeneration",
    "PersimmonForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "Pix2StructForConditionalGeneration",
    "PLBartForConditionalGeneration",
    "ProphetNetForConditionalGeneration",
    "Qwen2MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "RobertaForCausalLM",
    "StableLmForCausalLM",
    "SwitchTransformersForConditionalGeneration",
    "UMT5ForConditionalGeneration",
    "VisionEncoderDecoderModel",
    "WhisperForConditionalGeneration",
    "XGLMForCausalLM",
]


@pytest.mark.parametrize("name", generation_classes() if FULL else SAMPLE)
def test_the_drop_in_equals_generate(name):
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    found = verdict(name)
    if FULL and found.outcome in ("not built", "generate fails"):
        pytest.skip(found.why)
    assert found.outcome in ("same", "near-tie"), found
