"""Streamers, which `generate` does not pass to a callable, get the output and always `end()`."""

from __future__ import annotations

import pytest
import torch

import bestfirst
from bestfirst.integrations import hub_folder

BATCH = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
FOLDER = {"custom_generate": hub_folder(), "trust_remote_code": True}


class Listener:
    """Records what a streamer gets."""

    def __init__(self):
        self.got, self.ended = [], 0

    def put(self, tokens):
        self.got.append(tokens.clone())

    def end(self):
        self.ended += 1

    def tokens(self):
        return [token for piece in self.got for token in piece.flatten().tolist()]


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 1), (3, 2)])
def test_a_streamer_gets_the_best_output_and_its_end(k, n, small):
    """With the folder, the prompt once; with a callable, `generate` streams it for each row of the beam before we run."""
    asked = {"num_beams": k, "num_return_sequences": n, "max_new_tokens": 5}
    output = small("llama").generate(**BATCH, **asked)
    for route, prompts in (({"custom_generate": bestfirst.generate}, k), (FOLDER, 1)):
        listener = Listener()
        assert torch.equal(small("llama").generate(**BATCH, **asked, streamer=listener, **route), output)
        assert listener.ended == 1
        assert listener.tokens() == BATCH["input_ids"][0].tolist() * prompts + output[0, 4:].tolist()
        assert all(piece.dim() == 1 for piece in listener.got[1:])


def test_greedy_search_streams_token_by_token(small):
    """`generate`'s own loop streams each as it is found."""
    stats = bestfirst.Stats()
    small("llama").generate(
        **BATCH, num_beams=1, max_new_tokens=5, streamer=Listener(), custom_generate=bestfirst.generate, stats=stats
    )
    assert stats.engine == "generate"
    assert "as soon as it is known" in stats.search


def test_the_own_loop_streams_too(small):
    listener = Listener()
    asked = {"num_beams": 2, "max_new_tokens": 5, "output_logits": True, "return_dict_in_generate": True}
    output = small("llama").generate(**BATCH, **asked, streamer=listener, custom_generate=bestfirst.generate)
    assert listener.ended == 1
    assert listener.tokens()[8:] == output.sequences[0, 4:].tolist()
