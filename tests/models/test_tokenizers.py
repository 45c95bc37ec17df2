"""Tokenizers without transformers: the same tokens and texts on odd texts, for every tokenizer of the compiled models."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bestfirst.engine.compiled_model import read_tokenizer
from bestfirst.models.folder import ModelNotFound, NeedsTransformers, embedded_folder
from bestfirst.models.sentencepiece_tokenizer import AddedToken, SentencePieceTokenizer, Splitter
from bestfirst.models.tokenizer import Tokenizer
from bestfirst.models.transformers import TransformersTokenizer
from models.odd_texts import odd_texts

LINES = Path(__file__).parents[1].joinpath("data", "tatoeba-200.de").read_text(encoding="utf-8").splitlines()
TEXTS = 10_000
MODEL = {"bart": "bart", "mbart": "mbart", "mbart50": "mbart", "nllb": "m2m_100", "pegasus": "pegasus", "m2m100": "m2m_100"}


def charsmap() -> bytes:
    """The normalisation table of the embedded SentencePiece model."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(Path(embedded_folder(), "source.spm").read_bytes())
    return bytes(proto.normalizer_spec.precompiled_charsmap)


def unigram() -> list[tuple[str, float]]:
    backend = Backend(models.Unigram())
    backend.normalizer, backend.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    backend.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=400, special_tokens=["<x>"], unk_token="<x>"))
    return [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece != "<x>"]


def pairs(backend: Backend, **settings: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    backend.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=500, **settings))
    trained = json.loads(backend.to_str())["model"]
    return trained["vocab"], [tuple(merge) for merge in trained["merges"]]


def build(kind: str) -> Any:
    if kind == "bart":
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        named = {"special_tokens": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
        return transformers.BartTokenizer(*pairs(backend, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **named))
    if kind == "nllb":
        backend = Backend(models.BPE(unk_token="<unk>"))
        backend.normalizer, backend.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        vocabulary, merges = pairs(backend, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
        return transformers.NllbTokenizer(vocabulary, merges, _spm_precompiled_charsmap=charsmap())
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    if kind == "mbart":
        return transformers.MBartTokenizer([*first, *unigram()])
    if kind == "mbart50":
        return transformers.MBart50Tokenizer(
            [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *unigram()], _spm_precompiled_charsmap=charsmap()
        )
    assert kind == "pegasus"
    start = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<mask_1>", 0.0),
        ("<mask_2>", 0.0),
        *((f"<unk_{i}>", 0.0) for i in range(2, 103)),
        ("<unk>", 0.0),
    ]
    return transformers.PegasusTokenizer([*start, *unigram()], _spm_precompiled_charsmap=charsmap())


@pytest.fixture(scope="module", params=["marian", "m2m100", "bart", "mbart", "mbart50", "nllb", "pegasus"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Our tokenizer and that of transformers, from the same folder."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    if kind == "marian":
        return read_tokenizer(Path(embedded_folder()), "marian", None), transformers.AutoTokenizer.from_pretrained(
            embedded_folder()
        )  # type: ignore[return-value]
    if kind == "m2m100":
        shutil.copy(Path(embedded_folder(), "source.spm"), folder / "sentencepiece.bpe.model")
        pieces = list(json.loads(Path(embedded_folder(), "vocab.json").read_text(encoding="utf-8")))
        names = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "<pad>", "</s>", "<unk>"))]
        (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
        reference = transformers.M2M100Tokenizer(
            str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang="de", tgt_lang="en"
        )
    else:
        reference = build(kind)
    reference.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL[kind]}))
    return read_tokenizer(folder, MODEL[kind], None), transformers.AutoTokenizer.from_pretrained(folder)  # type: ignore[return-value]


def test_tokens_of_odd_texts_equal_those_of_transformers(both):
    ours, reference = both
    texts = odd_texts(TEXTS, LINES)
    found, expected = ours.encode_batch(texts), [reference(text).input_ids for text in texts]
    assert [(text, a, b) for text, a, b in zip(texts, found, expected, strict=True) if a != b][:3] == []
    assert ours.encode_batch([]) == []
    for text in texts[:200]:
        assert ours.encode_target(text) == reference(text_target=text, add_special_tokens=False).input_ids
        assert ours.encode_batch([text]) == [reference(text).input_ids]


