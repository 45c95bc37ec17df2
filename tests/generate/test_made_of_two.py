"""Models composed of an encoder and a decoder of other classes (TrOCR, Donut), run by the engine if the decoder can be."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import bestfirst
from bestfirst.models.torch_modules import every_module
from generate.tiny import made_of, tiny


@pytest.mark.parametrize(
    ("encoder", "decoder", "engine"),
    [
        (hf.ViTConfig, hf.TrOCRConfig, "host"),
        (hf.ViTConfig, hf.MBartConfig, "host"),
        (hf.ViTConfig, hf.GPT2Config, "host"),
        (hf.BertConfig, hf.BertConfig, "host"),
        (hf.RobertaConfig, hf.RobertaConfig, "host"),
        (hf.Wav2Vec2Config, hf.BertConfig, "host"),
    ],
)
def test_composed_models_equal_generate(encoder, decoder, engine):
    model, rng, stats = made_of(encoder, decoder), torch.Generator().manual_seed(0), bestfirst.Stats()
    if encoder is hf.ViTConfig:
        batch = {"pixel_values": torch.randn(2, 3, 16, 16, generator=rng)}
    elif encoder is hf.Wav2Vec2Config:
        batch = {"input_values": torch.randn(2, 400, generator=rng), "attention_mask": torch.ones(2, 400, dtype=torch.long)}
        batch["attention_mask"][1, 250:] = 0
    else:
        mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
        batch = {"input_ids": torch.randint(4, 60, (2, 6), generator=rng), "attention_mask": mask}
    asked = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8}
    theirs = model.generate(**batch, **asked)
    assert torch.equal(model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats), theirs)
    assert stats.engine == engine
    assert every_module(model).untouched  # a GPU runs such models by their own modules; parts of Wav2Vec2 are `torch.nn.utils`'


def test_image_tokens_in_an_encoder_equal_generate():
    """Florence-2: its decoder is a model with an encoder of its own, which counts positions differently."""
    model, rng, stats = tiny("Florence2ForConditionalGeneration"), torch.Generator().manual_seed(0), bestfirst.Stats()
    image = torch.randn(2, 3, 16, 16, generator=rng)
    places = model.get_image_features(image).pooler_output.shape[1]
    ids = torch.randint(4, 50, (2, places + 6), generator=rng)
    ids[:, :places] = model.config.image_token_id
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "pixel_values": image}
    asked = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 8}
    theirs = model.generate(**batch, **asked)
    assert torch.equal(model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats), theirs)
    assert stats.engine == "host"
