"""bench speed: the real command on a few sentences, every installed peer beside best-first search."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from mmap import mmap
from pathlib import Path

import pytest

import bestfirst
from bestfirst_bench.costs import covered, peak_memory
from bestfirst_bench.peers import BestFirstPeer

LINES = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bestfirst", "bench", "speed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)


@pytest.fixture(scope="module")
def report():
    done = bench(str(LINES), "--limit", "6", "--beam", "3", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_peer_is_timed_on_the_same_sentences_and_agrees(report):
    by_name = {line["peer"]: line for line in report["results"]}
    expected = {"best-first", "beam, same engine", "Hugging Face generate"}
    if find_spec("ctranslate2"):
        expected |= {"CTranslate2 fp32", "CTranslate2 int8"}
    assert set(by_name) == expected
    assert report["lines"] == 6
    for name in expected - {"CTranslate2 int8"}:
        assert by_name[name]["same"] + by_name[name]["near_ties"] == 6, name
        assert by_name[name]["seconds"] > 0


def test_counts_of_the_peers_are_consistent(report):
    ours, beam, hugging_face = report["results"][:3]
    assert ours["ratio"] == 1
    assert ours["calls"] <= ours["rows"]
    assert ours["calls"] < beam["calls"] <= hugging_face["rows"]
    assert 0 < ours["outside"] < 1
    assert 4 * ours["cache_tokens"] < 3 * hugging_face["cache_tokens"]


@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}])
def test_from_tokens_to_tokens_no_texts_are_made(options):
    model = bestfirst.load(**options)
    for timed, made in ((model, True), (BestFirstPeer(model, "")._silent, False)):
        assert (bestfirst.decode(timed, [[5, 6, 0]])[0].text is not None) == made


def test_a_table_is_printed_without_json():
    done = bench(str(LINES), "--limit", "2", "--beam", "2", "--repeat", "1", "--peers", "beam")
    assert done.returncode == 0, done.stderr
    assert "best-first" in done.stdout
    assert "ratio" in done.stdout


def test_drafts_take_fewer_steps_for_the_same_output():
    settings = ["--limit", "6", "--beam", "3", "--repeat", "2", "--peers", "best-first", "--one-by-one", "--draft", "outputs"]
    plain, drafts = json.loads(bench(str(LINES), *settings, "--json").stdout)["results"]
    assert (plain["peer"], drafts["peer"]) == ("best-first", "best-first, drafts")
    assert (drafts["same"], drafts["calls"]) == (6, plain["calls"])
    assert drafts["steps_a_token"] < plain["steps_a_token"]  # the second pass drafts the outputs of the first
    assert 0 < drafts["accepted_share"] <= 1


def test_one_by_one_best_first_takes_no_more_steps_than_beam_search():
    done = bench(str(LINES), "--limit", "3", "--beam", "3", "--repeat", "1", "--peers", "beam,Hugging", "--one-by-one", "--json")
    assert done.returncode == 0, done.stderr
    ours, beam, hugging_face = json.loads(done.stdout)["results"]
    assert ours["same"] == beam["same"] + beam["near_ties"] == hugging_face["same"] + hugging_face["near_ties"] == 3
    assert ours["steps"] <= beam["steps"]


def test_outputs_equal_ctranslate2s_with_its_stop_and_a_length_penalty():
    settings = ["--length-penalty", "1", "--stop", "ctranslate2", "--one-by-one"]
    done = bench(
        str(LINES), "--limit", "4", "--beam", "3", "--repeat", "2", "--peers", "beam,CTranslate2 fp32", *settings, "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["length_penalty"], report["stop"], report["one_by_one"]) == (1, "ctranslate2", True)
    assert [line["same"] for line in report["results"]] == [4] * (3 if find_spec("ctranslate2") else 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.de"], "missing.de"),
        ([str(LINES), "--beam", "x"], "--beam takes numbers separated by commas, got 'x'"),
        ([str(LINES), "--beam", "0"], "--beam must be at least 1, got 0"),
        ([str(LINES), "--model", "/no/such/folder"], "/no/such/folder"),
        ([str(LINES), "--device", "nowhere"], "cannot use device 'nowhere'"),
        ([str(LINES), "--stop", "huang"], "'huang' is not one of ctranslate2, hf-false, hf-never"),
        ([str(LINES), "--stop", "hf-false", "--early-stopping", "true"], "--early-stopping and --no-repeat-ngram-size say it in"),
        ([str(LINES), "--dtype", "fp8"], "'fp8' is not one of fp32, fp16, bf16, int8"),
    ],
)
def test_usage_errors_give_a_message_and_exit_code_2(arguments, message):
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_peak_memory_is_that_of_the_block():
    with peak_memory() as peak, mmap(-1, 64 * 2**20) as fresh:  # malloc could reuse freed memory
        fresh[::4096] = bytes(len(fresh) // 4096)
    assert 60 < peak.mib < 200


def test_with_options_of_generate_the_drop_in_is_timed_beside_it():
    settings = ["--length-penalty", "1", "--early-stopping", "true", "--no-repeat-ngram-size", "2"]
    done = bench(str(LINES), "--limit", "3", "--beam", "3", "--repeat", "1", *settings, "--json")
    assert done.returncode == 0, done.stderr
    ours, hugging_face = json.loads(done.stdout)["results"]
    assert (ours["peer"], hugging_face["peer"]) == ("best-first in generate", "Hugging Face generate")
    assert ours["same"] == hugging_face["same"] + hugging_face["near_ties"] == 3
    assert 0 < ours["calls"] <= ours["rows"] <= hugging_face["rows"]
    assert ours["text_seconds"] > 0
    assert hugging_face["text_seconds"] > hugging_face["seconds"]


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(1, 3), (5, 6)], 3), ([(5, 6), (1, 3)], 3), ([(1, 4), (2, 3), (3, 6)], 5), ([(1, 3), (3, 4)], 3)],
)
def test_overlapping_kernels_count_once(spans, length):
    assert covered(spans) == length