def test_texts_of_odd_tokens_equal_those_of_transformers(both):
    ours, reference = both
    rng = random.Random(1)
    made = [[rng.randrange(len(reference)) for _ in range(rng.randrange(9))] for _ in range(TEXTS // 2)]
    batch = [[], *ours.encode_batch(odd_texts(TEXTS // 2, LINES, seed=2)), *made]
    expected = [reference.decode(ids, skip_special_tokens=True) for ids in batch]
    found = ours.decode_batch(batch)
    assert [(ids, a, b) for ids, a, b in zip(batch, found, expected, strict=True) if a != b][:3] == []
    assert ours.decode_batch([]) == []


@pytest.mark.parametrize("rule", ["", "61 62\t78\n"], ids=["as it is", "changed when put together"])
@pytest.mark.parametrize("suffix", [False, True])
def test_texts_equal_those_of_sentencepiece(rule, suffix, tmp_path):
    """Bytes, control pieces, spaces after a word, and a denormalisation table that also applies across pieces."""
    settings = {"byte_fallback": True, "hard_vocab_limit": False, "treat_whitespace_as_suffix": suffix, "minloglevel": 2}
    if rule:
        (tmp_path / "rule.tsv").write_text(rule)
        settings["denormalization_rule_tsv"] = str(tmp_path / "rule.tsv")
    SentencePieceTrainer.train(
        sentence_iterator=iter(["abc abd cab dab", "a b c d ab"] * 50),
        model_prefix=str(tmp_path / "own"),
        vocab_size=300,
        **settings,
    )
    spm = SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    pieces = {spm.IdToPiece(i): i for i in range(spm.GetPieceSize())}
    ours = SentencePieceTokenizer(spm, spm, pieces, pieces, [AddedToken("</s>", 2)], "<unk>", [], [2])
    rng = random.Random(1)
    batch = [
        [rng.choice([*range(8), *range(259, len(pieces)), 0xC3 + 3, 0xA9 + 3]) for _ in range(rng.randrange(9))]
        for _ in range(2000)
    ]
    shown = [[token for token in ids if token != 2] for ids in batch]
    assert ours.decode_batch(batch) == [spm.decode(ids).strip() if ids else "" for ids in shown]
    assert any("x" in spm.decode(ids) for ids in shown) == bool(rule)


def test_pieces_languages_and_special_tokens_equal_those_of_transformers(both):
    ours, reference = both
    theirs = TransformersTokenizer(reference, encoder_decoder=True)
    assert [ours.piece(token) for token in range(len(reference))] == [theirs.piece(token) for token in range(len(reference))]
    for code in ("de", "deu_Latn", "de_DE", "nosuch", "Tom"):
        assert ours.language(code) == theirs.language(code)
    for text in (*reference.all_special_tokens, "</s>", "<unk>", "<mask>", "__de__", "de_DE", "Tom", "x", ""):
        assert ours.special(text) == theirs.special(text), text
    assert ours.unknown == theirs.unknown


def test_batches_of_a_transformers_tokenizer_equal_single_calls(both):
    _, reference = both
    theirs, texts = TransformersTokenizer(reference, encoder_decoder=True), odd_texts(TEXTS // 4, LINES, seed=3)
    tokens = [reference(text).input_ids for text in texts]
    assert theirs.encode_batch(texts) == tokens
    assert theirs.decode_batch(tokens) == [reference.decode(ids, skip_special_tokens=True) for ids in tokens]


def test_the_source_language_gives_the_tokens_of_transformers(tmp_path):
    reference = build("nllb")
    reference.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, "m2m_100", "deu_Latn")
    reference.src_lang = "deu_Latn"
    assert ours is not None
    assert ours.encode_batch(["Guten Morgen!"]) == [reference("Guten Morgen!").input_ids]
    with pytest.raises(ModelNotFound, match="unknown source language 'nosuch'"):
        read_tokenizer(tmp_path, "m2m_100", "nosuch")


def test_added_tokens_are_split_off_as_in_transformers():
    rng = random.Random(0)
    for _ in range(2000):
        words = {f"<{''.join(rng.choices('ab', k=rng.randrange(4)))}>" for _ in range(rng.randrange(1, 5))}
        text = "".join(rng.choices("abcd<>", k=rng.randrange(12)))
        ours = [
            part if isinstance(part, str) else part.content for part in Splitter([AddedToken(w, 0) for w in sorted(words)])(text)
        ]
        trie = transformers.tokenization_python.Trie()
        trie.update(words)
        assert ours == trie.split(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer_class": "T5Tokenizer"}, "its tokenizer is a T5Tokenizer"),
        ({"split_special_tokens": True}, "asks for what only transformers does"),
    ],
)
def test_unsupported_tokenizers_need_transformers(change, said, tmp_path):
    build("bart").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(NeedsTransformers, match=said):
        read_tokenizer(tmp_path, "bart", None)
