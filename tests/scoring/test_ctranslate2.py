"""`stop="ctranslate2"` against CTranslate2 itself: the same outputs on all 200 sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

import bestfirst
from bestfirst.settings import Decoding
from bestfirst.strategies import FirstFinished

LINES = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()
LIMIT = 60
GAP = 1e-3  # of scores: both sum float32, in different orders and with different approximations of exponentials


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is what is compared with")
    from bestfirst.models.folder import embedded_folder

    target = tmp_path_factory.mktemp("ctranslate2") / "model"
    ctranslate2.converters.TransformersConverter(embedded_folder()).convert(str(target))
    return ctranslate2.Translator(str(target), compute_type="float32", inter_threads=1, intra_threads=1)


def answers(theirs, model, lines, **asked):
    """CTranslate2's hypotheses, as (tokens, score)."""
    pieces = [model.tokenizer.convert_ids_to_tokens(list(model.read(line).payload.source)) for line in lines]
    found = theirs.translate_batch(
        pieces, return_scores=True, min_decoding_length=0, max_decoding_length=LIMIT, max_batch_size=32, **asked
    )
    ids = model.tokenizer.convert_tokens_to_ids
    return [[(tuple(ids(tokens)), score) for tokens, score in zip(f.hypotheses, f.scores, strict=True)] for f in found]


@pytest.mark.parametrize(
    ("alpha", "k", "n", "patience", "lines"),
    [(1.0, 5, 1, 1.0, 200), (0.0, 5, 1, 1.0, 200), (0.2, 4, 4, 1.0, 30), (0.0, 4, 3, 1.0, 30), (1.0, 3, 2, 1.5, 30)],
)
def test_outputs_equal_those_of_ctranslate2(theirs, alpha, k, n, patience, lines):
    model = bestfirst.load()
    asked = {"beam_size": k, "num_hypotheses": n, "length_penalty": alpha, "patience": patience}
    expected = answers(theirs, model, LINES[:lines], **asked)
    ours = {"beam": k, "nbest": n, "length_penalty": alpha, "max_length": LIMIT, "accept_truncated": True}
    factor = {"stop_options": {"factor": patience}} if patience != 1 else {}
    results = bestfirst.decode(model, LINES[:lines], stop="ctranslate2", **ours, **factor)
    for line, result, hypotheses in zip(LINES, results, expected, strict=False):
        found = [(answer.tokens[:-1], answer.score) for answer in result.hypotheses]
        assert [score for _, score in found] == pytest.approx([score for _, score in hypotheses], abs=GAP), line
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in hypotheses], line


def test_one_best_is_exact_and_n_best_uses_ctranslate2s_stop():
    plain = Decoding(stop="ctranslate2")
    assert (plain.plan.stop.name, plain.plan.exact) == ("answered", True)
    lists = Decoding(stop="ctranslate2", nbest=2)
    assert (lists.plan.stop.name, lists.plan.exact) == ("ctranslate2", False)
    with pytest.raises(ValueError, match="is for finished='leave'"):
        Decoding(stop="ctranslate2", finished="keep")
    with pytest.raises(ValueError, match="the patience factor must be a number above 0, got 0"):
        FirstFinished(0)
