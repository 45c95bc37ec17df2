"""Odd texts, unlike the training data of any tokenizer."""

from __future__ import annotations

import random

SPECIAL = [
    "</s>", "<s>", "<unk>", "<pad>", "<mask>", ">>fra<<", ">>x", "<<", "__de__", "deu_Latn", "eng_Latn", "de_DE", "en_XX",
    "\u2581", " \u2581", "<mask_1>", "<mask_2>", "<unk_7>",
]  # fmt: skip
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u200b", "\u3000", "\ufeff", "\x00", "\x1f", "\x7f"]
WORDS = [
    "Guten",
    "Morgen",
    "Kuh",
    "melkt",
    "ist",
    "nicht",
    "n't",
    "'s",
    "don't",
    "ﬁn",
    "Ｆｕｌｌ",
    "e\u0301",
    "é",
    "½",
    "№",
    "①",
    "㎏",
    "İ",
    "ß",
]
RANGES = [
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0x1100, 0x1200), (0x2000, 0x2100),
    (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xFB00, 0xFB50), (0xFF00, 0xFFF0), (0x1F300, 0x1F6FF),
]  # fmt: skip


def odd_texts(n: int, lines: list[str], seed: int = 0) -> list[str]:
    """`n` random texts of pieces of real lines, words, spaces, special tokens and characters of many scripts."""
    rng = random.Random(seed)

    def part() -> str:
        kind = rng.randrange(8)
        if kind < 2:
            line = rng.choice(lines)
            start = rng.randrange(len(line))
            return line[start : start + rng.randrange(1, 30)]
        if kind == 2:
            return rng.choice(SPECIAL)
        if kind == 3:
            return rng.choice(SPACES)
        if kind < 6:
            return rng.choice(WORDS) + rng.choice(["", " "])
        low, high = rng.choice(RANGES)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 6)))

    return ["", " ", "\u2581", *("".join(part() for _ in range(rng.randrange(1, 9))) for _ in range(n - 3))]
