"""Row: what one setting made of one line, and what it cost. Tables and plots are functions of rows and of nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .setting import Setting

KIND = "bestfirst bench row"


class Key(NamedTuple):
    """What a row is the result of: never computed twice for one file of rows."""

    signature: str
    line: int


@dataclass(frozen=True)
class Row:
    """One line of the text under one setting.

    `score` is what the output was ranked by; None, like `output`, where nothing finished within n_max. `least` is the number of
    calls that no exact search can do without (`certificate.py`), where it is known. `seconds` is the time since the row before
    was done: the mean over rows is what a line took, and where each is decoded alone, a row's is its own.
    """

    signature: str
    model: str
    text: str
    setting: Setting
    line: int
    source: str
    reference: str | None
    source_length: int
    output: str | None
    length: int  # tokens of the output, EOS included
    score: float | None
    calls: int
    lm_calls: int
    rows: int
    steps: int
    exact: bool
    seconds: float
    device: str
    date: str
    least: int | None = None

    @property
    def key(self) -> Key:
        return Key(self.signature, self.line)

    @property
    def surprise(self) -> float | None:
        """Minus the score of a token, on average: how uncertain the model was of its output."""
        return None if self.score is None else -self.score / self.length

    def dump(self) -> str:
        """As a line of JSON."""
        fields = {"kind": KIND, **asdict(self), "setting": self.setting.json()}
        return json.dumps(fields, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, text: str | bytes) -> Row:
        """The row of this line. ValueError if it is none."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("kind") != KIND:
                raise KeyError("kind")
            return cls(**{**fields, "setting": Setting(**fields["setting"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a row that bestfirst bench wrote") from error
