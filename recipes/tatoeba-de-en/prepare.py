"""Step 1: split the sentence pairs, learn a joint vocabulary, and write token ids and a Marian tokenizer folder.

    python recipes/tatoeba-de-en/prepare.py deu.txt.gz --out data

`deu.txt` has lines of English, tab, German (further columns are ignored). The same file gives the same split, always.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import sentencepiece

Pair = tuple[str, str]  # German, English

EOS, UNK = 0, 1  # pad, which also starts every output, comes last
LONGEST = 175  # tokens of a training sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="lines of English, tab, German; may be gzipped")
    parser.add_argument("--out", type=Path, required=True, help="folder for the data and the tokenizer")
    parser.add_argument("--vocabulary", type=int, default=6000, help="number of pieces (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=2000, help="pairs for each of valid and test (default: %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    split = split_pairs(read_pairs(args.pairs), args.held_out)
    for name in ("valid", "test"):
        write_lines(args.out / f"{name}.de", [german for german, _ in split[name]])
        write_lines(args.out / f"{name}.en", [english for _, english in split[name]])

    pieces = learn_pieces(split["train"], args.vocabulary, args.out)
    for name in ("train", "valid"):
        ids = encode(pieces, split[name], balanced=name == "train")
        np.savez_compressed(args.out / f"{name}.npz", **ids)
        print(f"{name}: {len(ids['source_ends'])} of {len(split[name])} pairs")


def read_pairs(path: Path) -> list[Pair]:
    """All distinct pairs, in file order."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    columns = [line.split("\t") for line in text.split("\n") if line]
    return list(dict.fromkeys((german, english) for english, german, *_ in columns))


def split_pairs(pairs: list[Pair], held_out: int) -> dict[str, list[Pair]]:
    """Hold out English sentences, each with one translation; no training pair shares a sentence in either language with them."""
    translations: dict[str, list[str]] = defaultdict(list)
    for german, english in pairs:
        translations[english].append(german)
    sentences = list(translations)
    random.Random(0).shuffle(sentences)
    held = set(sentences[: 2 * held_out])
    held_german = {german for english in held for german in translations[english]}
    return {
        "train": [(german, english) for german, english in pairs if english not in held and german not in held_german],
        "valid": [(translations[english][0], english) for english in sentences[:held_out]],
        "test": [(translations[english][0], english) for english in sentences[held_out : 2 * held_out]],
    }


def learn_pieces(train: list[Pair], size: int, out: Path) -> sentencepiece.SentencePieceProcessor:
    """Learn one vocabulary for both languages and write it as a Marian tokenizer folder."""
    text = out / "sentencepiece.txt"
    write_lines(text, [sentence for pair in train for sentence in pair])
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(out / "joint"),
        vocab_size=size,
        model_type="unigram",
        character_coverage=0.9998,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=-1,
        pad_id=-1,
        input_sentence_size=400_000,
        shuffle_input_sentence=True,
        num_threads=2,
        minloglevel=1,
    )
    shutil.copy(out / "joint.model", out / "source.spm")
    shutil.move(out / "joint.model", out / "target.spm")
    (out / "joint.vocab").unlink()
    text.unlink()

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "source.spm"))
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    vocabulary["<pad>"] = len(vocabulary)
    write_json(out / "vocab.json", vocabulary)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": "de",
            "target_lang": "en",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "model_max_length": 512,
            "separate_vocabs": False,
        },
    )
    return pieces


def encode(pieces: sentencepiece.SentencePieceProcessor, pairs: list[Pair], balanced: bool) -> dict[str, np.ndarray]:
    """Token ids without EOS: for each side one array of all sentences, and one of their ends.

    Empty and overlong sentences are left out, and, if `balanced`, pairs too different in length to be translations.
    """
    sources = pieces.encode([german for german, _ in pairs])
    targets = pieces.encode([english for _, english in pairs])

    def fits(x: int, y: int) -> bool:
        if not (1 <= x <= LONGEST and 1 <= y <= LONGEST):
            return False
        return not balanced or (x < 2.5 * y + 6 and y < 2.5 * x + 6)

    kept = [(x, y) for x, y in zip(sources, targets, strict=True) if fits(len(x), len(y))]
    ids = {}
    for name, side in (("source", [x for x, _ in kept]), ("target", [y for _, y in kept])):
        ids[name] = np.concatenate([np.array(sentence, np.int32) for sentence in side])
        ids[f"{name}_ends"] = np.cumsum([len(sentence) for sentence in side])
    return ids


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
