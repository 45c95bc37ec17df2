"""python -m bestfirst_bench.under_trie SOURCES ITEMS [LINES]: time decoding under a trie, compared with decoding without one.

Beams of 10, one answer. Times are CPU seconds, the best of several turns, alternating. LINES: also decode this many of the
sources once with `generate` and a `prefix_allowed_tokens_fn` over the same trie.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import bestfirst

from .own_models import least_seconds

BEAM = 10


def by_callback(model: Any, trie: bestfirst.Trie, lines: list[str]) -> tuple[float, list[list[int]]]:
    """CPU seconds of `generate` for these lines, and its outputs."""
    inputs = model.tokenizer(lines, return_tensors="pt", padding=True)
    ends = sorted(model.eos)

    def follow(_: int, ids: Any) -> list[int]:
        node = 0
        for token in ids[1:].tolist():
            if token in ends or token == model.tokenizer.pad_token_id:
                return ends
            node = trie.child(node, token)
        return trie.allowed([node], ends)[0].tolist()

    settings: Any = {"num_beams": BEAM, "length_penalty": 0.0, "early_stopping": "never", "prefix_allowed_tokens_fn": follow}
    begun = process_time()
    outputs = model.model.generate(**inputs, **settings)
    return process_time() - begun, outputs[:, 1:].tolist()


def main(sources: str, items: str, peer: str | None = None, turns: int = 5) -> None:
    model: Any = bestfirst.load()
    lines, allowed = (Path(path).read_text(encoding="utf-8").splitlines() for path in (sources, items))
    begun = process_time()
    trie = bestfirst.Trie.of_texts(model, allowed)
    print(f"{trie}, built in {process_time() - begun:.2f} s")
    both: dict[str, Any] = {"without": {}, "under the trie": {"allowed": trie}}
    runs = {name: partial(bestfirst.decode, model, lines, beam=BEAM, **more) for name, more in both.items()}
    seconds, rows = least_seconds(runs, turns), {}
    for name, more in both.items():
        stats = bestfirst.Stats()
        bestfirst.decode(model, lines, beam=BEAM, stats=stats, **more)
        rows[name] = stats.rows
        each = 1e6 * seconds[name] / stats.rows
        print(f"{name}: {seconds[name]:.3f} s, {stats.rows} rows, {stats.calls} calls, {each:.0f} us a row")
    time, work = (each["under the trie"] / each["without"] for each in (seconds, rows))
    print(f"under the trie over without: {time:.2f} of the time, {work:.2f} of the rows")
    if peer is not None:
        some = lines[: int(peer)]
        ours = least_seconds({"": partial(bestfirst.decode, model, some, beam=BEAM, allowed=trie)}, turns)[""]
        theirs, outputs = by_callback(model, trie, some)
        mine = [list(result.hypotheses[0].tokens) for result in bestfirst.decode(model, some, beam=BEAM, allowed=trie)]
        same = sum(output[: len(tokens)] == tokens for output, tokens in zip(outputs, mine, strict=True))
        print(f"{len(some)} lines: ours {ours:.3f} s, generate {theirs:.2f} s, {theirs / ours:.0f} times; {same} outputs alike")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
