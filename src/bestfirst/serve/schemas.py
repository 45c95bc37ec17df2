"""Schemas: what a request may say, and what it gets; and what is wrong with one. The OpenAPI document is made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from ..scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, Score
from ..search import Result
from ..settings import Decoding
from .limits import Limits

LONGEST_SHOWN, WIDEST_SHOWN = 60, 20  # tokens and beam: a larger search has more events than anybody looks at


class Strict(BaseModel):
    """Nothing is converted, and nothing that is not known is let through: no path or model can be given by a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


def whole(value: object) -> object:
    """5.0 is a whole number too: JSON has but one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count(most: int) -> Any:
    """A whole number from 1 to this."""
    return Annotated[int, Field(ge=1, le=most), BeforeValidator(whole)]


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


class Outputs(Strict):
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


Allowed = Text | Outputs | Pattern | Schema | ContextFree
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
        return Decoding(strategy=strategy, score=name, score_options=options, **asked)  # type: ignore[arg-type]


class SearchRequest(SearchSettings):
    """A text to translate by best-first and by beam search, with a record of both."""

    @classmethod
    def within(cls, limits: Limits) -> type[SearchRequest]:
        """What is allowed within these limits."""
        text = Field(min_length=1, examples=["Wo ist der Bahnhof?"])
        length = Field(LONGEST_SHOWN, description=f"Most tokens of a translation; at most {LONGEST_SHOWN} are shown.")
        narrowed = {
            "text": (text_within(limits), text),
            "max_length": (count(LONGEST_SHOWN), length),
            **_widths(min(WIDEST_SHOWN, limits.max_beam)),
        }
        return create_model("SearchRequest", __base__=cls, __doc__=cls.__doc__, **narrowed)


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
        return create_model("TranslateRequest", __base__=cls, __doc__=cls.__doc__, text=either, **_widths(limits.max_beam))

    @property
    def texts(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text


def _widths(most: int) -> dict[str, Any]:
    return {
        "beam": (count(most), Field(min(5, most), description="Hypotheses of each length to keep.")),
        "nbest": (count(most), Field(1, description="How many translations to return.")),
    }


def text_within(limits: Limits, least: int = 0) -> Any:
    """A text. NUL is in no language, and ends strings in places that are not ours."""
    return Annotated[str, Field(min_length=least, max_length=limits.max_chars, pattern=r"^[^\u0000]*$")]


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


def summary(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in ResultSummary.model_fields}


class TextResult(ResultSummary):
    """What was found for one text."""

    text: str = Field(description="The best translation; empty where there is none.")
    hypotheses: list[Translation] = Field(description="The n best, the best first.")

    @classmethod
    def of(cls, result: Result) -> TextResult:
        found = [Translation.model_construct(**asdict(answer)) for answer in result.hypotheses]
        return cls.model_construct(text=(result.text or "") if result.hypotheses else "", hypotheses=found, **summary(result))


class TranslateResponse(BaseModel):
    """One result for each text, in order."""

    model: str
    results: list[TextResult]


class StreamLine(BaseModel):
    """One line of a stream: a translation that is certain, or, with `status`, the end of a text, or an error that ends all."""

    index: int | None = Field(None, description="Which text, from 0.")
    rank: int | None = Field(None, description="Of a translation: which place it has for certain, from 1.")
    text: str | None = None
    score: float | None = None
    logprob: float | None = None
    tokens: list[int] | None = None
    truncated: bool | None = None
    item: int | None = None
    status: Literal["complete", "incomplete", "error"] | None = None
    message: str | None = None
    exact: bool | None = None
    calls: int | None = None
    rows: int | None = None
    steps: int | None = None
    detail: str | None = None


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


# -- what is wrong -------------------------------------------------------------------------------------------------------------

LONGEST = 60  # characters of a wrong value that are shown
OTHER_TYPE = ("string_type", "list_type", "literal_error", "model_attributes_type")  # it may have been meant as something else
SCORE = 'score: must be "logprob", or an object with the name and the parameters of another: {"name": "gnmt", "alpha": 0.6}'

ALLOWED = 'allowed: must be a name, or an object with "outputs", "regex", "json_schema" or "grammar": {"outputs": ["yes", "no"]}'


def explain(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of pydantic's errors, with the field's name and its value; where a value may be one of several things, what is
    wrong with it as the likeliest of them.

    Never more than a line, whatever was sent: it goes back to who sent it.
    """
    error = max(errors, key=lambda each: (each["type"] not in OTHER_TYPE, len(each["loc"])))
    place = ".".join(str(part) for part in error["loc"][1:] if not _branch(part))
    if error["type"] == "json_invalid":
        what = f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    elif not place and error["type"] == "missing":
        what = 'the body is missing; send a JSON object: {"text": "..."}'
    elif place == "score":
        what = SCORE
    elif place.partition(".")[0] == "allowed":
        what = ALLOWED
    elif place in ("temperature", "top_p"):
        what = f"{place}: outputs are searched for, not sampled; leave it out, got {_shown(error.get('input'))}"
    else:
        what = f"{place}: {_said(error)}" if place else _said(error)
    return what.encode("utf-8", "replace").decode()


def explain_unreadable(cause: BaseException | None) -> str:
    """Why a body cannot be read, where Python's reader of JSON says so."""
    if isinstance(cause, RecursionError):
        what = "it is nested too deeply"
    elif isinstance(cause, UnicodeDecodeError):
        what = f"byte {cause.start} is not UTF-8"
    else:
        what = "a number in it has too many digits"
    return f"the body cannot be read as JSON: {what}; send a JSON object in UTF-8"


def explain_type(content_type: str) -> str | None:
    """What is wrong with a body that says it is no JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    return f"Content-Type: must be application/json, got {_shown(content_type)}; curl: -H 'Content-Type: application/json'"


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
