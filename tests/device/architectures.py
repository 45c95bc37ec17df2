"""Compares `generate` with the drop-in on a GPU in fp32, for tiny models of all architectures: prompts of mixed lengths, all
three `early_stopping`. A line for each: its engine, how many outputs are equal, the score gaps of the others, its warnings.

python tests/device/architectures.py              # all, under two minutes on a GPU; on a CPU, by the host's engine
python tests/device/architectures.py Whisper T5
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import bestfirst
from bestfirst.integrations import crossover
from device.tiny import EVERYTHING, FUSED, build, inputs
from engine.builders import PAD, START

NEAR = 1e-4
STOPS: list[dict[str, Any]] = [
    {"early_stopping": False, "length_penalty": 1.0},
    {"early_stopping": True, "length_penalty": 1.0},
    {"early_stopping": "never", "length_penalty": 0.0},
]


def report(name: str, device: str, n: int, options: dict[str, Any]) -> tuple[str, bool]:
    """An architecture's line, and whether all outputs are `generate`'s or near-ties with them."""
    model = build(name).to(device)
    batch = inputs(model, n, seed=1, shortest=3)
    equal, gaps, engines = 0, [], set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for stop in STOPS:
            stats = bestfirst.Stats()
            theirs = model.generate(**batch, **options, **stop)
            mine = model.generate(**batch, **options, **stop, custom_generate=bestfirst.generate, stats=stats)
            engines.add(stats.engine if stats.engine != "generate" else stats.search)
            for i, (a, b) in enumerate(zip(theirs.tolist(), mine.tolist(), strict=True)):
                if trimmed(a) == trimmed(b):
                    equal += 1
                else:
                    worth = [score(model, batch, i, each, stop["length_penalty"]) for each in (a, b)]
                    gaps.append(abs(worth[0] - worth[1]))
    problems = {line[:160] for line in (str(each.message) for each in caught) if "falling back" in line or "waits" in line}
    good = all(gap < NEAR for gap in gaps)
    unequal = f"{'near-ties' if good else 'DIFFERENT'}, gaps {', '.join(f'{gap:.1e}' for gap in gaps)}" if gaps else ""
    return " | ".join(filter(None, (name, "; ".join(sorted(engines)), f"{equal} of {3 * n}", unequal, *sorted(problems)))), good


def trimmed(tokens: list[int]) -> list[int]:
    """Without the padding at the end, which depends on the batch."""
    while tokens and tokens[-1] == PAD:
        tokens = tokens[:-1]
    return tokens


def score(model: Any, batch: dict[str, torch.Tensor], i: int, tokens: list[int], penalty: float) -> float:
    """The score of an output by the model in double precision."""
    double = copy.deepcopy(model).double().eval()
    mine = {name: each[i : i + 1] for name, each in batch.items()}
    tokens = trimmed(tokens)
    if model.config.is_encoder_decoder:
        tokens = tokens if tokens[0] == START else [START, *tokens]  # Whisper removes it
        whole, first = torch.tensor([tokens], device=model.device), 1
        mine = {name: each.double() if each.is_floating_point() else each for name, each in mine.items()}
        more = {"decoder_input_ids": whole[:, :-1]}
    else:
        prompt = batch["input_ids"].shape[1]
        first = int(mine["attention_mask"].sum())
        whole = torch.tensor([tokens[prompt - first :]], device=model.device)
        mine, more = {}, {"input_ids": whole[:, :-1]}
    with torch.inference_mode():
        logprobs = double(**mine, **more).logits[0, first - 1 :].log_softmax(-1)
    total = float(logprobs.gather(1, whole[0, first:, None]).sum())
    return total / (whole.shape[1] - first) ** penalty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="all of them by default")
    parser.add_argument("--inputs", type=int, default=6)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=12)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    crossover.measure = lambda *_: 2.0  # on a CPU, no time measurement decides between the engine and `generate`
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    begun, verdicts = perf_counter(), []
    for name in args.names or [*EVERYTHING, *FUSED]:
        options = {"num_beams": args.beams, "max_new_tokens": args.max_new_tokens, "do_sample": False}
        try:
            line, good = report(name, device, args.inputs, options)
        except Exception as error:
            line, good = f"{name} | FAILED: {type(error).__name__}: {str(error).splitlines()[0][:160]}", False
        verdicts.append(good)
        print(f"{line} | {perf_counter() - begun:.0f} s", flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} architectures agree with generate")
    sys.exit(not all(verdicts))


if __name__ == "__main__":
    main()
