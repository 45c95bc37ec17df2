"""Hundreds of items for each input: wide beams, all of a beam returned, under a trie, beside `generate` with a callback.

    python tests/device/wide_beams.py [--beam 100,1000] [--inputs 256] [--items 1000000] [--peer 256,16] [--dtype float32]

Items are four random tokens, the model is a Llama of 135 million random weights: what is measured is time. `--peer`: inputs for
`generate`, a number for each beam; 0 leaves it out.
"""

import argparse
from time import perf_counter

import numpy as np
import torch
import transformers

import bestfirst

parser = argparse.ArgumentParser()
parser.add_argument("--beam", default="100,1000")
parser.add_argument("--inputs", type=int, default=256)
parser.add_argument("--items", type=int, default=1_000_000)
parser.add_argument("--peer", default="256,16")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--layers", type=int, default=30)
parser.add_argument("--vocabulary", type=int, default=32_000)
asked = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=asked.vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=asked.layers, num_attention_heads=9,
    num_key_value_heads=3, bos_token_id=0, eos_token_id=0, pad_token_id=0, tie_word_embeddings=True, initializer_range=0.06,
)  # fmt: skip
network = transformers.LlamaForCausalLM(config).to(device, getattr(torch, asked.dtype)).eval()
rng = np.random.default_rng(0)
begun = perf_counter()
trie = bestfirst.Trie(rng.integers(1, asked.vocabulary, (asked.items, 4)))
print(f"{trie}, built in {perf_counter() - begun:.1f} s", flush=True)
prompts = rng.integers(1, asked.vocabulary, (asked.inputs, 16)).tolist()
model = bestfirst.wrap(network)
remembered: dict[tuple[int, ...], list[int]] = {}


def follow(_, ids):
    """What may follow, looked up once for each prefix."""
    prefix = tuple(ids[16:].tolist())
    if prefix not in remembered:
        node = 0
        for token in prefix:
            node = trie.child(node, token) if token and node is not None else None
        remembered[prefix] = [0] if node is None else trie.allowed([node], [0])[0].tolist()
    return remembered[prefix]


for beam, peers in zip(map(int, asked.beam.split(",")), map(int, asked.peer.split(",")), strict=True):
    for turn in ("first", "again"):
        stats = bestfirst.Stats()
        begun = perf_counter()
        results = bestfirst.decode(model, prompts, beam=beam, nbest=beam, max_length=5, allowed=trie, stats=stats)
        ours = perf_counter() - begun
        memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
        print(
            f"k = {beam}, {turn}: {ours:.2f} s, {stats.calls} calls, {stats.rows} rows, {stats.steps} steps, {stats.in_flight} "
            f"in flight, by the {stats.engine}{memory}; {sum(len(result.hypotheses) for result in results)} items",
            flush=True,
        )
    if not peers:
        continue
    ids = torch.tensor(prompts[:peers], device=device)
    settings = {"num_beams": beam, "num_return_sequences": beam, "max_new_tokens": 5, "early_stopping": "never"}
    try:
        begun = perf_counter()
        found = network.generate(
            ids, attention_mask=torch.ones_like(ids), **settings, length_penalty=0.0, prefix_allowed_tokens_fn=follow
        )
        found = found[:, 16:].view(peers, beam, -1).tolist()
    except torch.OutOfMemoryError:
        print(f"k = {beam}: generate runs out of memory with {peers} inputs")
        continue
    theirs = (perf_counter() - begun) / peers * asked.inputs
    mine = [[list(answer.tokens) for answer in result.hypotheses] for result in results[:peers]]
    first = sum(a[0] == b[0] for a, b in zip(mine, found, strict=True))
    both = sum(len({*map(tuple, a)} & {*map(tuple, b)}) for a, b in zip(mine, found, strict=True))
    scaled = "" if peers == asked.inputs else f" (measured on {peers}, times {asked.inputs / peers:g})"
    print(
        f"k = {beam}: generate {theirs:.1f} s{scaled}, {theirs / ours:.1f} times ours; first items equal {first} of {peers}, "
        f"all items {both} of {peers * beam}",
        flush=True,
    )
