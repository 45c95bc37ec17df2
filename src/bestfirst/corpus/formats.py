"""How a result is written: a line of text, an n-best list, a JSON object, or the record with its translation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..search import Answer, Result
from .record import Record


def shown(result: Result, partial: bool) -> list[Answer]:
    """The hypotheses to print: the finished ones; where there are none and `partial` is asked for, the best unfinished one."""
    if not result.hypotheses and partial and result.partial is not None:
        return [result.partial]
    return result.hypotheses


def one_line(text: str | None) -> str:
    """A text on one line, whatever line ends the model put into it: output lines belong to input lines."""
    return " ".join((text or "").splitlines())


def as_text(number: int, result: Result, partial: bool) -> str:
    """The best hypothesis; an empty line where there is none."""
    return "".join(one_line(answer.text) for answer in shown(result, partial)[:1]) + "\n"


def as_nbest(number: int, result: Result, partial: bool) -> str:
    """`i ||| text ||| score` for every hypothesis, i counted from 0, as Moses and Marian write it.

    An input without hypotheses has one entry without text: an empty line (score 0), or one that failed (score -inf).
    """
    entries = [(one_line(answer.text), answer.score) for answer in shown(result, partial)]
    nothing = [("", 0.0 if result.status == "complete" else float("-inf"))]
    return "".join(f"{number - 1} ||| {text} ||| {score:.6f}\n" for text, score in entries or nothing)


def as_json(number: int, result: Result, partial: bool) -> str:
    """One object: the printed text, all hypotheses, what the search cost, and how it ended."""
    printed = shown(result, partial)
    fields: dict[str, Any] = {
        "line": number,
        "text": (printed[0].text or "") if printed else "",
        "hypotheses": [asdict(answer) for answer in result.hypotheses],
        "calls": result.calls,
        "rows": result.rows,
        "steps": result.steps,
        "exact": result.exact,
        "status": result.status,
    }
    if result.message is not None:
        fields["message"] = result.message
    if partial and not result.hypotheses and result.partial is not None:
        fields["partial"] = asdict(result.partial)
    return json.dumps(fields, ensure_ascii=False) + "\n"


def translation(record: Record, result: Result, partial: bool, nbest: int, field: str) -> Any:
    """What goes into a record's new field: the best text, or with `nbest` the list of them; None where there is none."""
    texts: list[str | None] = [answer.text for answer in shown(result, partial)]
    if not texts and result.status == "complete":  # nothing to translate stays what it is
        texts = [record.text if record.fields is None else record.fields[field]]
    return texts if nbest > 1 else next(iter(texts), None)


def as_record(record: Record, value: Any, field: str, into: str) -> str:
    """The record's own fields and its translation."""
    fields = {field: record.text} if record.fields is None else record.fields
    return json.dumps({**fields, into: value}, ensure_ascii=False, default=str) + "\n"
