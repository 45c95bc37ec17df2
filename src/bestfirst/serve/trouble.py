"""Trouble: what is wrong with a request, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONGEST = 60  # characters of a wrong value that are shown
OTHER_TYPE = ("string_type", "list_type", "literal_error", "model_attributes_type")  # it may have been meant as something else
SCORE = 'score: must be "logprob", or an object with the name and the parameters of another: {"name": "gnmt", "alpha": 0.6}'


def explain(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of pydantic's errors, with the field's name and its value; where a value may be one of several things, what is
    wrong with it as the likeliest of them.

    Never more than a line, whatever was sent: it goes back to who sent it.
    """
    error = max(errors, key=lambda each: (each["type"] not in OTHER_TYPE, len(each["loc"])))
    place = ".".join(str(part) for part in error["loc"][1:] if not _branch(part))
    if error["type"] == "json_invalid":
        what = f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    elif place == "score":
        what = SCORE
    else:
        what = f"{place}: {_said(error)}" if place else _said(error)
    return what.encode("utf-8", "replace").decode()


def _branch(part: object) -> bool:
    """Whether this part of a place names one of the types a value might have, not a field of the request."""
    return isinstance(part, str) and (part.startswith(("list[", "constrained-", "literal[", "tagged-union[")) or part == "str")


def _said(error: Mapping[str, Any]) -> str:
    kind, value = error["type"], error.get("input")
    if kind == "string_pattern_mismatch":
        return "a text must not contain NUL characters"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    said = error["msg"][0].lower() + error["msg"][1:]
    return said if isinstance(value, (dict, list)) else f"{said}, got {_shown(value)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
