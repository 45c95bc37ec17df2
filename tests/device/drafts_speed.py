"""The time that drafts save on a GPU: one input at a time, with and without drafts, beside `generate`.

    python tests/device/drafts_speed.py [--agreement 0.8] [--depth 2,3,4,6] [--beam 5,10] [--layers 16] [--tokens 48]

The model is a Llama of 1.2 billion random weights whose last norm is scaled so that the best next token has a probability of a
half; the smaller one is its first layers (`--small`, 2) and its head. The output of the other layers is scaled until both agree
on the best next token at the share `--agreement` of positions: a trained pair's agreement, and a trained model's cost.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch
import transformers

import bestfirst

parser = argparse.ArgumentParser()
parser.add_argument("--agreement", type=float, default=0.8)
parser.add_argument("--depth", default="2,3,4,6")
parser.add_argument("--beam", default="5,10")
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--small", type=int, default=2)
parser.add_argument("--vocabulary", type=int, default=128_256)
parser.add_argument("--tokens", type=int, default=48)
parser.add_argument("--inputs", type=int, default=4)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--profile", action="store_true", help="kernels by time, of one decode with the last draft")
args = parser.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_llama(layers):
    config = transformers.LlamaConfig(
        vocab_size=args.vocabulary, hidden_size=args.width, intermediate_size=4 * args.width, num_hidden_layers=layers,
        num_attention_heads=args.width // 64, num_key_value_heads=max(1, args.width // 256), tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return transformers.LlamaForCausalLM._from_config(config, dtype=getattr(torch, args.dtype)).eval()


large, small = random_llama(args.layers), random_llama(args.small)
own = [(layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight) for layer in large.model.layers]
small.load_state_dict(large.state_dict(), strict=False)
usual = [[weight.clone() for weight in both] for both in own]


@torch.inference_mode()
def scale(later, spread):
    """Multiplies the output of later layers by `later`, and the logits by `spread`."""
    for both, before in list(zip(own, usual, strict=True))[args.small :]:
        for weight, old in zip(both, before, strict=True):
            weight.copy_(old * later)
    for model in (large, small):
        model.model.norm.weight.fill_(spread)


torch.manual_seed(1)
prompts = [torch.randint(3, args.vocabulary, (n,)).tolist() for n in range(20, 20 + 8 * args.inputs, 8)]
probe = torch.randint(3, args.vocabulary, (8, 64), device=DEVICE)


@torch.inference_mode()
def agreement_and_confidence():
    """The share of positions where both agree, and the mean probability of the model's best token."""
    a, b = large(input_ids=probe).logits.float(), small(input_ids=probe).logits.float()
    return float((a.argmax(-1) == b.argmax(-1)).float().mean()), float(a.softmax(-1).amax(-1).mean())


def bisect(low, high, good):
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def measured_at(later, spread):
    scale(later, spread)
    return agreement_and_confidence()


later = bisect(1e-4, 10.0, lambda x: measured_at(x, 1.0)[0] > args.agreement)
spread = bisect(0.01, 100.0, lambda x: measured_at(later, x)[1] < 0.5)
scale(later, spread)
agreement, top = agreement_and_confidence()
print(f"agree on {agreement:.3f} of the best next tokens; their mean probability {top:.2f}", flush=True)


def timed(run, *given, **settings):
    run(*given, **settings)
    best = []
    for _ in range(3):
        begun = perf_counter()
        result = run(*given, **settings)
        best.append(perf_counter() - begun)
    return min(best), result


def decoded(draft, **settings):
    stats = bestfirst.Stats()
    results = [bestfirst.decode(model, [prompt], draft=draft, stats=stats, **settings)[0] for prompt in prompts]
    return stats, [each.tokens for result in results for each in result.hypotheses]


def generated(**settings):
    ids = [torch.tensor([prompt], device=DEVICE) for prompt in prompts]
    return [large.generate(x, attention_mask=torch.ones_like(x), **settings).tolist() for x in ids]


model, helper = bestfirst.wrap(large), bestfirst.wrap(small)
SETTINGS = {
    "alpha 0, never": {"accept_truncated": True},
    "defaults": {"length_penalty": 1.0, "stop": "hf-false", "accept_truncated": True},
}
for k in map(int, args.beam.split(",")):
    for name, settings in SETTINGS.items():
        settings = {"beam": k, "max_length": args.tokens, **settings}
        plain, (stats, expected) = timed(decoded, None, **settings)
        print(f"k = {k}, {name}: {plain:.4f} s, {stats.steps} steps, by the {stats.engine}", flush=True)
        for depth in map(int, args.depth.split(",")):
            seconds, (stats, answers) = timed(decoded, bestfirst.SmallerModel(helper, depth=depth), **settings)
            same = sum(a == b for a, b in zip(answers, expected, strict=True))
            print(
                f"  depth {depth}: {seconds:.4f} s, {seconds / plain:.3f} of the time, steps over length "
                f"{stats.steps / (len(prompts) * args.tokens):.2f}, drafted {stats.drafted}, accepted {stats.accepted}, "
                f"{same} of {len(expected)} the same, by the {stats.engine}",
                flush=True,
            )
    print(f"  generate, defaults: {timed(generated, num_beams=k, max_new_tokens=args.tokens)[0]:.4f} s", flush=True)
if args.profile:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decoded(bestfirst.SmallerModel(helper, depth=depth), **settings)
    print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=60))
