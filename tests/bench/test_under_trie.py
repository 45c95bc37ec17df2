"""The cost of a trie is measured beside decoding without one and beside `generate`, with equal outputs."""

from __future__ import annotations

from pathlib import Path

from bestfirst_bench import under_trie

DATA = Path(__file__).parents[1] / "data"


def test_costs_are_printed_and_outputs_equal_those_of_generate(capsys, tmp_path):
    sources = tmp_path / "sources.txt"
    sources.write_text("".join(f"{line}\n" for line in (DATA / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:6]))
    under_trie.main(str(sources), str(DATA / "tatoeba-200.en"), "3", turns=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Trie(")
    assert "of the time, " in lines[3]
    assert lines[4].endswith("3 outputs alike")
