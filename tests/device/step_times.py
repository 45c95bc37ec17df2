"""Profiles a step on a GPU, for model shapes with random weights: kernels by name, launches and microseconds per step,
beside `generate`.

    python tests/device/step_times.py [--shape 135m,1.2b,7.5b,gpt2,t5-base,whisper-small] [--inputs 1,8] [--beams 5,10]
        [--prompt 20,60] [--kernels 0] [--without sums] [--fixed]

`--without` disables fused modules, to see what each saves: joined (matmuls of one input), sums (fused into norms), all.
`--fixed` instead compares 64 inputs together and one by one, with and without `deterministic=True`: bits and seconds.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from functools import partial
from time import perf_counter
from typing import Any

import torch
import transformers

import bestfirst
from bestfirst.engine.device.modules import fused_modules, rotary

SHAPES: dict[str, dict[str, int]] = {
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152},
    "1.2b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
             "num_key_value_heads": 8, "vocab_size": 128256},
    "7.5b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "vocab_size": 32000},
}  # fmt: skip
T5 = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12, "vocab_size": 32128,
      "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
WHISPER = {"layers": 12, "attention_heads": 12, "ffn_dim": 3072}  # of either side
SETTINGS: dict[str, dict[str, Any]] = {"never": {"length_penalty": 0.0, "early_stopping": "never"}, "defaults": {}}


def build(shape: str, dtype: torch.dtype) -> Any:
    """A model of random weights, with the logit spread of a trained model."""
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    wide = {"d_model": 768, "vocab_size": 51865, "max_target_positions": 448}
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in WHISPER.items()}
    kinds: dict[str, Any] = {
        "gpt2": lambda: (transformers.GPT2LMHeadModel, transformers.GPT2Config(**ends)),
        "t5-base": lambda: (transformers.T5ForConditionalGeneration, transformers.T5Config(**T5)),
        "whisper-small": lambda: (transformers.WhisperForConditionalGeneration, transformers.WhisperConfig(**wide, **layers)),
    }
    more = {**ends, "max_position_embeddings": 8192, "tie_word_embeddings": True}
    llama = lambda: (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SHAPES[shape], **more))  # noqa: E731
    kind, config = kinds.get(shape, llama)()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = kind._from_config(config, dtype=dtype).eval()
    last = [module for name, module in model.get_decoder().named_children() if "norm" in name or name == "ln_f"][-1]
    example = batch(model, 2, 16, 16)
    if config.is_encoder_decoder:
        example["decoder_input_ids"] = torch.randint(3, 1000, (2, 8), device="cuda")
    with torch.inference_mode():
        last.weight.mul_(4.0 / model(**example).logits.float().std())
    return model


def batch(model: Any, n: int, shortest: int, longest: int) -> dict[str, torch.Tensor]:
    config, dice = model.config, random.Random(0)
    if config.model_type == "whisper":
        return {"input_features": torch.randn(n, config.num_mel_bins, 3000, device="cuda", dtype=model.dtype)}
    lengths = [dice.randint(shortest, longest) for _ in range(n)]
    ids, mask = torch.zeros(n, max(lengths), dtype=torch.long), torch.zeros(n, max(lengths), dtype=torch.long)
    for i, length in enumerate(lengths):
        place = slice(0, length) if config.is_encoder_decoder else slice(max(lengths) - length, None)
        ids[i, place] = torch.tensor([dice.randrange(3, config.vocab_size) for _ in range(length)])
        mask[i, place] = 1
    return {"input_ids": ids.cuda(), "attention_mask": mask.cuda()}


def timed(call: Any, turns: int) -> float:
    best = float("inf")
    for _ in range(turns):
        torch.cuda.synchronize()
        begun = perf_counter()
        call()
        torch.cuda.synchronize()
        best = min(best, perf_counter() - begun)
    return best


def kernels(call: Any) -> tuple[Counter[str], Counter[str]]:
    """Launches and microseconds by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    many: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in profiler.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.key.removeprefix("void ")[:70]
            many[name] += event.count
            spent[name] += event.self_device_time_total
    return many, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.2b")
    parser.add_argument("--inputs", default="1,8")
    parser.add_argument("--beams", default="5")
    parser.add_argument("--prompt", default="20,60")
    parser.add_argument("--settings", default="never,defaults")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--without", default="")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--generate", type=int, default=2, help="turns of generate; 0: none")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--kernels", type=int, default=18, help="lines of the profile; 0: none")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if "joined" in args.without or args.without == "all":
        fused_modules.fused_groups = lambda model: iter(())
    if "sums" in args.without or args.without == "all":
        fused_modules.ADDS.clear()
    if args.without == "all":
        fused_modules.DEVICES = rotary.DEVICES = set()
    shortest, longest = map(int, args.prompt.split(","))
    for shape in args.shape.split(","):
        model = build(shape, getattr(torch, args.dtype))
        if args.fixed:
            fixed(model, shape, batch(model, 64, shortest, longest))
            continue
        for n in map(int, args.inputs.split(",")):
            prompts = batch(model, n, shortest, longest)
            for k in map(int, args.beams.split(",")):
                for name in args.settings.split(","):
                    options = {**prompts, **SETTINGS[name], "num_beams": k, "max_new_tokens": args.new_tokens, "do_sample": False}
                    show(model, shape, n, k, name, options, args)
        del model
        torch.cuda.empty_cache()


