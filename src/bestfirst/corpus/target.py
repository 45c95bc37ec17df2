"""Target: in which form results are written. Pieces of an output that were written apart can be put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..search import Answer, Result
from .records import Record, Shard, compress, parquet, to_json


@dataclass(frozen=True)
class Target:
    """A form (text, nbest, json, jsonl or parquet), and what it depends on. `field` and `into` name the text and its translation
    in a record; `partial`: where nothing finished, the best unfinished hypothesis is written."""

    form: str = "text"
    compression: str | None = None
    nbest: int = 1
    partial: bool = False
    field: str = "text"
    into: str = "translation"

    def identity(self) -> dict[str, Any]:
        """What of it matters to the bytes that are written."""
        named = asdict(self)
        return named if self.form in ("jsonl", "parquet") else {k: v for k, v in named.items() if k not in ("field", "into")}

    # -- one record ------------------------------------------------------------------------------------------------------

    def shown(self, result: Result) -> list[Answer]:
        """The hypotheses to write."""
        if not result.hypotheses and self.partial and result.partial is not None:
            return [result.partial]
        return result.hypotheses

    def line(self, record: Record, result: Result) -> str:
        """What is written for one record, with its line end."""
        write = {"text": self._text, "nbest": self._nbest, "json": self._json, "jsonl": self._record}[self.form]
        return write(record, result)

    def _text(self, record: Record, result: Result) -> str:
        """The best hypothesis; an empty line where there is none."""
        return "".join(one_line(answer.text) for answer in self.shown(result)[:1]) + "\n"

    def _nbest(self, record: Record, result: Result) -> str:
        """`i ||| text ||| score` for every hypothesis, i counted from 0, as Moses and Marian write it.

        An input without hypotheses has one entry without text: an empty line (score 0), or one that failed (score -inf).
        """
        entries = [(one_line(answer.text), answer.score) for answer in self.shown(result)]
        nothing = [("", 0.0 if result.status == "complete" else float("-inf"))]
        return "".join(f"{record.number - 1} ||| {text} ||| {score:.6f}\n" for text, score in entries or nothing)

    def _json(self, record: Record, result: Result) -> str:
        """One object: the printed text, all hypotheses, what the search cost, and how it ended."""
        printed = self.shown(result)
        fields: dict[str, Any] = {
            "line": record.number,
            "text": (printed[0].text or "") if printed else "",
            "hypotheses": [_fields(answer) for answer in result.hypotheses],
            "calls": result.calls,
            "rows": result.rows,
            "steps": result.steps,
            "exact": result.exact,
            "status": result.status,
        }
        if result.message is not None:
            fields["message"] = result.message
        if self.partial and not result.hypotheses and result.partial is not None:
            fields["partial"] = _fields(result.partial)
        return to_json(fields) + "\n"

    def _record(self, record: Record, result: Result) -> str:
        """The record's own fields, as they were read, and its translation."""
        own = record.row if isinstance(record.row, str) else to_json(record.row or {self.field: record.text})
        begun = own[:-1].rstrip()
        comma = "" if begun == "{" else ", "
        return f"{begun}{comma}{to_json(self.into)}: {to_json(self._translation(record, result))}}}\n"

    def _translation(self, record: Record, result: Result) -> Any:
        """What goes into a record's new field: the best text, or with `nbest` the list of them; None where there is none."""
        texts: list[str | None] = [answer.text for answer in self.shown(result)]
        if not texts and result.status == "complete":  # nothing to translate stays what it is
            texts = [record.text if record.fields is None else record.fields[self.field]]
        return texts if self.nbest > 1 else next(iter(texts), None)

    # -- many ------------------------------------------------------------------------------------------------------------

    def admit(self, record: Record) -> Record:
        """The record; one whose fields this form cannot hold has an error, and the fields that can be held."""
        fields = record.fields
        if self.form != "parquet" or fields is None or not isinstance(record.row, str):
            return record
        odd = parquet().unfit(fields)
        if not odd:
            return record
        name, why = next(iter(odd.items()))
        row = to_json({name: value for name, value in fields.items() if name not in odd})
        return replace(record, error=f"field {name!r} does not fit into Parquet: {why}; write .jsonl", row=row)

    def encode(self, shard: Shard, results: Sequence[Result]) -> bytes:
        """What is written for these records."""
        each = zip(shard.records, results, strict=True)
        if self.form == "parquet":
            values = [self._translation(record, result) for record, result in each]
            return parquet().encode(shard, values, self.field, self.into, self.nbest > 1)
        text = "".join(self.line(record, result) for record, result in each)
        return compress(text.encode("utf-8", "replace"), self.compression)

    def join(self, pieces: Callable[[], Iterator[bytes]], out: BinaryIO) -> None:
        """Put encoded shards together, in this order, a piece at a time."""
        if next(pieces(), None) is None:
            out.write(self.encode(Shard(0, ()), ()))
        elif self.form == "parquet":
            parquet().join(pieces, out)
        else:
            out.writelines(pieces())

    def split(self, path: Path, sizes: Sequence[int], rows: int) -> Iterator[bytes]:
        """The pieces that `join` made this file of, by their sizes; of a Parquet file, by the rows of each."""
        if self.form == "parquet":
            yield from parquet().split(str(path), rows)
            return
        with open(path, "rb") as stream:
            yield from (stream.read(size) for size in sizes)


def one_line(text: str | None) -> str:
    """A text on one line, whatever line ends the model put into it: output lines belong to input lines."""
    return " ".join((text or "").splitlines())


def _fields(answer: Answer) -> dict[str, Any]:
    """As JSON has it; `item` where outputs are numbered, `truncated` where nothing ended it."""
    left_out = [name for name, usual in (("item", None), ("truncated", False)) if getattr(answer, name) == usual]
    return {name: value for name, value in asdict(answer).items() if name not in left_out}
