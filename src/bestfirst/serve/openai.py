"""The paths of OpenAI's API, for its clients: completions and chat completions by search. Nothing is sampled."""

from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ..search import Answer
from ..settings import Decoding
from . import exchange
from .allowed import ServedConstraints
from .request_queue import DeadlinePassed, RequestQueue, Submission
from .schemas import ABOUT_ALLOWED, Allowed, Alpha, Error, Schema, Strict, count, decoding_of, narrowed, text_within
from .work import Certified, Done, EngineStopped

PATHS = frozenset({"/v1/models", "/v1/completions", "/v1/chat/completions"})
NOT_SAMPLED = "Outputs are searched for, not sampled: only 0 and 1 are known, and make no difference."
NO_PENALTY = "Only 0 is known, which is none."

ONE_OF: dict[str, Any] = {
    "allowed": {"not": {"type": "null"}},
    "response_format": {"type": "object", "properties": {"type": {"const": "json_schema"}}, "required": ["type"]},
}
"""JSON schema of the rule that `_one_constraint` checks: a request may not have both of these."""

Unsampled: Any = count(1, least=0)
StopString = Annotated[str, Field(min_length=1, max_length=100)]


class ErrorObject(BaseModel):
    """An error as OpenAI's clients read it."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ApiError(Error):
    """Why a request was not carried out, in this server's form and in OpenAI's."""

    error: ErrorObject | None = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class NamedSchema(BaseModel):
    """A JSON schema as OpenAI's clients send it; its name makes no difference."""

    written: dict[str, Any] = Field(alias="schema")


class SchemaFormat(Strict):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class StreamOptions(Strict):
    """What a stream tells beside the outputs."""

    include_usage: bool = Field(False, description="Send a last chunk with the number of tokens, and no output.")


class SearchedRequest(Strict):
    """The fields of both kinds of requests: OpenAI's, and `beam_width`, `min_tokens`, `length_penalty` and `allowed`."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": [*ONE_OF], "properties": ONE_OF}})
    model: str | None = Field(None, description="The model's name, as /v1/models has it; there is only one.")
    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    max_tokens: count(10_000) | None = Field(None, description="Most tokens to write.")  # type: ignore[valid-type]
    min_tokens: count(10_000, least=0) = Field(0, description="Tokens before the end may come.")  # type: ignore[valid-type]
    length_penalty: Alpha = Field(0.0, description="Log-probabilities are divided by the length to this power.")
    stop: StopString | Annotated[list[StopString], Field(max_length=8)] | None = Field(
        None, description="Texts that end an output; they are not part of it."
    )
    stream: bool | None = Field(False, description="Send server-sent events: each output as soon as it is certain.")
    stream_options: StreamOptions | None = Field(None, description="Without `stream`, it makes no difference.")
    allowed: Allowed | None = Field(None, description=ABOUT_ALLOWED)
    response_format: Annotated[TextFormat | SchemaFormat, Field(discriminator="type")] | None = Field(
        None, description="JSON of a schema, as OpenAI's clients ask for it: the same as `allowed` with a `json_schema`."
    )
    temperature: Unsampled | None = Field(None, description=NOT_SAMPLED)
    top_p: Unsampled | None = Field(None, description=NOT_SAMPLED)
    frequency_penalty: count(0, least=0) | None = Field(None, description=NO_PENALTY)  # type: ignore[valid-type]
    presence_penalty: count(0, least=0) | None = Field(None, description=NO_PENALTY)  # type: ignore[valid-type]
    seed: int | None = Field(None, description="Makes no difference: outputs are the same every time.")
    user: str | None = None

    @model_validator(mode="after")
    def _one_constraint(self) -> "SearchedRequest":
        if self.allowed is not None and isinstance(self.response_format, SchemaFormat):
            message = "response_format says what is allowed, so does allowed; leave one of them out"
            raise PydanticCustomError("two_constraints", message)
        return self

    @property
    def constraint(self) -> Any:
        """The constraint of the request, as `ServedConstraints.using` takes it."""
        if isinstance(self.response_format, SchemaFormat):
            return Schema(json_schema=self.response_format.json_schema.written)
        return self.allowed

    def decoding(self, rows: int) -> Decoding:
        """The settings for the engine. The beam is the largest of `beam_width`, `best_of` and `n`; at least 5 if only `n` is
        given. Outputs are truncated, and marked so, where a prompt would need more than `rows` hypotheses."""
        beam = max(self.beam_width or 0, self.best_of or 0, self.n) if self.beam_width or self.best_of else max(5, self.n)
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        most = max(1, min(self.tokens, rows // beam))
        settings = {"beam": beam, "nbest": self.n, "max_length": most, "min_length": self.min_tokens, "stop_strings": strings}
        return decoding_of(length_penalty=self.length_penalty or None, accept_truncated=True, **settings)

    @property
    def tokens(self) -> int:
        """Most tokens to write."""
        return self.max_tokens or 16  # OpenAI's default


class CompletionRequest(SearchedRequest):
    """Prompts to complete."""

    prompt: str | list[str]

    @property
    def inputs(self) -> list[Any]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """A message of a conversation. Its parts are joined by line breaks."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": "\n".join(parts)}


