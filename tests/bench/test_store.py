"""The file of rows: finished rows survive any end of the run; foreign files are left unchanged."""

from __future__ import annotations

import pytest

from bestfirst_bench.row import Row, Store, read
from bestfirst_bench.setting import Setting, read_score


def row(line: int, **changes: object) -> Row:
    fields = {
        "signature": "bestfirst|beam|k:5", "model": "m@1", "text": "t@1", "setting": Setting.of("beam"), "line": line,
        "source": "Ä\u2028", "reference": None, "source_length": 1, "output": "a", "length": 2, "score": -1.5, "calls": 3,
        "lm_calls": 0, "rows": 3, "steps": 2, "exact": True, "seconds": 0.5, "device": "cpu", "date": "2026-11-15", "least": 2,
    }  # fmt: skip
    return Row(**{**fields, **changes})


def test_rows_survive_a_round_trip(tmp_path):
    file = tmp_path / "new" / "rows.jsonl"
    setting = Setting.of("gamma=2", 7, **read_score("length-reward:beta=0.5"), finished="keep", row_budget=1, alone=True)
    odd = row(2, setting=setting, output=None, score=None)
    with Store(Row, file, "m@1") as store:
        store.add(row(1))
        store.add(odd)
    assert read(Row, [file, file]) == [row(1), odd]
    with Store(Row, file, "m@1") as store:
        assert row(1).key in store
        assert row(3).key not in store


def test_a_torn_last_line_is_no_row_and_is_removed(tmp_path):
    file = tmp_path / "rows.jsonl"
    whole = row(1).dump().encode()
    for length in (1, 30, len(row(2).dump().encode()) - 1):
        file.write_bytes(whole + row(2).dump().encode()[:length])
        assert read(Row, [file]) == [row(1)]
        with Store(Row, file, "m@1") as store:
            assert list(store.records.values()) == [row(1)]
            store.add(row(3))
        assert read(Row, [file]) == [row(1), row(3)]


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"kind": "other"}\n', b"[1]\n", b"\xff\n", b"\n"])
def test_a_foreign_file_is_refused_and_left_unchanged(tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="line 1: not a row that bestfirst bench wrote"), Store(Row, file, "m@1"):
        pass
    assert file.read_bytes() == content


def test_rows_of_another_model_are_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(row(1).dump(), encoding="utf-8")
    with pytest.raises(ValueError, match="has results of the model m@1, not of m@2; name another file"), Store(Row, file, "m@2"):
        pass


def test_only_one_run_at_a_time_may_write_to_a_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    with (
        Store(Row, file, "m@1"),
        pytest.raises(ValueError, match="another run is writing to"),
        Store(Row, file, "m@1"),
    ):
        pass
