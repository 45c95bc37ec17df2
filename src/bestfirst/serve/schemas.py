"""Schemas of requests and responses, within the server's limits. The OpenAPI document is made from them."""

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

CHARACTERS_A_TOKEN = 2  # to estimate `max_length` from a text: by default most models write up to two tokens for one they read
NO_NUL = r"^[^\u0000]*$"
LONGEST_SHOWN, WIDEST_SHOWN = 60, 20  # tokens and beam of `/search`: a larger search has more events than a page can show


@dataclass(frozen=True)
class Limits:
    """The server's limits. A request beyond one of them is refused at once, with a message that names the limit."""

    max_bytes: int = 1 << 20  # of a request's body
    max_items: int = 128  # texts in a request
    max_chars: int = 5000  # of a text
    max_beam: int = 50
    max_rows: int = 1 << 18  # hypotheses that a request can need at most, by `rows`
    max_queue: int = 512  # texts that are accepted and not done, in flight or waiting
    max_cache_tokens: int = 1 << 15  # of KV cache for all texts in flight: some 14 KB each at beam 50, with the embedded model
    deadline: float = 60.0  # seconds a request may take, its body's arrival not counted

    def __post_init__(self) -> None:
        if self.max_items > self.max_queue:
            raise ValueError(f"a request of {self.max_items} texts would never fit into a queue of {self.max_queue}")

    @property
    def few(self) -> int:
        """Requests of more texts than this are large: two or more of them get half of the queue together, so that small ones find
        a place. One alone may exceed that half."""
        return max(1, self.max_queue // 256)

    def rows(self, texts: Sequence[tuple[Any, Decoding]]) -> int:
        """An upper estimate of the hypotheses that texts need: beam * max_length, the latter by the number of characters where
        the settings have none, because texts are not tokenised yet."""
        lengths = [(each.beam, each.max_length, text) for text, each in texts]
        return sum([k * (n if isinstance(n, int) else len(text) // CHARACTERS_A_TOKEN + 10) for k, n, text in lengths])


class Strict(BaseModel):
    """No value is converted and no unknown field accepted: a request cannot name a path or a model."""

    model_config = ConfigDict(extra="forbid", strict=True)


def integral(value: object) -> object:
    """5.0 as the int 5: JSON has only one type of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count(most: int, least: int = 1) -> Any:
    """The type of an integer from `least` to `most`."""
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(integral)]


def number(least: float, most: float) -> Any:
    return Annotated[float, Field(ge=least, le=most, allow_inf_nan=False)]


def parametrized(kind: type[Score], about: str, **parameters: Any) -> Any:
    """The model of a score in a request: its name, and its parameters, each of a type that limits it."""
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
    """Texts that a regular expression matches as a whole."""

    regex: Annotated[str, Field(min_length=1, max_length=4000)]


class Schema(Strict):
    """JSON that a schema describes."""

    json_schema: dict[str, Any]


class ContextFree(Strict):
    """Texts that a context-free grammar, in Lark's notation, derives."""

    grammar: Text


Allowed = Text | OutputList | Pattern | Schema | ContextFree
ABOUT_ALLOWED = (
    "The name of what the server was started with (--allowed), a list of `outputs`, a `regex`, a `json_schema` or a `grammar`."
)


class SearchSettings(Strict):
    """The settings that all searches have. `within` of the subclasses restricts them to the server's limits."""

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
        """The settings for the engine."""
        options = {"name": self.score} if isinstance(self.score, str) else self.score.model_dump()
        name = options.pop("name")
        settings = {"beam": self.beam, "nbest": self.nbest, "max_length": self.max_length, "length_penalty": self.length_penalty}
        return decoding_of(strategy=strategy, score=name, options=tuple(options.items()), **settings)


@lru_cache(maxsize=256)
def decoding_of(options: tuple[tuple[str, float], ...] = (), **settings: Any) -> Decoding:
    """One `Decoding` object for the same settings: an engine checks every new object. `options`: the score's."""
    return Decoding(score_options=dict(options), **settings)


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
    """A subclass of the same name, with these fields, restricted to the server's limits, in place of its own."""
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _widths(most: int) -> dict[str, Any]:
    return {
        "beam": (count(most), Field(min(5, most), description="Hypotheses of each length to keep.")),
        "nbest": (count(most), Field(1, description="How many translations to return.")),
    }


def text_within(limits: Limits, least: int = 0) -> Any:
    """The type of a text. Without NUL: it is in no language, and other software may take it for the end of the string."""
    return Annotated[str, Field(min_length=least, max_length=limits.max_chars, pattern=NO_NUL)]


# -- responses ---------------------------------------------------------------------------------------------------------------


class Translation(BaseModel):
    """A translation, with its scores."""

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
    """The result of one text."""

    text: str = Field(description="The best translation; empty where there is none.")
    hypotheses: list[Translation] = Field(description="The n best, the best first.")


# Serialised straight from `Result`, without a copy or validation: this runs for every text, in the event loop's thread.


def _fields_of(kind: type, shown: type[BaseModel], **parts: Any) -> Any:
    """The pydantic-core schema that serialises a dataclass with the fields of the model `shown`, in that order."""
    names = [*shown.model_fields]
    fields = [core_schema.dataclass_field(name, parts.get(name, core_schema.any_schema())) for name in names]
    return core_schema.dataclass_schema(kind, core_schema.dataclass_args_schema(kind.__name__, fields), names, slots=True)


def _best_text(result: Any, _: object) -> str:
    """The best translation; not a partial hypothesis, which is no translation."""
    return (result.hypotheses[0].text or "") if result.hypotheses else ""


_TEXT = core_schema.plain_serializer_function_ser_schema(_best_text, is_field_serializer=True)
_PARTS = {
    "text": core_schema.any_schema(serialization=_TEXT),
    "hypotheses": core_schema.list_schema(_fields_of(Answer, Translation)),
}
_WHOLE = SchemaSerializer(_fields_of(Result, TextResult, **_PARTS), core_schema.CoreConfig(ser_json_inf_nan="null"))

translation: Callable[[Answer], dict[str, Any]] = SchemaSerializer(_fields_of(Answer, Translation)).to_python
summary: Callable[[Result], dict[str, Any]] = SchemaSerializer(_fields_of(Result, ResultSummary)).to_python
text_result: Callable[[Result], dict[str, Any]] = _WHOLE.to_python
text_result_json: Callable[[Result], bytes] = _WHOLE.to_json
"""A `TextResult` as JSON; infinities and NaN become null."""


class TranslateResponse(BaseModel):
    """One result for each text, in order."""

    model: str
    results: list[TextResult]


LINE_FIELDS: dict[str, Any] = {**Translation.model_fields, **ResultSummary.model_fields}
StreamLine = create_model(  # type: ignore[call-overload]
    "StreamLine",
    __doc__="One line of a stream: a translation that is certain; with `status`, the end of a text; or an error that ends all.",
    index=(int | None, Field(None, description="Which text, from 0.")),
    rank=(int | None, Field(None, description="Of a translation: which place it has for certain, from 1.")),
    detail=(str | None, None),
    **{name: (each.annotation | None, None) for name, each in LINE_FIELDS.items()},
)


class SearchResponse(BaseModel):
    """Both searches: their results and costs, and every event, as `bestfirst view` shows them."""

    model: str
    best_first: TextResult
    beam: TextResult
    searches: list[list[dict[str, Any]]] = Field(description="The events of best-first and of beam search.")


class Health(BaseModel):
    """The state of a server that works."""

    status: Literal["ok"] = "ok"
    model: str
    version: str
    queue: int = Field(description="Texts accepted and not done.")
    in_flight: int = Field(description="Those of them that share the forward passes.")


class Error(BaseModel):
    """Why a request was not carried out."""

    detail: str
