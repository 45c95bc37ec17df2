"""`generate`'s time over that of the drop-in, by model and setting: CPU seconds of one thread; on a GPU, seconds.

python tests/generate/speed.py                                   # small models, where Python takes most of the time
python tests/generate/speed.py --write docs/from-transformers.md # and its table
python tests/generate/speed.py GPT2LMHeadModel
python tests/generate/speed.py --windows --write docs/from-transformers.md  # models that read a part of their context
python tests/generate/speed.py --settings [--device cuda] [--write docs/from-transformers.md]  # every setting, three models
"""

from __future__ import annotations

import argparse
import datetime
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import transformers

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import bestfirst
from bestfirst.models.folder import embedded_folder
from bestfirst.models.transformers import load_transformers
from engine.builders import LLAMA, T5, peaked
from generate.compatibility import replace_table
from generate.settings import PROCESSORS
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
WINDOWS = {"a window beyond prompt and output": 4096, "a window shorter than the prompt": 64}
Setting = dict[str, Any]
SETTINGS: dict[str, Setting] = {
    "defaults": {},
    "`early_stopping=True`": {"early_stopping": True},
    '`"never"`, penalty 0': {"early_stopping": "never", "length_penalty": 0.0},
    "`no_repeat_ngram_size=3`": {"no_repeat_ngram_size": 3},
    "a criterion": {"stopping_criteria": [lambda ids, scores, **_: torch.zeros(len(ids), dtype=torch.bool)]},
}
SEARCHES: dict[str, Setting] = {
    "defaults": {},
    "`num_beams=1`": {"num_beams": 1},
    "`num_beams=10`": {"num_beams": 10},
    "`early_stopping=True`, penalty 2": {"early_stopping": True, "length_penalty": 2.0},
    '`"never"`, penalty 0': {"early_stopping": "never", "length_penalty": 0.0},
    '`"never"`, penalty 1': {"early_stopping": "never", "length_penalty": 1.0},
    "penalty -0.5": {"length_penalty": -0.5},
    "`num_return_sequences=4`": {"num_return_sequences": 4},
    "`output_scores`": {"output_scores": True, "return_dict_in_generate": True},
}
PROMPT, NEW, K, INPUTS = 200, 50, 4, 2
TURNS = 9
Tensors = dict[str, torch.Tensor]


def ratio(model: Any, batch: Tensors, setting: Setting, turns: int) -> tuple[float, str]:
    """How many times as long `generate` takes as the drop-in, the median of turns; and what ran the drop-in.

    They alternate in running first: other load on the machine changes from second to second; both of a turn meet about the same.
    """
    on_gpu, stats = model.device.type == "cuda", bestfirst.Stats()
    clock = perf_counter if on_gpu else process_time
    theirs = partial(model.generate, **batch, **{"num_beams": K, "max_new_tokens": NEW, **setting})
    ours = partial(theirs, custom_generate=bestfirst.generate, stats=stats)
    for _ in range(2):  # warm up: some work is done once per model
        ours()
        theirs()
    found = []
    for turn in range(turns):
        took: dict[Callable[[], Any], float] = {}
        for each in (theirs, ours) if turn % 2 else (ours, theirs):
            began = clock()
            each()
            if on_gpu:
                torch.cuda.synchronize()
            took[each] = clock() - began
        found.append(took[theirs] / took[ours])
    return median(found), stats.engine


