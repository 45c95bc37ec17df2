"""A small chat model built from a config: byte-level BPE with BOS in front, a chat template, peaked random weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

TEXT = (
    "the cat sat on the mat. the dog ran to the park and back again. once upon a time there was a king who had three sons. "
    "please tell me a story about the sea. what is the weather like today? it is warm and sunny. thank you very much, goodbye!"
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def tokenizer() -> Any:
    """EOS 1, BOS 2 (as in `engine.builders`), and a token for each role."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<s>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    )


@cache
def language_model(seed: int = 0) -> Any:
    """A Llama of two layers that writes texts of about ten tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from engine.builders import peaked

    size = len(tokenizer())
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=1024, bos_token_id=2, eos_token_id=1, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return peaked(LlamaForCausalLM(config).eval(), seed, eos=1.6)


def save(folder: Path, seed: int = 0) -> Path:
    """Write a folder that `bestfirst.load` reads."""
    language_model(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
