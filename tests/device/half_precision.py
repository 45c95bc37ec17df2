"""Half precision on a GPU: how many outputs equal `generate`'s, beside how many `generate` repeats at another batch size; and
where the first bits differ, module by module.

    python tests/device/half_precision.py [--seconds 45] [--dtype bfloat16] [--prompts 128] [--batches 4,32,128]

A GPT-2 of 3.2 million parameters is trained for `--seconds` on the bytes of this repository's pages and sources.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

import bestfirst
from bestfirst.engine.device.model_check import Trial
from bestfirst.engine.device.modules.own_modules import OwnModules
from bestfirst.models.reader import Prompt

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EOS, PAD = 10, 0  # a line's end
SETTINGS: dict[str, dict[str, Any]] = {"never": {"length_penalty": 0.0, "early_stopping": "never"}, "defaults": {}}


def text() -> torch.Tensor:
    files = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("*.md")])
    return torch.tensor(list(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def trained(seconds: float) -> Any:
    """A small GPT-2, trained for this many seconds."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_embd=256, n_layer=4, n_head=4, n_positions=256, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).train()
    data, optimizer = text().to(DEVICE), torch.optim.AdamW(model.parameters(), lr=1e-3)
    begun, steps, loss = perf_counter(), 0, torch.zeros(())
    while perf_counter() - begun < seconds:
        starts = torch.randint(0, len(data) - 129, (64,), device=DEVICE)
        batch = data[starts[:, None] + torch.arange(129, device=DEVICE)].long()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=batch[:, :-1], labels=batch[:, :-1]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps, loss {float(loss):.2f}", flush=True)
    return model.eval()


def prompts_of(n: int) -> list[list[int]]:
    data, dice = text(), torch.Generator().manual_seed(1)
    found = []
    while len(found) < n:
        start, length = (int(torch.randint(low, high, (1,), generator=dice)) for low, high in ((0, len(data) - 64), (12, 48)))
        found.append(data[start : start + length].long().tolist())
    return found


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts], device=DEVICE)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=DEVICE)
    return {"input_ids": ids, "attention_mask": mask}


def outputs(model: Any, prompts: list[list[int]], batch: int, **options: Any) -> list[list[int]]:
    """The tokens generated after each prompt, without padding."""
    found = []
    for i in range(0, len(prompts), batch):
        given = padded(prompts[i : i + batch])
        with torch.no_grad():
            made = model.generate(**given, num_beams=5, max_new_tokens=32, do_sample=False, **options)
        for row in made[:, given["input_ids"].shape[1] :].tolist():
            while row and row[-1] == PAD:
                row.pop()
            found.append(row)
    return found


def shares(model: Any, prompts: list[list[int]], batches: list[int]) -> None:
    for name, setting in SETTINGS.items():
        theirs = {batch: outputs(model, prompts, batch, **setting) for batch in batches}
        stats = bestfirst.Stats()
        mine = {b: outputs(model, prompts, b, **setting, custom_generate=bestfirst.generate, stats=stats) for b in batches}
        print(f"{name}: {len(prompts)} prompts, by {stats.engine}")
        for batch in batches:
            own = [sum(a == b for a, b in zip(theirs[batch], theirs[other], strict=True)) for other in batches]
            ours = [sum(a == b for a, b in zip(theirs[batch], mine[other], strict=True)) for other in batches]
            print(f"  generate in batches of {batch}: itself in {batches}: {own}; the drop-in in {batches}: {ours}", flush=True)


def bits(mine: torch.Tensor, its: torch.Tensor) -> float:
    return float((mine != its).float().mean())


