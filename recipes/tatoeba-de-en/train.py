"""Step 2: train a MarianMT-architecture translator on what `prepare.py` wrote.

    python recipes/tatoeba-de-en/train.py data --out model

The defaults are the settings that the shipped weights were trained with (six minutes on one H200, by an earlier script).
The result is a complete Hugging Face folder with fp16 weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel

EOS = 0
IGNORED = -100
TOKENIZER = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; saved in the model's `training.json`."""

    width: int = 256
    inner: int = 1024
    heads: int = 4
    layers: int = 3  # of the encoder, and of the decoder
    dropout: float = 0.15
    smoothing: float = 0.1
    batch_tokens: int = 12_000
    learning_rate: float = 1.5e-3
    warmup: int = 1500
    updates: int = 7850
    weight_decay: float = 1e-4
    average_from: float = 0.6  # weights are averaged over the rest of training
    average_every: int = 50
    average_rate: float = 0.02
    seed: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to train")
    parser.add_argument("--report-every", type=int, default=1000, help="updates between lines of progress")
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=" ")
    args = vars(parser.parse_args())
    settings = Settings(**{name: args[name] for name in asdict(Settings())})
    train(args["data"], args["out"], torch.device(args["device"]), settings, args["report_every"])


def train(data: Path, out: Path, device: torch.device, settings: Settings, report_every: int) -> None:
    torch.manual_seed(settings.seed)
    started = time.monotonic()
    vocabulary = len(json.loads((data / "vocab.json").read_text(encoding="utf-8")))
    pairs, held_out = Pairs(data / "train.npz"), Pairs(data / "valid.npz")
    model = new_model(vocabulary, settings).to(device)
    optimizer = new_optimizer(model, settings)
    average: dict[str, torch.Tensor] = {}
    batches = endless(pairs, settings)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(pairs)} pairs", flush=True)

    model.train()
    for update in range(1, settings.updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, settings)
        loss = token_loss(model, pairs, next(batches), settings.smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if update > settings.average_from * settings.updates and update % settings.average_every == 0:
            update_average(average, model, settings.average_rate)
        if update % report_every == 0:
            print(f"update {update}: loss {loss.item():.3f}, valid {validate(model, held_out, settings):.3f}", flush=True)

    nats = validate(model, held_out, settings)
    if average:
        last = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(average, strict=False)
        averaged = validate(model, held_out, settings)
        print(f"valid: last {nats:.4f}, averaged {averaged:.4f}")
        if averaged > nats:
            model.load_state_dict(last)
        nats = min(nats, averaged)

    model.to("cpu", torch.float16).save_pretrained(out)
    for name in TOKENIZER:
        shutil.copy(data / name, out / name)
    record = {"valid_nats_per_token": nats, "minutes": (time.monotonic() - started) / 60, "settings": asdict(settings)}
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


class Pairs:
    """Sentence pairs as token ids without EOS."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as ids:
            self.source = np.split(ids["source"], ids["source_ends"][:-1])
            self.target = np.split(ids["target"], ids["target_ends"][:-1])
        # A pair needs as many columns of a batch as its longer side has tokens, EOS included.
        self.columns = [max(len(x), len(y)) + 1 for x, y in zip(self.source, self.target, strict=True)]

    def __len__(self) -> int:
        return len(self.columns)

    def batches(self, tokens: int, shuffle: random.Random | None = None) -> list[list[int]]:
        """Batches of pairs of similar length, each at most `tokens` when padded, in random order if `shuffle`."""
        order = list(range(len(self)))
        if shuffle:
            shuffle.shuffle(order)
        order.sort(key=self.columns.__getitem__)
        batches: list[list[int]] = [[]]
        for i in order:
            if batches[-1] and self.columns[i] * (len(batches[-1]) + 1) > tokens:  # sorted, so the longest comes last
                batches.append([])
            batches[-1].append(i)
        if shuffle:
            shuffle.shuffle(batches)
        return batches


def endless(pairs: Pairs, settings: Settings) -> Iterator[list[int]]:
    shuffle = random.Random(settings.seed)
    while True:
        yield from pairs.batches(settings.batch_tokens, shuffle)


def new_model(vocabulary: int, settings: Settings) -> MarianMTModel:
    """A post-norm transformer with sinusoidal positions and one matrix for all embeddings.

    The last token id is the padding and starts every output. As in Marian, its embedding is zero and it is never predicted.
    """
    pad = vocabulary - 1
    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary,
            d_model=settings.width,
            encoder_layers=settings.layers,
            decoder_layers=settings.layers,
            encoder_attention_heads=settings.heads,
            decoder_attention_heads=settings.heads,
            encoder_ffn_dim=settings.inner,
            decoder_ffn_dim=settings.inner,
            dropout=settings.dropout,
            attention_dropout=0.1,
            activation_dropout=0.1,
            activation_function="relu",
            max_position_embeddings=512,
            pad_token_id=pad,
            decoder_start_token_id=pad,
            bos_token_id=None,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            # True of every MarianMTModel; converters to other formats read these.
            static_position_embeddings=True,
            normalize_before=False,
            normalize_embedding=False,
            add_final_layer_norm=False,
            add_bias_logits=False,
        )
    )
    model.generation_config.max_length = model.config.max_position_embeddings
    for name, parameter in model.named_parameters():
        if "shared" in name:
            torch.nn.init.normal_(parameter, std=settings.width**-0.5)
        elif parameter.dim() > 1 and "embed_positions" not in name:
            torch.nn.init.xavier_uniform_(parameter)
    with torch.no_grad():
        model.get_input_embeddings().weight[pad] = 0
        model.final_logits_bias[0, pad] = -1e4
    return model


def new_optimizer(model: MarianMTModel, settings: Settings) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
    )


def learning_rate(update: int, settings: Settings) -> float:
    """Linear warm-up times a cosine from 1 to 0."""
    return settings.learning_rate * min(1, update / settings.warmup) * (1 + math.cos(math.pi * update / settings.updates)) / 2


def token_loss(model: MarianMTModel, pairs: Pairs, batch: list[int], smoothing: float) -> torch.Tensor:
    """Cross-entropy for each target token."""
    pad, device = model.config.pad_token_id, model.device
    source = padded([pairs.source[i] for i in batch], pad, device)  # (pairs, columns)
    target = padded([pairs.target[i] for i in batch], pad, device)
    shifted = torch.cat([torch.full_like(target[:, :1], pad), target[:, :-1]], dim=1)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(input_ids=source, attention_mask=source != pad, decoder_input_ids=shifted, use_cache=False).logits
    labels = target.masked_fill(target == pad, IGNORED)
    # Without its logit, the last one, the pad token's embedding gets no gradient and stays zero.
    logits = logits[..., :pad].float().flatten(0, 1)
    return cross_entropy(logits, labels.flatten(), label_smoothing=smoothing, ignore_index=IGNORED)


def padded(sentences: list[np.ndarray], pad: int, device: torch.device) -> torch.Tensor:
    """Sentences as rows, each closed by EOS."""
    rows = np.full((len(sentences), max(map(len, sentences)) + 1), pad, np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
        row[len(sentence)] = EOS
    return torch.from_numpy(rows).to(device)


@torch.no_grad()
def validate(model: MarianMTModel, pairs: Pairs, settings: Settings) -> float:
    """The cross-entropy in nats for each token, EOS included."""
    model.eval()
    total, tokens = 0.0, 0
    for batch in pairs.batches(settings.batch_tokens):
        count = sum(len(pairs.target[i]) + 1 for i in batch)
        total += count * token_loss(model, pairs, batch, smoothing=0.0).item()
        tokens += count
    model.train()
    return total / tokens


def update_average(average: dict[str, torch.Tensor], model: MarianMTModel, rate: float) -> None:
    """Move the running average towards the model's weights."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            if name in average:
                average[name].lerp_(tensor, rate)
            else:
                average[name] = tensor.clone()


if __name__ == "__main__":
    main()
