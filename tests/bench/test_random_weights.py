"""Timing of language models and of architectures with random weights."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from bestfirst_bench.peers import BestFirstPeer, HuggingFacePeer
from bestfirst_bench.random_weights import prompts, random_model
from bestfirst_bench.speed import compare_generate, speed

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2,
}  # fmt: skip
LINES = ["[5, 6, 7]", "Hello", '{"text": "abc"}', '{"tokens": [8, 9]}', "[no array"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("tiny") / "config.json"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")
    return random_model(file)


def test_prompts_are_token_ids_or_text(model):
    found = prompts(LINES, model)
    assert found[:4] == [[5, 6, 7], list(b"Hello"), list(b"abc"), [8, 9]]
    assert found[4] == list(b"[no array")
    with pytest.raises(ValueError, match="line 2 has no prompt"):
        prompts(["[5]", '{"id": 3}'], model)


def test_both_benchmarks_time_a_language_model(model):
    inputs = prompts(LINES, model)
    rows = list(speed(model, "", inputs, [2], repeat=1, max_length=4, peers=[BestFirstPeer, HuggingFacePeer]))
    assert [row.agreement.same for row in rows] == [5, 5]
    (row,) = compare_generate(model, inputs, [2], {"defaults": {}}, repeat=1, max_new_tokens=4)
    assert row.agreement.same == 5