def show(model: Any, shape: str, n: int, k: int, name: str, options: dict[str, Any], args: Any) -> None:
    stats = bestfirst.Stats()
    first = model.generate(**options, custom_generate=bestfirst.generate, stats=stats)
    ours = timed(lambda: model.generate(**options, custom_generate=bestfirst.generate), 3)
    line = f"{shape}, {n} inputs, k = {k}, {name}: {stats.engine}, {ours:.4f} s, {1e3 * ours / stats.steps:.3f} ms a step"
    if args.generate:
        with torch.no_grad():
            theirs_first = model.generate(**options)  # not timed: a first call of a shape takes longer
            same = theirs_first.tolist() == first.tolist() if n == 1 else None
            theirs = timed(lambda: model.generate(**options), args.generate)
        line += f"; generate {theirs:.3f} s, {theirs / ours:.1f} times{'' if same is None else f', same {same}'}"
    print(f"{line}; {stats.steps} steps, {stats.rows} rows", flush=True)
    if args.kernels:
        many, spent = kernels(lambda: model.generate(**options, custom_generate=bestfirst.generate))
        print(f"  kernels: {sum(many.values()) / stats.steps:.0f} launches and {sum(spent.values()) / stats.steps:.0f} us a step")
        for kernel, micros in spent.most_common(args.kernels):
            print(f"  {micros / stats.steps:8.1f} us {many[kernel] / stats.steps:7.1f} x  {kernel}")


def decoded(model: Any, parts: list[list[Any]], options: dict[str, Any]) -> list[bestfirst.Result]:
    return [each for part in parts for each in bestfirst.decode(model, part, **options)]


def fixed(model: Any, shape: str, prompts: dict[str, torch.Tensor]) -> None:
    """Decodes 64 inputs together and one by one: how many have the same five answers with bit-identical scores."""
    wrapped = bestfirst.wrap(model)
    inputs = [ids[mask == 1].tolist() for ids, mask in zip(*prompts.values(), strict=True)]
    for deterministic in (True, False):
        options = {"beam": 5, "nbest": 5, "max_length": 24, "accept_truncated": True, "deterministic": deterministic}
        found: dict[str, list[Any]] = {}
        ways = {"together": [inputs], "one by one": [[each] for each in inputs]}
        times = []
        for name, parts in ways.items():
            decode = partial(decoded, wrapped, parts, options)
            found[name] = [[(a.tokens, a.score) for a in result.hypotheses] for result in decode()]
            times.append(f"{name} {timed(decode, 2):.3f} s")
        same = sum(a == b and len(a) == 5 for a, b in zip(*found.values(), strict=True))
        print(
            f"{shape}, deterministic={deterministic}: {same} of {len(inputs)} have the same bits; {', '.join(times)}", flush=True
        )


if __name__ == "__main__":
    main()
