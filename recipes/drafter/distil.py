"""Make a drafter for a translator: a smaller model that writes what the larger one writes.

    python recipes/drafter/distil.py TEXT FOLDER [--model FOLDER] [--layers 1] [--minutes 10] [--agreement 0.8] [--device cpu]

TEXT: what to translate, a sentence a line; its first tenth is held out. The model translates it (greedily), and the student
learns what it wrote. It starts from the model's encoder, embeddings and first decoder layers. Training ends when the student's best next
token is the model's for that share of the tokens held out, or when time is up. Then

    bestfirst translate TEXT --draft model:FOLDER
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import bestfirst
from bestfirst.models.folder import embedded_folder

BATCH, EVERY, MOST = 64, 100, 200  # sentences of an update; updates between two looks; sentences that are looked at
Pair = tuple[list[int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("folder")
    parser.add_argument("--model", default=embedded_folder())
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    lines = [line for line in Path(asked.text).read_text(encoding="utf-8").splitlines() if line.strip()]
    teacher = bestfirst.wrap(*_loaded(asked.model))
    pairs = written(asked.model, teacher, lines)
    held = max(1, len(pairs) // 10)
    student = smaller(teacher.model, asked.layers).to(asked.device)
    agreed = train(student, pairs[held:], pairs[: min(held, MOST)], asked.minutes, asked.agreement)
    student.cpu().save_pretrained(asked.folder)
    teacher.tokenizer.save_pretrained(asked.folder)
    print(f"agreement {agreed:.3f}, {sum(p.numel() for p in student.parameters()):,} weights in {asked.folder}")


def _loaded(folder: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def written(folder: str, teacher: Any, lines: list[str]) -> list[Pair]:
    """Token ids of each line, and of what the model makes of it."""
    results = bestfirst.decode(bestfirst.load(folder), lines, strategy="greedy", beam=1)
    sources = [list(teacher.read(line).payload.source) for line in lines]
    return [(source, list(r.hypotheses[0].tokens)) for source, r in zip(sources, results, strict=True) if r.hypotheses]


def smaller(model: Any, layers: int) -> Any:
    """A model of the same kind with so many decoder layers, those of the larger one."""
    config = copy.deepcopy(model.config)
    config.decoder_layers = layers
    student = type(model)(config)
    own = student.state_dict()
    student.load_state_dict({name: value for name, value in model.state_dict().items() if name in own})
    return student


def train(student: Any, pairs: list[Pair], held: list[Pair], minutes: float, enough: float) -> float:
    """Until it agrees, or time is up; returns the share of tokens it agrees on."""
    rng, end = random.Random(0), time.monotonic() + 60 * minutes
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
    agreed, updates = agreement(student, held), 0
    while agreed < enough and time.monotonic() < end:
        logits, wanted = forward(student, rng.sample(pairs, min(BATCH, len(pairs))))
        loss = cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % EVERY == 0:
            agreed = agreement(student, held)
            print(f"{updates} updates, loss {float(loss):.3f}, agreement {agreed:.3f}", flush=True)
    return agreement(student, held)


def forward(student: Any, pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (sentences, length, vocabulary), and the tokens that the model wrote there; -100 beyond."""
    pad, device = student.config.pad_token_id, student.device
    sources = padded([source for source, _ in pairs], pad).to(device)
    wanted = padded([target for _, target in pairs], -100).to(device)
    start = torch.full_like(wanted[:, :1], student.config.decoder_start_token_id)
    given = torch.cat([start, wanted[:, :-1].clamp(min=0)], 1)
    mask = torch.arange(sources.shape[1], device=device) < torch.tensor([[len(s)] for s, _ in pairs], device=device)
    return student(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=given).logits, wanted


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


@torch.no_grad()
def agreement(student: Any, held: list[Pair]) -> float:
    """The share of tokens for which its best is what the model wrote."""
    student.eval()
    logits, wanted = forward(student, held)
    student.train()
    return float((logits.argmax(-1) == wanted)[wanted >= 0].float().mean())


if __name__ == "__main__":
    main()
