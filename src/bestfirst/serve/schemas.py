"""Schemas: what a request may say, and what it gets. The OpenAPI document is made from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from ..decoding import Task
from ..scoring import named_score
from ..search import Answer, Result
from ..strategies import named_strategy
from .limits import Limits

LONGEST_SHOWN, WIDEST_SHOWN = 60, 20  # tokens and beam: a larger search has more events than anybody looks at


class Strict(BaseModel):
    """Nothing is converted, and nothing that is not known is let through: no path or model can be given by a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(value: object) -> object:
    """5.0 is a whole number too: JSON has but one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count(most: int) -> Any:
    """A whole number from 1 to this."""
    return Annotated[int, Field(ge=1, le=most), BeforeValidator(_whole)]


Alpha = Annotated[float, Field(ge=-5, le=5, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class LengthNormalized(Strict):
    """The log-probability divided by N^alpha, N tokens."""

    name: Literal["length-normalized"]
    alpha: Alpha


class GNMT(Strict):
    """The log-probability divided by ((5 + N) / 6)^alpha."""

    name: Literal["gnmt"]
    alpha: Alpha


class LengthReward(Strict):
    """The log-probability plus beta for every token."""

    name: Literal["length-reward"]
    beta: Beta


class BoundedLengthReward(Strict):
    """The log-probability plus beta for each of the first ratio * |input| tokens."""

    name: Literal["bounded-length-reward"]
    beta: Beta
    ratio: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


Parametrized = Annotated[LengthNormalized | GNMT | LengthReward | BoundedLengthReward, Field(discriminator="name")]


class Search(Strict):
    """How to search. What depends on the server's limits is narrowed by `within`."""

    text: str
    beam: int = 5
    nbest: int = 1
    score: Literal["logprob"] | Parametrized = Field("logprob", description="What a translation is worth.")
    max_length: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_whole)] | None = Field(
        None, description="Most tokens of a translation, its end included."
    )

    def task(self, strategy: str) -> Task:
        """The same for the scheduler."""
        options = {} if isinstance(self.score, str) else self.score.model_dump()
        score = named_score(options.pop("name", self.score), **options)
        return Task(named_strategy(strategy, beam=self.beam), score, self.nbest, self.max_length)


class SearchRequest(Search):
    """A text to translate by best-first and by beam search, with a record of both."""

    @classmethod
    def within(cls, limits: Limits) -> type[SearchRequest]:
        """What is allowed within these limits."""
        text = Field(min_length=1, examples=["Wo ist der Bahnhof?"])
        length = Field(LONGEST_SHOWN, description=f"Most tokens of a translation; at most {LONGEST_SHOWN} are shown.")
        narrowed = {
            "text": (_text(limits), text),
            "max_length": (count(LONGEST_SHOWN), length),
            **_widths(min(WIDEST_SHOWN, limits.max_beam)),
        }
        return create_model("SearchRequest", __base__=cls, __doc__=cls.__doc__, **narrowed)


class TranslateRequest(Search):
    """Texts to translate, and how."""

    text: str | list[str]  # type: ignore[assignment]
    strategy: Literal["best-first", "beam"] = Field(
        "best-first", description="beam: the same answers by plain beam search, to compare what they cost."
    )
    stream: bool = Field(False, description="Send each translation as soon as it is certain, a JSON object a line.")

    @classmethod
    def within(cls, limits: Limits) -> type[TranslateRequest]:
        """What is allowed within these limits."""
        text = _text(limits)
        texts = Annotated[list[text], Field(min_length=1, max_length=limits.max_items)]  # type: ignore[valid-type]
        about = f"A text, or a list of up to {limits.max_items}. One of nothing but blanks has no translation."
        either = (text | texts, Field(description=about, examples=["Wo ist der Bahnhof?"]))
        return create_model("TranslateRequest", __base__=cls, __doc__=cls.__doc__, text=either, **_widths(limits.max_beam))

    @property
    def texts(self) -> list[str]:
        """All of them."""
        return [self.text] if isinstance(self.text, str) else self.text


def _widths(most: int) -> dict[str, Any]:
    return {
        "beam": (count(most), Field(min(5, most), description="Hypotheses of each length to keep.")),
        "nbest": (count(most), Field(1, description="How many translations to return.")),
    }


def _text(limits: Limits) -> Any:
    # NUL is in no language, and ends strings in places that are not ours
    return Annotated[str, Field(max_length=limits.max_chars, pattern=r"^[^\u0000]*$")]


# -- what comes back ---------------------------------------------------------------------------------------------------------


class Translation(BaseModel):
    """One hypothesis."""

    text: str | None
    score: float = Field(description="The value it was ranked by.")
    logprob: float = Field(description="The plain sum of log-probabilities.")
    tokens: list[int]

    @classmethod
    def of(cls, answer: Answer) -> Translation:
        return cls.model_construct(**asdict(answer))


class Summary(BaseModel):
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
    """Its fields."""
    counts = {"calls": result.calls, "rows": result.rows, "steps": result.steps}
    return {"status": result.status, "message": result.message, "exact": result.exact, **counts}


class TextResult(Summary):
    """What was found for one text."""

    text: str = Field(description="The best translation; empty where there is none.")
    hypotheses: list[Translation] = Field(description="The n best, the best first.")

    @classmethod
    def of(cls, result: Result) -> TextResult:
        found = [Translation.of(answer) for answer in result.hypotheses]
        return cls.model_construct(text=result.text or "", hypotheses=found, **summary(result))


class TranslateResponse(BaseModel):
    """One result for each text, in order."""

    model: str
    results: list[TextResult]


class Line(BaseModel):
    """One line of a stream: a translation that is certain, or, with `status`, the end of a text, or an error that ends all."""

    index: int | None = Field(None, description="Which text, from 0.")
    rank: int | None = Field(None, description="Of a translation: which place it has for certain, from 1.")
    text: str | None = None
    score: float | None = None
    logprob: float | None = None
    tokens: list[int] | None = None
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
