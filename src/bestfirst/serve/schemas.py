"""Schemas: what a request may say, and what it gets, within limits. The OpenAPI document is made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError, SchemaSerializer, core_schema

from ..scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, Score
from ..search import Answer, Result
from ..settings import Decoding

CHARACTERS_A_TOKEN = 2  # of an output that may have two tokens for one of the input, as most have by default
NO_NUL = r"^[^\u0000]*$"
LONGEST_SHOWN, WIDEST_SHOWN = 60, 20  # tokens and beam: a larger search has more events than anybody looks at


@dataclass(frozen=True)
class Limits:
    """Whatever goes beyond them is refused at once, with a message that names the limit."""

    max_bytes: int = 1 << 20  # of a request's body
    max_items: int = 128  # texts in a request
    max_chars: int = 5000  # of a text
    max_beam: int = 50
    max_rows: int = 1 << 18  # hypotheses that a request may have to score at worst
    max_queue: int = 512  # texts that are accepted and not done, in flight or waiting
    max_cache_tokens: int = 1 << 15  # held for all texts in flight: some 14 KB each at beam 50, with the embedded model
    deadline: float = 60.0  # seconds a request may take, its body's arrival not counted

    def __post_init__(self) -> None:
        if self.max_items > self.max_queue:
            raise ValueError(f"a request of {self.max_items} texts would never fit into a queue of {self.max_queue}")

    @property
    def few(self) -> int:
        """Requests of more texts than this share half of the queue, so that others always find a place."""
        return max(1, self.max_queue // 256)

    def rows(self, texts: Sequence[tuple[Any, Decoding]]) -> int:
        """What texts may need at worst, as far as can be told before they are read."""
        lengths = [(each.beam, each.max_length, text) for text, each in texts]
        return sum([k * (n if isinstance(n, int) else len(text) // CHARACTERS_A_TOKEN + 10) for k, n, text in lengths])


class Strict(BaseModel):
    """Nothing is converted, and nothing that is not known is let through: no path or model can be given by a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


def whole(value: object) -> object:
    """5.0 is a whole number too: JSON has but one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count(most: int, least: int = 1) -> Any:
    """A whole number from `least` to `most`."""
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(whole)]


def number(least: float, most: float) -> Any:
    return Annotated[float, Field(ge=least, le=most, allow_inf_nan=False)]


def parametrized(kind: type[Score], about: str, **parameters: Any) -> Any:
    """How a request asks for a score: its name, and its parameters within these limits."""
    fields: dict[str, Any] = {"name": (Literal[kind.name], ...), **{name: (limits, ...) for name, limits in parameters.items()}}
    return create_model(kind.__name__, __base__=Strict, __doc__=about, **fields)


Alpha, Beta, Ratio = number(-5, 5), number(0, 100), number(0, 10)
Parametrized: Any = Annotated[
    parametrized(LengthNormalized, "The log-probability divided by N^alpha, N tokens.", alpha=Alpha)
    | parametrized(GNMT, "The log-probability divided by ((5 + N) / 6)^alpha.", alpha=Alpha)
    | parametrized(LengthReward, "The log-probability plus beta for every token.", beta=Beta)
    | parametrized(
        BoundedLengthReward, "The log-probability plus beta for the first ratio * |input| tokens.", beta=Beta, ratio=Ratio
    ),
    Field(discriminator="name"),
]
Text = Annotated[str, Field(min_length=1)]


class OutputList(Strict):
    """One of these texts, and nothing else. `item` of a translation says which."""

    outputs: Annotated[list[Text], Field(min_length=1)]


class Pattern(Strict):
    """Texts that match a regular expression as a whole."""

    regex: Text


class Schema(Strict):
    """JSON of a schema."""

    json_schema: dict[str, Any]


class ContextFree(Strict):
    """What a context-free grammar derives, as Lark writes them."""

    grammar: Text


Allowed = Text | OutputList | Pattern | Schema | ContextFree
ABOUT_ALLOWED = (
    "The name of what the server was started with (--allowed), a list of `outputs`, a `regex`, a `json_schema` or a `grammar`."
)


class SearchSettings(Strict):
    """How to search. What depends on the server's limits is narrowed by `within`."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["score", "length_penalty"]}})
    text: str
    beam: int = 5
    nbest: int = 1
    score: Literal["logprob"] | Parametrized = Field("logprob", description="What a translation is worth.")
    length_penalty: Alpha | None = Field(None, description="Instead of a score: divide by the length to this power.")  # type: ignore[valid-type]
    max_length: count(10_000) | None = Field(None, description="Most tokens of a translation, its end included.")  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _one_score(self) -> SearchSettings:
        if {"score", "length_penalty"} <= self.model_fields_set:
            raise PydanticCustomError("two_scores", "length_penalty is a score of its own, so is score; leave one of them out")
        return self

    def decoding(self, strategy: str) -> Decoding:
        """The same for the engine."""
        options = {"name": self.score} if isinstance(self.score, str) else self.score.model_dump()
        name = options.pop("name")
        asked = {"beam": self.beam, "nbest": self.nbest, "max_length": self.max_length, "length_penalty": self.length_penalty}
        return decoding_of(strategy=strategy, score=name, options=tuple(options.items()), **asked)


