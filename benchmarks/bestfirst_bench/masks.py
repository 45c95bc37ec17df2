"""python -m bestfirst_bench.masks TEXT [HYPOTHESES]: which library computes the token masks of a grammar fastest for a beam.

In each step, the matcher of every hypothesis is copied, advanced by a token, and its mask computed, all on one thread; CPU
seconds. The JSON schema has strings, numbers, a list and an enumeration; tokens are byte-level BPE, trained on TEXT. Compares
llguidance, xgrammar and outlines-core, as far as they are installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from time import process_time
from typing import Any

import numpy as np

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}, "kind": {"enum": ["cat", "dog", "bird"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 5}, "weight": {"type": "number"},
    },
    "required": ["name", "age", "kind", "tags", "weight"], "additionalProperties": False,
}  # fmt: skip
TEXTS = [
    json.dumps({"name": "Old Tom", "age": 12, "kind": "cat", "tags": ["grey", "lazy"], "weight": 4.5}, separators=(",", ":")),
    json.dumps({"name": "Polly of the Seven Seas", "age": 3, "kind": "bird", "tags": [], "weight": 0.3}, separators=(",", ":")),
]
END = "<end>"
Step = Callable[[list[Any], list[int], Any], list[Any]]
"""(matchers, a token for each, masks (hypotheses, words)): returns advanced copies of the matchers, and fills in their masks."""


def tokenizer_of(path: str, size: int = 32_000) -> Any:
    """A BPE tokenizer trained on this text."""
    from tokenizers import ByteLevelBPETokenizer

    built = ByteLevelBPETokenizer()
    built.train([path], vocab_size=size, special_tokens=[END], show_progress=False)
    return built


def llguidance_step(tokens: Any) -> tuple[Any, Step]:
    import llguidance

    known = llguidance.LLTokenizer(tokens.to_str(), n_vocab=tokens.get_vocab_size(), eos_token=0)
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
    executor = llguidance.LLExecutor(num_threads=1)

    def step(states: list[Any], taken: list[int], masks: Any) -> list[Any]:
        copies = [state.deep_copy() for state in states]
        for copy, token in zip(copies, taken, strict=True):
            assert copy.consume_token(token)
        executor.unsafe_compute_mask_ptr([(x, i) for i, x in enumerate(copies)], masks.ctypes.data, masks.strides[0], len(masks))
        return copies

    return llguidance.LLMatcher(known, grammar, log_level=0), step


def xgrammar_step(tokens: Any) -> tuple[Any, Step]:
    import xgrammar

    names = [tokens.id_to_token(i) for i in range(tokens.get_vocab_size())]
    info = xgrammar.TokenizerInfo(names, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[0])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(
        SCHEMA, any_whitespace=False, separators=(",", ":")
    )
    batch = xgrammar.BatchGrammarMatcher(max_threads=1)

    def step(states: list[Any], taken: list[int], masks: Any) -> list[Any]:
        copies = [state.fork() for state in states]
        assert all(batch.batch_accept_token(copies, taken))
        batch.batch_fill_next_token_bitmask(copies, masks)
        return copies

    return xgrammar.GrammarMatcher(compiled), step


def outlines_step(tokens: Any) -> tuple[Any, Step]:
    import outlines_core
    from outlines_core.json_schema import build_regex_from_schema

    letters = {letter: byte for byte, letter in enumerate(_letters())}
    spelled: dict[bytes, list[int]] = {}
    for i in range(1, tokens.get_vocab_size()):
        spelled.setdefault(bytes(letters[letter] for letter in tokens.id_to_token(i)), []).append(i)
    index = outlines_core.Index(build_regex_from_schema(json.dumps(SCHEMA), ""), outlines_core.Vocabulary(0, spelled))

    def step(states: list[Any], taken: list[int], masks: Any) -> list[Any]:
        """Works on the index, since copying a `Guide` copies its index. States are numbers; allowed tokens come as lists."""
        later = [index.get_next_state(state, token) for state, token in zip(states, taken, strict=True)]
        for row, state in zip(masks, later, strict=True):
            bits = np.zeros(32 * len(row), np.uint8)
            bits[index.get_allowed_tokens(state)] = 1
            row[:] = np.packbits(bits, bitorder="little").view(np.int32)
        return later

    return index.get_initial_state(), step


def _letters() -> list[str]:
    """The character that byte-level BPE writes for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def main(path: str, hypotheses: str = "50", turns: int = 5) -> None:
    tokens, count = tokenizer_of(path), int(hypotheses)
    words = (tokens.get_vocab_size() + 31) // 32
    texts = [tokens.encode(TEXTS[i % len(TEXTS)]).ids for i in range(count)]
    length = min(map(len, texts))
    for name, make in {"llguidance": llguidance_step, "xgrammar": xgrammar_step, "outlines-core": outlines_step}.items():
        if find_spec(name.replace("-", "_")) is None:
            print(f"{name}: not installed")
            continue
        begun = process_time()
        first, step = make(tokens)
        built, best = process_time() - begun, float("inf")
        for _ in range(turns):
            states, masks = [first] * count, np.zeros((count, words), np.int32)
            begun = process_time()
            for at in range(length):
                states = step(states, [text[at] for text in texts], masks)
            best = min(best, (process_time() - begun) / length / count)
        bits = np.unpackbits(masks.view(np.uint8), axis=1).sum(1)
        counts = f"{bits.min()} to {bits.max()} tokens allowed at last"
        print(f"{name}: made in {built:.2f} s, {1e6 * best:.1f} us for a hypothesis and step of {count}; {counts}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "50")