class ChatRequest(SearchedRequest):
    """A conversation to answer."""

    messages: list[Message]
    max_completion_tokens: count(10_000) | None = Field(  # type: ignore[valid-type]
        None, description="Most tokens to write; `max_tokens` by its newer name."
    )

    @property
    def inputs(self) -> list[Any]:
        return [[message.plain for message in self.messages]]

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 128


# -- responses ---------------------------------------------------------------------------------------------------------------


class Usage(BaseModel):
    """The number of tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(BaseModel):
    """One output; `text` of a completion, `message` of a conversation."""

    index: int
    text: str | None = None
    message: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None
    score: float | None = Field(None, description="The value it was ranked by.")


class Completion(BaseModel):
    """The response to both kinds of requests."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


def _choice(index: int, answer: Answer, chat: str | None) -> dict[str, Any]:
    """`chat`: the field of a conversation's answer, "message", or "delta" in a stream; None for a completion."""
    text, finish = answer.text or "", "length" if answer.truncated else "stop"
    output = {chat: {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": index, **output, "finish_reason": finish, "logprobs": None}


def _usage(texts: Sequence[Done]) -> dict[str, int]:
    read = sum(done.prompt_tokens for done in texts)
    written = sum(len(answer.tokens) for done in texts for answer in done.result.hypotheses)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def _events(submission: Submission, head: dict[str, Any], body: SearchedRequest, chat: bool) -> AsyncIterator[bytes]:
    """Server-sent events: a chunk for each output, as soon as it is certain to have its rank; the usage last, if asked for."""
    done = []
    try:
        async for event in submission.events():
            if isinstance(event, Certified):
                choice = _choice(event.index * body.n + event.rank - 1, event.answer, "delta" if chat else None)
                yield _event({**head, "choices": [choice]})
                continue
            done.append(event)
            if event.result.status == "error":
                yield _event({"error": ErrorObject(message=event.result.message or "").model_dump()})
        if body.stream_options and body.stream_options.include_usage:
            yield _event({**head, "choices": [], "usage": _usage(done)})
    except (DeadlinePassed, EngineStopped) as error:
        yield _event({"error": ErrorObject(message=str(error), type="server_error").model_dump()})
    yield b"data: [DONE]\n\n"


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + exchange.json_line(fields) + b"\n"


# -- the paths ---------------------------------------------------------------------------------------------------------------


def add_openai(paths: APIRouter, name: str, queue: RequestQueue, constraints: ServedConstraints) -> None:
    """Add the paths; that of conversations only if the model has a chat template."""
    started, limits = int(time()), queue.limits

    async def answer(body: Any, request: Request, chat: bool) -> Response:
        if body.model not in (None, name):
            fields = error_fields(404, f"there is no model {body.model!r:.60}; this server has {name!r}", "model")
            return JSONResponse(fields, 404)
        decoding = await constraints.using(body.decoding(limits.max_rows // len(body.inputs)), body.constraint)
        texts = [(each, decoding) for each in body.inputs]
        submission = queue.submit(texts, client=exchange.client_address(request), stream=bool(body.stream), blanks=True)
        kind, identity = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        head = {"id": f"{identity}-{uuid4().hex}", "created": int(time()), "model": name, "object": kind}
        if body.stream:
            head["object"] = "chat.completion.chunk" if chat else kind
            return exchange.EventStream(submission, _events(submission, head, body, chat), "text/event-stream")
        done = await submission.results(exchange.disconnection(request))
        results = [each.result for each in done]
        for result in results:
            if result.status == "error":
                return JSONResponse(error_fields(422, result.message or "the prompt cannot be completed"), 422)
        choices = [
            {**_choice(i * body.n + rank, each, "message" if chat else None), "score": each.score}
            for i, result in enumerate(results)
            for rank, each in enumerate(result.hypotheses)
        ]
        return exchange.json_response({**head, "choices": choices, "usage": _usage(done)})

    event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    completion = {"model": Completion, "content": {"text/event-stream": {"schema": event}}}
    shared = exchange.model_path(completion, 404, model=ApiError)
    text, most = text_within(limits, 1), count(limits.max_beam)
    one_or_more = Annotated[most | None, AfterValidator(lambda n: n or 1)]  # type: ignore[valid-type]
    widths = {
        "n": (one_or_more, Field(1, description="Outputs of each prompt: the best, the second best and so on.")),
        "best_of": (most | None, Field(None, description="How many hypotheses compete: a beam at least as wide as this.")),
        "beam_width": (most | None, Field(None, description="Hypotheses of each length to keep; 5 where nothing says.")),
    }
    texts = Annotated[list[text], Field(min_length=1, max_length=limits.max_items)]  # type: ignore[valid-type]
    prompt = (text | texts, Field(examples=["Once upon a time"]))
    Prompts = narrowed(CompletionRequest, prompt=prompt, **widths)  # noqa: N806

    @paths.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model that is served, as OpenAI's clients ask for it."""
        return {"object": "list", "data": [{"id": name, "object": "model", "created": started, "owned_by": "bestfirst"}]}

    @paths.post("/v1/completions", **shared)
    async def completions(body: Prompts, request: Request) -> Response:  # type: ignore[valid-type]
        """Go on with prompts, as OpenAI's API has it: the n best outputs of each, best first."""
        return await answer(body, request, chat=False)

    if not queue.engine.model.chats:

        @paths.post("/v1/chat/completions", include_in_schema=False)
        async def no_chat() -> Response:
            return JSONResponse(error_fields(404, f"model {name!r} has no chat template; use /v1/completions"), 404)

        return
    few = Field(min_length=1, max_length=limits.max_items)
    part = narrowed(TextPart, text=(text_within(limits), ...))
    message = narrowed(Message, content=(text_within(limits) | Annotated[list[part], few], ...))  # type: ignore[valid-type]
    messages = Annotated[list[message], few]  # type: ignore[valid-type]
    Chat = narrowed(ChatRequest, messages=(messages, ...), **widths)  # noqa: N806

    @paths.post("/v1/chat/completions", **shared)
    async def chat_completions(body: Chat, request: Request) -> Response:  # type: ignore[valid-type]
        """Answer a conversation, as OpenAI's API has it, by the model's own chat template."""
        return await answer(body, request, chat=True)


def error_fields(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in this server's form and in OpenAI's, which its clients show."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"detail": message, "error": ErrorObject(message=message, type=kind, param=param).model_dump()}
