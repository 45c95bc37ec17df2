"""CPU time of `generate` over that of the drop-in, by model and setting: small models, where Python takes most of the time.

python tests/generate/speed.py                                   # all, some minutes
python tests/generate/speed.py --write docs/from-transformers.md # and its table
python tests/generate/speed.py GPT2LMHeadModel
python tests/generate/speed.py --windows --write docs/from-transformers.md  # models that read a part of their context
"""

from __future__ import annotations

import argparse
import datetime
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
import transformers

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import bestfirst
from generate.compatibility import replace_table
from generate.tiny import tiny

CLASSES = [
    "MarianMTModel",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "MistralForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "GptOssForCausalLM",
    "BloomForCausalLM",
    "MambaForCausalLM",
]
WINDOWED = [
    "Gemma2ForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Gemma3ForCausalLM",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
]
WINDOWS = {"beyond prompt and output": 4096, "shorter than the prompt": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "`early_stopping=True`": {"early_stopping": True},
    '`"never"`, penalty 0': {"early_stopping": "never", "length_penalty": 0.0},
    "`no_repeat_ngram_size=3`": {"no_repeat_ngram_size": 3},
    "a criterion": {"stopping_criteria": [lambda ids, scores, **_: torch.zeros(len(ids), dtype=torch.bool)]},
}
PROMPT, NEW, K, INPUTS = 200, 50, 4, 2
TURNS = 9


def times(run: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The CPU time of the first over that of the second: the median of turns; they alternate in running first.

    Other load on the machine changes from second to second; both runs of a turn meet about the same.
    """
    found = []
    for turn in range(TURNS):
        took = {}
        for each in (run, other) if turn % 2 else (other, run):
            began = process_time()
            each()
            took[each] = process_time() - began
        found.append(took[run] / took[other])
    return median(found)


def ratio(name: str, setting: dict[str, Any], window: int = 512) -> tuple[float, str]:
    """`generate`'s time over the drop-in's, and what ran it."""
    sizes = dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 512)
    model = tiny(name, **sizes, **dict.fromkeys(("sliding_window", "attention_chunk_size"), window))
    ids = torch.randint(4, 60, (INPUTS, PROMPT), generator=torch.Generator().manual_seed(0))
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "num_beams": K, "max_new_tokens": NEW, **setting}
    stats = bestfirst.Stats()
    own = {**asked, "custom_generate": bestfirst.generate, "stats": stats}
    for _ in range(2):  # warm up: some work is done once per model
        model.generate(**own)
        model.generate(**asked)
    return times(lambda: model.generate(**asked), lambda: model.generate(**own)), stats.engine


def main() -> None:
    """Measure all models and settings, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", help="all of them by default")
    parser.add_argument("--windows", action="store_true", help="models that read a window or a chunk of their context")
    parser.add_argument("--write", type=Path, help="the page that has the table")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    columns: dict[str, dict[str, Any]] = {name: {"setting": setting} for name, setting in SETTINGS.items()}
    if asked.windows:
        columns = {f"a window {name}": {"setting": {}, "window": size} for name, size in WINDOWS.items()}
    lines = [f"| class | {' | '.join(columns)} |", f"| --- |{' --: |' * len(columns)}"]
    for name in asked.classes or (WINDOWED if asked.windows else CLASSES):
        found = [ratio(name, **column) for column in columns.values()]
        cells = [f"{value:.2f}" + ("" if engine == "host" else ", own loop") for value, engine in found]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if asked.write:
        today = f"({datetime.datetime.now(datetime.UTC).date()}, one thread, the median of {TURNS} turns)"
        replace_table(asked.write, "speed.py --windows" if asked.windows else "speed.py", "\n".join([today, "", *lines]))


if __name__ == "__main__":
    main()