@lru_cache(maxsize=256)
def decoding_of(options: tuple[tuple[str, float], ...] = (), **asked: Any) -> Decoding:
    """One object for all requests that ask alike: an engine looks at settings anew if they are not those of the text before.
    `options`: the score's."""
    return Decoding(score_options=dict(options), **asked)


class SearchRequest(SearchSettings):
    """A text to translate by best-first and by beam search, with a record of both."""

    @classmethod
    def within(cls, limits: Limits) -> type[SearchRequest]:
        """What is allowed within these limits."""
        text = Field(min_length=1, examples=["Wo ist der Bahnhof?"])
        length = Field(LONGEST_SHOWN, description=f"Most tokens of a translation; at most {LONGEST_SHOWN} are shown.")
        widths = _widths(min(WIDEST_SHOWN, limits.max_beam))
        return narrowed(cls, text=(text_within(limits), text), max_length=(count(LONGEST_SHOWN), length), **widths)


class TranslateRequest(SearchSettings):
    """Texts to translate, and how."""

    text: str | list[str]  # type: ignore[assignment]
    strategy: Literal["best-first", "beam"] = Field(
        "best-first", description="beam: the same answers by plain beam search, to compare what they cost."
    )
    allowed: Allowed | None = Field(None, description=ABOUT_ALLOWED)
    stream: bool = Field(False, description="Send each translation as soon as it is certain, a JSON object a line.")

    @classmethod
    def within(cls, limits: Limits) -> type[TranslateRequest]:
        """What is allowed within these limits."""
        text = text_within(limits)
        texts = Annotated[list[text], Field(min_length=1, max_length=limits.max_items)]  # type: ignore[valid-type]
        about = f"A text, or a list of up to {limits.max_items}. One of nothing but blanks has no translation."
        either = (text | texts, Field(description=about, examples=["Wo ist der Bahnhof?"]))
        return narrowed(cls, text=either, **_widths(limits.max_beam))

    @property
    def texts(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text


def narrowed(base: type[BaseModel], **fields: Any) -> Any:
    """The same, with these fields in place of its own: as far as the server's limits allow."""
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _widths(most: int) -> dict[str, Any]:
    return {
        "beam": (count(most), Field(min(5, most), description="Hypotheses of each length to keep.")),
        "nbest": (count(most), Field(1, description="How many translations to return.")),
    }


def text_within(limits: Limits, least: int = 0) -> Any:
    """A text. NUL is in no language, and ends strings in places that are not ours."""
    return Annotated[str, Field(min_length=least, max_length=limits.max_chars, pattern=NO_NUL)]


# -- what comes back ---------------------------------------------------------------------------------------------------------


class Translation(BaseModel):
    """One hypothesis."""

    text: str | None
    score: float = Field(description="The value it was ranked by.")
    logprob: float = Field(description="The plain sum of log-probabilities.")
    tokens: list[int]
    truncated: bool = Field(False, description="Whether nothing ended it: it is as long as it may be.")
    item: int | None = Field(None, description="Where only certain outputs were allowed: which it is, from 0.")


class ResultSummary(BaseModel):
    """What a search cost, and how it ended."""

    status: Literal["complete", "incomplete", "error"] = Field(
        description="incomplete: nothing finished within max_length. error: this text cannot be translated, see message."
    )
    message: str | None = None
    exact: bool = Field(description="Whether this is proven to be beam search's answer.")
    calls: int = Field(description="Hypotheses that the search had to score.")
    rows: int = Field(description="Hypotheses that were scored, ahead of need included.")
    steps: int = Field(description="Forward passes that this text took part in.")


class TextResult(ResultSummary):
    """What was found for one text."""

    text: str = Field(description="The best translation; empty where there is none.")
    hypotheses: list[Translation] = Field(description="The n best, the best first.")


# Read from results as they are, neither copied nor checked: this is done for every text, in the thread that all requests share.


def _fields_of(kind: type, shown: type[BaseModel], **parts: Any) -> Any:
    """How the fields that are `shown` are read from objects of a dataclass, in that order."""
    names = [*shown.model_fields]
    fields = [core_schema.dataclass_field(name, parts.get(name, core_schema.any_schema())) for name in names]
    return core_schema.dataclass_schema(kind, core_schema.dataclass_args_schema(kind.__name__, fields), names, slots=True)


def _found(result: Any, _: object) -> str:
    """A hypothesis that did not finish is no translation."""
    return (result.hypotheses[0].text or "") if result.hypotheses else ""


_TEXT = core_schema.plain_serializer_function_ser_schema(_found, is_field_serializer=True)
_PARTS = {
    "text": core_schema.any_schema(serialization=_TEXT),
    "hypotheses": core_schema.list_schema(_fields_of(Answer, Translation)),
}
_WHOLE = SchemaSerializer(_fields_of(Result, TextResult, **_PARTS), core_schema.CoreConfig(ser_json_inf_nan="null"))

translation: Callable[[Answer], dict[str, Any]] = SchemaSerializer(_fields_of(Answer, Translation)).to_python
summary: Callable[[Result], dict[str, Any]] = SchemaSerializer(_fields_of(Result, ResultSummary)).to_python
text_result: Callable[[Result], dict[str, Any]] = _WHOLE.to_python
written: Callable[[Result], bytes] = _WHOLE.to_json
"""A `TextResult` as JSON; what is infinite or no number is null."""


class TranslateResponse(BaseModel):
    """One result for each text, in order."""

    model: str
    results: list[TextResult]


EITHER: dict[str, Any] = {**Translation.model_fields, **ResultSummary.model_fields}
StreamLine = create_model(  # type: ignore[call-overload]
    "StreamLine",
    __doc__="One line of a stream: a translation that is certain; with `status`, the end of a text; or an error that ends all.",
    index=(int | None, Field(None, description="Which text, from 0.")),
    rank=(int | None, Field(None, description="Of a translation: which place it has for certain, from 1.")),
    detail=(str | None, None),
    **{name: (each.annotation | None, None) for name, each in EITHER.items()},
)


class SearchResponse(BaseModel):
    """Both searches: what they found and cost, and every event, as `bestfirst view` shows them."""

    model: str
    best_first: TextResult
    beam: TextResult
    searches: list[list[dict[str, Any]]] = Field(description="The events of best-first and of beam search.")


class Health(BaseModel):
    """The server is well."""

    status: Literal["ok"] = "ok"
    model: str
    version: str
    queue: int = Field(description="Texts accepted and not done.")
    in_flight: int = Field(description="Those of them that share the forward passes.")


class Error(BaseModel):
    """Why a request was not carried out."""

    detail: str