def small(name: str, window: int = 512) -> tuple[Any, Tensors]:
    """A small model of this class and long prompts."""
    sizes = dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 512)
    model = tiny(name, **sizes, **dict.fromkeys(("sliding_window", "attention_chunk_size"), window))
    ids = torch.randint(4, 60, (INPUTS, PROMPT), generator=torch.Generator().manual_seed(0))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def moderate() -> dict[str, tuple[Any, Tensors]]:
    """The embedded model with 32 sentences; a Llama and a T5 of 4 layers and random weights with 8 prompts of 9 to 16 tokens."""
    embedded = load_transformers(embedded_folder())
    lines = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:32]
    wide = {"vocab_size": 8000, "tie_word_embeddings": False}
    layers = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "max_position_embeddings": 512}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **wide, **layers}))
    layers = {"d_model": 256, "d_kv": 64, "d_ff": 768, "num_layers": 4}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**{**T5, **wide, **layers}))
    ids = torch.randint(4, 8000, (8, 16), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(16) >= torch.arange(8)[:, None]).long()
    prompts = {"input_ids": ids * mask, "attention_mask": mask}
    sources = dict(embedded.tokenizer(lines, return_tensors="pt", padding=True))
    return {
        "the embedded model": (embedded.model, sources),
        "Llama": (peaked(llama, 0, 1.5).eval(), prompts),
        "T5": (peaked(t5, 0, 1.5).eval(), prompts),
    }


def by_class(classes: list[str], columns: dict[str, tuple[int, Setting]], turns: int) -> list[str]:
    """A line for each class, with a column for each window and setting."""
    lines = [f"| class | {' | '.join(columns)} |", f"| --- |{' --: |' * len(columns)}"]
    for name in classes:
        lines.append(_line(f"`{name}`", [ratio(*small(name, window), setting, turns) for window, setting in columns.values()]))
    return lines


def by_setting(settings: list[str], device: str, turns: int) -> list[str]:
    """A line for each setting, with a column for each model."""
    models = {
        name: (model.to(device), {key: tensor.to(device) for key, tensor in batch.items()})
        for name, (model, batch) in moderate().items()
    }
    lines = [f"| setting | {' | '.join(models)} |", f"| --- |{' --: |' * len(models)}"]
    for title in settings:
        if title != "none":
            cells = [ratio(model, batch, _setting(title, model), turns) for model, batch in models.values()]
            lines.append(_line(title if title in SEARCHES or " " in title else f"`{title}`", cells))
    return lines


def _setting(title: str, model: Any) -> Setting:
    """A setting of the tests, with the model's own EOS where it names one."""
    eos = model.generation_config.eos_token_id
    if title == "prefix_allowed_tokens_fn":
        allowed = [eos, *range(10, 200)]
        return {title: lambda i, ids: allowed}
    own = {"eos_token_id": [eos, 7, 12], "forced_eos_token_id": eos}
    setting = SEARCHES[title] if title in SEARCHES else PROCESSORS[title]()
    return {name: own[name] if name in own and value else value for name, value in setting.items()}


def _line(title: str, cells: list[tuple[float, str]]) -> str:
    """A line of a table, printed as it is made."""
    texts = [f"{value:.2f}" + (", own loop" if engine == "generate" else "") for value, engine in cells]
    print(line := f"| {title} | {' | '.join(texts)} |", flush=True)
    return line


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of classes, or of settings; all of them by default")
    parser.add_argument("--windows", action="store_true", help="models that read a window or a chunk of their context")
    parser.add_argument("--settings", action="store_true", help="every setting, with three models")
    parser.add_argument("--device", default="cpu", help="with --settings")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--write", type=Path, help="the page that has the table")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.settings:
        settings = asked.names or [*SEARCHES, *PROCESSORS]
        maker, lines = f"speed.py --settings --device {asked.device}", by_setting(settings, asked.device, asked.turns)
    elif asked.windows:
        columns: dict[str, tuple[int, Setting]] = {title: (window, {}) for title, window in WINDOWS.items()}
        maker, lines = "speed.py --windows", by_class(asked.names or WINDOWED, columns, asked.turns)
    else:
        columns = {title: (512, setting) for title, setting in SETTINGS.items()}
        maker, lines = "speed.py", by_class(asked.names or CLASSES, columns, asked.turns)
    if asked.write:
        today = f"({datetime.datetime.now(datetime.UTC).date()}, the median of {asked.turns} turns)"
        replace_table(asked.write, maker, "\n".join([today, "", *lines]))


if __name__ == "__main__":
    main()
