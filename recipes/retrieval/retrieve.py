"""Generative retrieval: the model writes the item for a query, restricted to a trie of all items.

    python recipes/retrieval/retrieve.py QUERIES ITEMS [--beam 100] [--limit 50] [--peer]

Line n of ITEMS is the answer to line n of QUERIES. `--peer`: also time `generate` with a callback that follows the trie.
"""

import argparse
from pathlib import Path
from time import perf_counter

import bestfirst

parser = argparse.ArgumentParser()
parser.add_argument("queries", type=Path)
parser.add_argument("items", type=Path)
parser.add_argument("--model")
parser.add_argument("--beam", type=int, default=100)
parser.add_argument("--limit", type=int)
parser.add_argument("--peer", action="store_true")
asked = parser.parse_args()

model = bestfirst.load(asked.model)
queries, items = (path.read_text(encoding="utf-8").splitlines() for path in (asked.queries, asked.items))
queries = queries[: asked.limit]
begun = perf_counter()
trie = bestfirst.Trie.of_texts(model, items)
print(f"{trie}, built in {perf_counter() - begun:.2f} s")

stats = bestfirst.Stats()
results = bestfirst.decode(model, queries, beam=asked.beam, nbest=asked.beam, allowed=trie, stats=stats)
found = [[items[answer.item] for answer in result.hypotheses] for result in results]
for n in (1, 10, 100):
    if n <= asked.beam:
        hits = sum(wanted in best[:n] for wanted, best in zip(items, found, strict=False))
        print(f"hits at {n}: {100 * hits / len(queries):.1f} %")
exact = all(result.exact for result in results)
print(f"ours: {stats.seconds:.2f} s, {stats.calls / len(queries):.1f} calls a query, exact: {exact}")

if asked.peer:
    wrapped = bestfirst.load(asked.model, device="cpu") if not hasattr(model, "model") else model
    inputs = wrapped.tokenizer(queries, return_tensors="pt", padding=True)

    def follow(_, ids):
        node = 0
        for token in ids[1:].tolist():
            if token in wrapped.eos or token == wrapped.tokenizer.pad_token_id:
                return sorted(wrapped.eos)
            node = trie.child(node, token)
        return trie.allowed([node], wrapped.eos)[0].tolist()

    begun = perf_counter()
    settings = {"num_beams": asked.beam, "length_penalty": 0.0, "early_stopping": "never"}
    wrapped.model.generate(**inputs, **settings, prefix_allowed_tokens_fn=follow)
    print(f"generate with a callback: {perf_counter() - begun:.2f} s")
