"""All formats of input and output: text, JSON lines and Parquet, plain and compressed, valid and invalid."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bestfirst import Result
from bestfirst.corpus import Input, Record, Target
from bestfirst.corpus.formats import compression_of, decompressed, format_of
from bestfirst.corpus.records import LONGEST, blocks, read_line, whole_lines
from bestfirst.errors import Stopped, Unusable
from bestfirst.search import Answer

LINES = [f"line {number}" for number in range(1, 9)]


def write(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        half = len(data) // 2
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])  # two members, as `cat` of two files gives
    elif path.suffix == ".zst":
        half = len(data) // 2
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    path.write_bytes(data)
    return path


def read(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
            data = stream.read()
    return data.decode()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_text_files(do, tmp_path: Path, ending: str):
    do(write(tmp_path / f"text{ending}", "\n".join(LINES).encode()), tmp_path / f"out{ending}")
    assert read(tmp_path / f"out{ending}").splitlines() == [line.upper() for line in LINES]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines_keep_their_fields(do, tmp_path: Path, ending: str):
    rows = [{"id": number, "text": line, "tags": ["ä", None]} for number, line in enumerate(LINES)]
    source = write(tmp_path / f"rows.jsonl{ending}", "".join(json.dumps(row) + "\n" for row in rows).encode())
    do(source, tmp_path / f"out.jsonl{ending}")
    found = [json.loads(line) for line in read(tmp_path / f"out.jsonl{ending}").splitlines()]
    assert found == [{**row, "translation": row["text"].upper()} for row in rows]
    do(source, tmp_path / "out.txt")
    assert read(tmp_path / "out.txt").splitlines() == [line.upper() for line in LINES]


def test_an_invalid_json_line_is_reported_and_fails_alone(do, tmp_path: Path):
    lines = ['{"text": "one"}', "{", "3", '{"txt": "x"}', '{"text": 3}', '{"text": null}', "", '{"text": "x", "translation": ""}']
    store = do(write(tmp_path / "rows.jsonl", "\n".join([*lines, '{"text": "last"}']).encode()), tmp_path / "out.jsonl")
    found = [json.loads(line) for line in read(tmp_path / "out.jsonl").splitlines()]
    assert [row["translation"] for row in found] == ["ONE", None, None, None, None, None, "", None, "LAST"]
    messages = dict(store.manifest.complete.failures)
    assert messages.pop(2).startswith("invalid JSON: ")
    assert messages == {
        3: "an object is expected, with a field 'text'; this is a number",
        4: "no field 'text' among 'txt'; name another input field",
        5: "field 'text' is a number, not a text",
        8: "there is a field 'translation' already; name another output field",
    }


def test_parquet_keeps_its_columns_and_their_types(do, tmp_path: Path):
    columns = {
        "id": pa.array(range(8), pa.int16()),
        "text": pa.array([*LINES[:6], None, ""]),
        "when": pa.array([0] * 8, pa.date32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=2)  # smaller than a shard
    do(tmp_path / "rows.parquet", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(["id", "text", "when"]).equals(pa.table(columns))
    assert found.column("translation").to_pylist() == [*(line.upper() for line in LINES[:6]), None, ""]
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3
    pq.write_table(pa.table(columns).slice(0, 0), tmp_path / "empty.parquet")
    do(tmp_path / "empty.parquet", tmp_path / "out.empty.parquet")
    assert pq.read_schema(tmp_path / "out.empty.parquet").names == ["id", "text", "when", "translation"]
    do(tmp_path / "rows.parquet", tmp_path / "out.jsonl")
    assert json.loads(read(tmp_path / "out.jsonl").splitlines()[0])["when"] == "1970-01-01"


def test_json_lines_and_text_can_be_written_to_parquet(do, tmp_path: Path):
    rows = [{"text": "one"}, {"text": "two"}, {"text": "three"}, {"text": "four", "more": 1}, {"text": None}]  # in two shards
    do(write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)).encode()), tmp_path / "a.parquet")
    found = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["translation"] for row in found] == ["ONE", "TWO", "THREE", "FOUR", None]
    assert [row["more"] for row in found] == [None, None, None, 1, None]
    do(write(tmp_path / "text", b"one\ntwo\n"), tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "b.parquet").to_pylist()[1] == {"text": "two", "translation": "TWO"}


def test_the_case_of_an_ending_does_not_matter():
    names = "NEWS.JSONL", "News.Parquet", "NEWS.JSONL.GZ", "NEWS.ZST"
    assert [format_of(name) for name in names] == ["jsonl", "parquet", "jsonl", "text"]
    assert [compression_of(name) for name in names] == [None, None, "gzip", "zstd"]


@pytest.mark.parametrize("name", ["out", "out.gz", "out.zst", "out.jsonl", "out.parquet"])
def test_an_empty_input_gives_a_valid_output(do, tmp_path: Path, name: str):
    (tmp_path / "text").touch()
    do(tmp_path / "text", tmp_path / name)
    if name.endswith("parquet"):
        assert pq.read_table(tmp_path / name).num_rows == 0
    else:
        assert read(tmp_path / name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text.gz", "Compressed file ended"),
        ("short.zst", "Compressed file ended"),
        ("text.zst", ""),
        ("rows.parquet", ""),
        ("nothing", "No such file or directory"),
    ],
)
def test_a_damaged_input_is_reported_before_the_job_begins(do, tmp_path: Path, name: str, said: str):
    if name == "rows.parquet":
        (tmp_path / name).write_bytes(b"PAR1 and no more")
    elif name != "nothing":
        write(tmp_path / name, b"line\n" * 1000)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9] if said else b"no such thing")
    with pytest.raises(Unusable, match=f"cannot read '.*{name}': .*{said}"):
        do(tmp_path / name, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_columns_are_checked_before_the_job_begins(do, tmp_path: Path):
    for table, message in (
        ({"id": [1]}, "has no column 'text' but 'id'; name another input field"),
        ({"text": [1]}, "column 'text' of .* is int64, not text"),
        ({"text": ["a"], "translation": ["b"]}, "has a column 'translation' already; name another output field"),
    ):
        pq.write_table(pa.table(table), tmp_path / "rows.parquet")
        with pytest.raises(Unusable, match=message):
            do(tmp_path / "rows.parquet", tmp_path / "out")
    pq.write_table(pa.table([["a"], [1], [2]], ["text", "x", "x"]), tmp_path / "rows.parquet")
    with pytest.raises(Unusable, match="has several columns 'x'; rename all but one"):
        do(tmp_path / "rows.parquet", tmp_path / "out")


def test_a_column_of_categories_is_text(do, tmp_path: Path):
    pq.write_table(pa.table({"text": pa.array(["ab", "c", "ab"]).dictionary_encode()}), tmp_path / "rows.parquet")
    do(tmp_path / "rows.parquet", tmp_path / "out.parquet", Target("parquet"))
    assert pq.read_table(tmp_path / "out.parquet").column("translation").to_pylist() == ["AB", "C", "AB"]


def test_a_zst_file_is_read_across_frames_and_ends_with_one():
    data = bytes(range(256)) * 9000
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    file = zstandard.compress(data[:999]) + skippable + zstandard.compress(b"") + zstandard.compress(data[999:]) + skippable

    def content(compressed: bytes) -> bytes:
        return b"".join(blocks(decompressed(io.BytesIO(compressed), "text.zst")))

    assert content(file) == data
    for end in (3, 99, len(file) - len(skippable) - 1, len(file) - 1):
        with pytest.raises(EOFError, match="Compressed file ended"):
            content(file[:end])


def test_records_can_hold_nbest_lists(do, tmp_path: Path):
    write(tmp_path / "rows.jsonl", b'{"text": "ab"}\n')
    do(tmp_path / "rows.jsonl", tmp_path / "out.jsonl", Target("jsonl", nbest=2))
    assert json.loads(read(tmp_path / "out.jsonl"))["translation"] == ["AB"]
    do(tmp_path / "rows.jsonl", tmp_path / "out.parquet", Target("parquet", nbest=2))
    assert pq.read_table(tmp_path / "out.parquet").column("translation").to_pylist() == [["AB"]]


def test_a_result_without_hypotheses_has_one_nbest_entry():
    target, record = Target("nbest"), Record(3, "")
    assert target.line(record, Result(status="complete")) == "2 |||  ||| 0.000000\n"
    assert target.line(record, Result(status="error")) == "2 |||  ||| -inf\n"


def test_overlong_lines_are_cut_while_they_are_read():
    pieces = [b"short\n", *[b"x" * 1000] * 5000, b"\nlast"]
    lines = [line for chunk in whole_lines(pieces) for line in chunk]
    assert [len(line) <= LONGEST + 1000 for line in lines] == [True, True, True]
    assert [read_line(n, line).error for n, line in enumerate(lines, 1)] == [None, f"longer than {LONGEST} bytes; split it", None]


def test_compression_does_not_change_an_inputs_identity(tmp_path: Path):
    surveys = {Input(str(write(tmp_path / f"text{ending}", b"a\nb"))).survey() for ending in ("", ".gz", ".zst")}
    assert len(surveys) == 1
    assert surveys.pop().lines == 2


def test_parquet_columns_hold_the_fields_of_all_json_lines(do, tmp_path: Path):
    """Fields that the first record lacks, and types that differ between records and between shards."""
    rows = [
        {"text": "a"},
        {"text": "b", "n": 1, "tags": ["x"], "of": {"p": 1}},
        {"text": "c", "n": 2.5, "tags": [], "of": {"q": {"r": "s"}}},
        {"text": "d", "n": None, "late": True, "mixed": 1},
        {"text": "e", "mixed": "one", "of": {}},
        {"text": "f", "mixed": {"k": [1]}},
        {"text": "g", "mixed": None, "none": None, "empty": {}},
    ]
    do(write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)).encode()), tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    assert [row["translation"] for row in found] == [row["text"].upper() for row in rows]
    assert [row["n"] for row in found] == [None, 1.0, 2.5, None, None, None, None]
    assert [row["tags"] for row in found] == [None, ["x"], [], None, None, None, None]
    assert found[1]["of"] == {"p": 1, "q": None}
    assert found[2]["of"] == {"p": None, "q": {"r": "s"}}
    assert [row["late"] for row in found] == [None, None, None, True, None, None, None]
    assert [row["mixed"] for row in found] == [None, None, None, "1", "one", '{"k": [1]}', None]


ODD = [
    ('{"text": "a", "n": 36893488147419103232}', "field 'n' does not fit into Parquet: a whole number beyond 64 bits"),
    ('{"text": "a", "s": "\\ud800"}', "field 's' does not fit into Parquet: half a character"),
    ('{"text": "a", "\\ud800": 1}', "field '\\ud800' does not fit into Parquet: half a character"),
    ('{"text": "\\ud800 a"}', "field 'text' does not fit into Parquet: half a character"),
    ("{}", "no field 'text' among none"),
    ('{"text": "a", "deep": ' + "[" * 400 + "]" * 400 + "}", "field 'deep' does not fit into Parquet: nested more than 50 deep"),
    ('{"text": "a", "n": NaN}', "invalid JSON: NaN is none of its values"),
    ('{"text": "a", "n": ' + "9" * 5000 + "}", "invalid JSON: Exceeds the limit"),
    ("[" * 100_000, "invalid JSON: maximum recursion depth"),
]


@pytest.mark.parametrize(("odd", "said"), ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("first", [True, False])
def test_a_record_that_does_not_fit_into_parquet_fails_alone(do, tmp_path: Path, odd: str, said: str, first: bool):
    good = ['{"text": "one", "n": 1}', '{"text": "two", "n": 2}']
    lines = [odd, *good] if first else [*good, odd]
    store = do(write(tmp_path / "rows.jsonl", "\n".join(lines).encode()), tmp_path / "out.parquet")
    ((number, why),) = store.manifest.complete.failures
    assert (number, why[: len(said)]) == (lines.index(odd) + 1, said)
    found = [row for at, row in enumerate(pq.read_table(tmp_path / "out.parquet").to_pylist(), 1) if at != number]
    assert [(row["text"], row["n"], row["translation"]) for row in found] == [("one", 1, "ONE"), ("two", 2, "TWO")]


@pytest.mark.parametrize("between", [0, 3])
def test_an_integer_that_a_float_column_would_round_ends_the_job(do, tmp_path: Path, between: int):
    """In one shard, and in two that are merged."""
    lines = [b'{"text": "one", "n": 9007199254740993}', *[b'{"text": "two", "n": 2}'] * between, b'{"text": "end", "n": 0.5}']
    with pytest.raises(Stopped, match="9007199254740993 would be 9007199254740992 in a column that has fractions, too"):
        do(write(tmp_path / "rows.jsonl", b"\n".join(lines)), tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_json_output_is_valid_and_keeps_the_input_fields(do, tmp_path: Path):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = [
        '{"text": "a", "s": "\\ud800", "n": 1e999, "i": 36893488147419103232}',
        '{"text": "b", "deep": ' + "[" * 500 + "]" * 500 + "}",
        '{ "text" : "c" }',
        '{"text": "d", "n": -Infinity}',
        '{"text": "e", "translation": "x", "n": 1e999}',
    ]
    do(write(tmp_path / "rows.jsonl", "\n".join(lines).encode()), tmp_path / "out.jsonl")
    out = read(tmp_path / "out.jsonl").splitlines()
    assert out[0] == lines[0][:-1] + ', "translation": "A"}'
    assert out[1] == lines[1][:-1] + ', "translation": "B"}'
    found = [json.loads(line, parse_constant=refuse) for line in out]
    assert [row["translation"] for row in found] == ["A", "B", "C", None, None]
    assert found[0]["s"] == "\ud800"
    pq.write_table(pa.table({"text": ["a"], "n": [float("nan")], "m": [float("inf")]}), tmp_path / "rows.parquet")
    do(tmp_path / "rows.parquet", tmp_path / "from.jsonl")
    assert json.loads(read(tmp_path / "from.jsonl"), parse_constant=refuse) == {
        "text": "a", "n": None, "m": None, "translation": "A"
    }  # fmt: skip


@pytest.mark.parametrize("depth", [790, 810, *range(960, 1000, 3), 5000])
@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_json_of_any_depth_is_written_or_reported(do, tmp_path: Path, depth: int, name: str):
    nested = "[" * depth + "]" * depth
    lines = ['{"text": "a", "d": %s}', '{"text": null, "d": %s}', '{"text": "c", "translation": 1, "d": %s}', '{"d": %s}']
    store = do(write(tmp_path / "rows.jsonl", "\n".join(line % nested for line in lines).encode()), tmp_path / name)
    failed = dict(store.manifest.complete.failures)
    assert len(failed) == (2 if depth < 800 and name == "out.jsonl" else 4)
    assert all("nested" in failed[number] or "recursion" in failed[number] for number in (1, 2) if number in failed)


def test_scores_that_are_not_finite_are_null_in_json():
    result = Result([Answer((1,), float("-inf"), float("nan"), "half \ud800")], status="complete")
    line = Target("json").line(Record(1, "x"), result)
    assert line.encode()  # valid UTF-8
    assert "Infinity" not in line
    assert "NaN" not in line
    assert json.loads(line)["hypotheses"][0] == {"tokens": [1], "score": None, "logprob": None, "text": "half \ud800"}