class ModuleOutputs:
    """Records the output of each module, by name."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.found: dict[str, torch.Tensor] = {}
        self.handles = [module.register_forward_hook(self._of(name)) for name, module in model.named_modules() if name]

    def _of(self, name: str) -> Any:
        def note(module: Any, given: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor):
                self.found[name] = first.reshape(-1, first.shape[-1])[:].clone()

        return note

    def close(self) -> dict[str, torch.Tensor]:
        for handle in self.handles:
            handle.remove()
        return self.found


@torch.inference_mode()
def theirs_by_module(model: Any, prompts: list[list[int]], path: list[int], copies: int) -> dict[str, torch.Tensor]:
    """Outputs for the last token of each prompt and path, as `generate` runs it: a cache, padding, `copies` of each row."""
    rows = [prompt for prompt in prompts for _ in range(copies)]
    given, cache = padded(rows), transformers.DynamicCache()
    mask = given["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    model(input_ids=given["input_ids"], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    for t, token in enumerate(path):
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        ids, positions = torch.full((len(rows), 1), token, device=DEVICE), mask.sum(-1, keepdim=True) - 1
        recorded = ModuleOutputs(model) if t == len(path) - 1 else None
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    assert recorded is not None
    return {**{name: each[::copies] for name, each in recorded.close().items()}, "logits": out.logits[::copies, -1]}


@torch.inference_mode()
def ours_by_module(model: Any, prompts: list[list[int]], path: list[int]) -> dict[str, torch.Tensor]:
    """The same on the device's tree."""
    trial = Trial(OwnModules(model), [Prompt(None, tuple(prompt)) for prompt in prompts])
    trial._read_inputs()
    at = [(0, -1)] * len(prompts)
    found: dict[str, torch.Tensor] = {}
    for t, token in enumerate([None, *path]):
        recorded = ModuleOutputs(model) if t == len(path) else None
        rows = [(i, *at[i], prompt[-1] if token is None else token) for i, prompt in enumerate(prompts)]
        options = trial._logits_after(rows)
        at = [(node, length) for node, length, _ in options]
        if recorded is not None:
            found = {**recorded.close(), "logits": torch.stack([logits for *_, logits in options])}
    return found


def by_module(model: Any, prompts: list[list[int]]) -> None:
    path = [116, 104, 101, 32, 115]
    its = theirs_by_module(model, prompts, path, 5)
    for copies in (1, 8, 32):
        other = theirs_by_module(model, prompts, path, copies)
        differing = {name: bits(other[name], its[name]) for name in its if bits(other[name], its[name])}
        first = next(iter(differing.items()), "none")
        print(
            f"generate, {len(prompts)} x {copies} rows beside x 5: {len(differing)} of {len(its)} modules differ; first {first}"
        )
    mine = ours_by_module(model, prompts, path)
    print("ours beside generate's x 5: modules in order, share of numbers whose bits differ")
    for name in its:
        if name in mine and mine[name].shape == its[name].shape:
            print(f"  {bits(mine[name], its[name]):7.4f}  {name}")


@torch.inference_mode()
def attention() -> None:
    """One query and 40 keys: torch's own attention, by backend, compared with rounded and with unrounded weights."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    q, k, v = (torch.randn(64, 4, n, 64, device=DEVICE, dtype=torch.bfloat16) for n in (1, 40, 40))
    scores = (q.float() @ k.float().transpose(2, 3)) * 64**-0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = weights.sum(-1, keepdim=True)
    variants = {
        "rounded below the greatest": (weights.bfloat16().float() @ v.float() / total).bfloat16(),
        "rounded after the division": ((weights / total).bfloat16().float() @ v.float()).bfloat16(),
        "not rounded": (weights @ v.float() / total).bfloat16(),
    }
    masks = {"no mask": None, "a mask": torch.ones(64, 1, 1, 40, dtype=torch.bool, device=DEVICE)}
    for label, mask in masks.items():
        for backend in (None, *map(SDPBackend, (0, 1, 2, 3))):
            try:
                if backend is None:
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                else:
                    with sdpa_kernel(backend):
                        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            except RuntimeError:
                continue
            found = ", ".join(f"{name} {bits(out, each):.4f}" for name, each in variants.items())
            print(f"  {label}, {'the default' if backend is None else backend.name}: bits differ: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--batches", default="4,32,128")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    attention()
    model = trained(args.seconds)
    model.to(getattr(torch, args.dtype))
    by_module(model, prompts_of(4))
    shares(model, prompts_of(args.prompts), [*map(int, args.batches.split(","))])


if __name__ == "__main__":
    main()
