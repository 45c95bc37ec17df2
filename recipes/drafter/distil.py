"""Train a drafter for a translator: a model with fewer decoder layers, distilled from the larger one's outputs (README.md)."""

import argparse
import copy
import random
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import bestfirst
from bestfirst.models.folder import embedded_folder


def smaller(model, layers):
    """A copy of the model with its first `layers` decoder layers."""
    config = copy.deepcopy(model.config)
    config.decoder_layers = layers
    student = type(model)(config)
    student.load_state_dict({name: value for name, value in model.state_dict().items() if name in student.state_dict()})
    return student


def forward(student, pairs):
    """Logits (sentences, length, vocabulary) and target tokens (sentences, length), padded with -100."""
    pad, start = student.config.pad_token_id, student.config.decoder_start_token_id
    columns = [[torch.tensor(row) for row in rows] for rows in zip(*pairs, strict=True)]
    source, wanted = (pad_sequence(c, True, value).to(student.device) for c, value in zip(columns, (pad, -100), strict=True))
    given = torch.cat([torch.full_like(wanted[:, :1], start), wanted[:, :-1].clamp(min=0)], 1)
    return student(input_ids=source, attention_mask=(source != pad).long(), decoder_input_ids=given).logits, wanted


@torch.no_grad()
def agreement(student, pairs):
    """The share of target tokens that the student ranks first."""
    logits, wanted = forward(student.eval(), pairs)
    return float((logits.argmax(-1) == wanted)[wanted >= 0].float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("folder")
    for name, usual in {"model": embedded_folder(), "layers": 1, "minutes": 10.0, "agreement": 0.8, "device": "cpu"}.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    asked, rng = parser.parse_args(), random.Random(0)
    lines = [line for line in Path(asked.text).read_text(encoding="utf-8").splitlines() if line.strip()]
    teacher = bestfirst.load(asked.model)
    written = bestfirst.decode(teacher, lines, strategy="greedy", beam=1)
    pairs = [(teacher.read(x).payload.source, y.best.tokens) for x, y in zip(lines, written, strict=True) if y.hypotheses]
    held, pairs = pairs[: len(pairs) // 10], pairs[len(pairs) // 10 :]
    student = smaller(AutoModelForSeq2SeqLM.from_pretrained(asked.model), asked.layers).to(asked.device)
    optimizer, end = torch.optim.AdamW(student.parameters(), lr=5e-4), time.monotonic() + 60 * asked.minutes
    while (agreed := agreement(student, held[:200])) < asked.agreement and time.monotonic() < end:
        for _ in range(50):
            logits, wanted = forward(student.train(), rng.sample(pairs, min(64, len(pairs))))
            optimizer.zero_grad()
            cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100).backward()
            optimizer.step()
    student.save_pretrained(asked.folder)
    AutoTokenizer.from_pretrained(asked.model).save_pretrained(asked.folder)
    print(f"the best next token is the model's for {agreed:.1%}")
