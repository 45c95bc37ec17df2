"""Hundreds of items for each input: wide beams under a trie, the whole beam returned, beside `generate` with a callback.

    python tests/device/wide_beams.py [--beam 100,1000,5000] [--inputs 256,256,32] [--peer 16,1,0] [--dtype bfloat16,float32]

Items are a million sequences of four random tokens out of 32,000; the model is a Llama of 135 million random weights: only times
matter. `--peer`: inputs for `generate`, a number for each beam; 0 leaves it out. Both run once before they are timed. A lower
bound is printed as well: the matmuls of all rows at the rate that one large matmul of this dtype reaches here.
"""

import argparse
from time import perf_counter

import numpy as np
import torch
import transformers

import bestfirst

parser = argparse.ArgumentParser()
parser.add_argument("--beam", default="100,1000,5000")
parser.add_argument("--inputs", default="256,256,32")
parser.add_argument("--peer", default="16,1,0")
parser.add_argument("--dtype", default="bfloat16,float32")
parser.add_argument("--items", type=int, default=1_000_000)
parser.add_argument("--layers", type=int, default=30)
parser.add_argument("--vocabulary", type=int, default=32_000)
parser.add_argument("--profile", action="store_true", help="the kernels that take longest")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=args.vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=args.layers, num_attention_heads=9,
    num_key_value_heads=3, bos_token_id=0, eos_token_id=0, pad_token_id=0, tie_word_embeddings=True, initializer_range=0.06,
)  # fmt: skip
network = transformers.LlamaForCausalLM(config).to(device).eval()
rng = np.random.default_rng(0)
begun = perf_counter()
trie = bestfirst.Trie(rng.integers(1, args.vocabulary, (args.items, 4)))
print(f"{trie}, built in {perf_counter() - begun:.1f} s", flush=True)
beams, inputs, peers = ([*map(int, given.split(","))] for given in (args.beam, args.inputs, args.peer))
prompts = rng.integers(1, args.vocabulary, (max(inputs), 16)).tolist()
allowed_by_prefix: dict[tuple[int, ...], list[int]] = {}


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


def rate():
    """The rate of one large matmul, in operations per second."""
    a, b = (torch.randn(8192, 2048, device=device, dtype=network.dtype) for _ in range(2))
    for _ in range(2):
        wait()
        start = perf_counter()
        for _ in range(4):
            a @ b.T
        wait()
    return 4 * 2 * 8192 * 8192 * 2048 / (perf_counter() - start)


def ours(beam, many):
    """Seconds, results and stats of `decode`."""
    stats = bestfirst.Stats()
    wait()
    start = perf_counter()
    results = bestfirst.decode(model, prompts[:many], beam=beam, nbest=beam, max_length=5, allowed=trie, stats=stats)
    return perf_counter() - start, results, stats


def allowed_next(_, ids):
    """The tokens allowed next, looked up once for each prefix."""
    prefix = tuple(ids[16:].tolist())
    if prefix not in allowed_by_prefix:
        node = 0
        for token in prefix:
            node = trie.child(node, token) if token and node is not None else None
        allowed_by_prefix[prefix] = [0] if node is None else trie.allowed([node], [0])[0].tolist()
    return allowed_by_prefix[prefix]


def theirs(beam, many):
    """Seconds, and the items that `generate` finds."""
    ids = torch.tensor(prompts[:many], device=device)
    settings = {"num_beams": beam, "num_return_sequences": beam, "max_new_tokens": 5, "early_stopping": "never"}
    wait()
    start = perf_counter()
    found = network.generate(
        ids, attention_mask=torch.ones_like(ids), **settings, length_penalty=0.0, prefix_allowed_tokens_fn=allowed_next
    )
    return perf_counter() - start, found[:, 16:].view(many, beam, -1).tolist()


def compare(beam, many, seconds, results, peer):
    """Prints the time of `generate`, and how many of its items are the same."""
    try:
        took, found = theirs(beam, peer)
    except torch.OutOfMemoryError:
        print(f"  generate runs out of memory with {peer} inputs", flush=True)
        return
    mine = [[answer.tokens for answer in result.hypotheses] for result in results[:peer]]
    first = sum(a[0] == tuple(b[0]) for a, b in zip(mine, found, strict=True))
    both = sum(len({*a} & {*map(tuple, b)}) for a, b in zip(mine, found, strict=True))
    print(
        f"  generate: {took:.1f} s for {peer} inputs, {took / peer * many:.0f} s for {many}, {took / peer * many / seconds:.1f} "
        f"times ours; first items equal {first} of {peer}, all items {both} of {peer * beam}",
        flush=True,
    )


def profiled(beam, many):
    with torch.profiler.profile() as profile:
        ours(beam, many)
    by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=by, row_limit=16, max_name_column_width=60), flush=True)


for dtype in args.dtype.split(","):
    network = network.to(getattr(torch, dtype))
    model = bestfirst.wrap(network)
    each, fastest = 2 * sum(p.numel() for p in network.parameters()), rate()
    print(f"{dtype}: a large product reaches {fastest / 1e12:.0f} TFLOP/s", flush=True)
    if any(peers):
        theirs(2, 1)
    for beam, many, peer in zip(beams, inputs, peers, strict=True):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        first, *_ = ours(beam, min(many, 64))
        seconds, results, stats = ours(beam, many)
        memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
        print(
            f"{dtype}, k = {beam}, {many} inputs: {seconds:.2f} s (the first {min(many, 64)}, compiling too, {first:.1f} s; "
            f"products alone {stats.rows * each / fastest:.2f} s); {stats.calls} calls, {stats.rows} rows, {stats.steps} steps, "
            f"{stats.in_flight} in flight, by the {stats.engine}{memory}; {sum(len(r.hypotheses) for r in results)} items",
            flush=True,
        )
        if args.profile:
            profiled(beam, min(many, 64))
        if peer:
            compare(beam, many, seconds, results, peer)
