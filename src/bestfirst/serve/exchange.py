"""Exchange: what the paths share: OpenAPI descriptions, validation of bodies, JSON and streamed responses, error messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic_core import SchemaValidator, to_json
from starlette.exceptions import HTTPException

from .middleware import replay
from .request_queue import Submission
from .schemas import NO_NUL, Error

DESCRIPTIONS = {
    400: "The body is no JSON that can be read, or the server does not answer to this host.",
    401: "The token is missing or wrong.",
    404: "There is no such model, or what is to be allowed is not to be had here.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the server allows.",
    422: "Something in the request is wrong; `detail` names it.",
    429: "The queue is full. Try again after `Retry-After` seconds.",
    503: "The engine has stopped.",
    504: "The deadline has passed.",
}


def error_responses(*codes: int, model: type[Error] = Error) -> dict[int | str, dict[str, Any]]:
    """The error responses of a path, for the OpenAPI document."""
    responses: dict[int | str, dict[str, Any]] = {code: {"model": model, "description": DESCRIPTIONS[code]} for code in codes}
    if 429 in responses:
        responses[429]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return responses


def guarded_paths(token: bool, model: type[Error] = Error) -> APIRouter:
    """A router for paths that ask for the token, if there is one: in the OpenAPI document; `CheckRequests` checks it."""
    if not token:
        return APIRouter()
    bearer = HTTPBearer(auto_error=False, description="The token that the server was started with.")
    return APIRouter(dependencies=[Depends(bearer)], responses=error_responses(401, model=model))


def model_path(answer: dict[str, Any], *codes: int, model: type[Error] = Error) -> dict[str, Any]:
    """FastAPI's options for a path that uses the model: its answer, and the errors that all such paths have and `codes`."""
    errors = error_responses(400, 408, 413, 422, 429, 503, 504, *codes, model=model)
    return {"response_class": Response, "responses": {200: answer, **errors}}


@dataclass
class AnswerBodies:
    """ASGI middleware: the fast path of POST requests. If the function of a path takes (`body`, a pydantic model; the request),
    a valid body is parsed, validated and answered here, in a fraction of FastAPI's time. Any other body goes to FastAPI, which
    says what is wrong. `error_response` makes the response when the function raises one of `errors`."""

    app: Any
    routes: Sequence[APIRoute]
    errors: tuple[type[Exception], ...]
    error_response: Callable[[Request, Exception], Awaitable[Response]]

    def __post_init__(self) -> None:
        self._paths: dict[str, tuple[SchemaValidator, Any]] = {}
        for route in self.routes:
            if model := route.endpoint.__annotations__.get("body"):
                schema = _without_nul_pattern(model.__pydantic_core_schema__)
                self._paths[route.path] = SchemaValidator(schema), route.endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self.app(scope, receive, send)
            return
        validator, function = self._paths[scope["path"]]
        raw = (await receive())["body"]
        try:
            if dict(scope["headers"]).get(b"content-type") != b"application/json" or b"\\u0000" in raw:
                raise ValueError
            body = validator.validate_json(raw)
        except ValueError:
            await self.app(scope, replay(raw, receive), send)
            return
        request = Request(scope, receive, send)
        try:
            response = await function(body, request)
        except self.errors as error:
            response = await self.error_response(request, error)
        await response(scope, receive, send)


def _without_nul_pattern(schema: Any) -> Any:
    """A pydantic-core schema without its checks for NUL characters, which `AnswerBodies` makes faster on the body as a whole."""
    if isinstance(schema, dict):
        return {key: _without_nul_pattern(value) for key, value in schema.items() if (key, value) != ("pattern", NO_NUL)}
    return [_without_nul_pattern(each) for each in schema] if isinstance(schema, list) else schema


class EventStream(StreamingResponse):
    """A streamed response. Its submission is closed when the response ends: the client may leave before the first event is asked
    for, and a generator that was never started runs no `finally` of its own."""

    def __init__(self, submission: Submission, lines: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(lines, media_type=media_type)
        self._submission = submission

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._submission.close()


def client_address(request: Request) -> str:
    """The client in the sense of `FairShare`: requests from one address share one client's rows."""
    return request.client.host if request.client is not None else ""


async def disconnection(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_bytes(fields: Any) -> bytes:
    """Valid JSON for any numbers: infinities and NaN become null."""
    return to_json(fields, inf_nan_mode="null")


def json_line(fields: dict[str, Any]) -> bytes:
    return json_bytes(fields) + b"\n"


def json_response(fields: dict[str, Any] | bytes) -> Response:
    """A JSON response, or one of JSON that is already serialised; without FastAPI's validation, since its parts are valid."""
    return Response(fields if isinstance(fields, bytes) else json_bytes(fields), media_type="application/json")


# -- error messages ------------------------------------------------------------------------------------------------------------

LONGEST_VALUE = 60  # characters of a wrong value that a message quotes
OTHER_TYPE = ("string_type", "list_type", "model_attributes_type")  # the value may be meant for another branch
SCORE = 'score: must be "logprob", or an object with the name and the parameters of another: {"name": "gnmt", "alpha": 0.6}'

ALLOWED = 'allowed: must be a name, or an object with "outputs", "regex", "json_schema" or "grammar": {"outputs": ["yes", "no"]}'


def explain(request: Request, error: Exception) -> str:
    """The message for a request that failed: one line, however long the values in the request."""
    if isinstance(error, RequestValidationError):
        return _explain_type(request.headers.get("content-type", "")) or _explain_fields(error.errors())
    if isinstance(error, HTTPException):
        return _explain_unreadable(error.__cause__) if error.status_code == 400 else str(error.detail)
    return str(error)


def _explain_fields(errors: Sequence[Mapping[str, Any]]) -> str:
    """The message for pydantic's errors: the first one, with the field's name and value. For a value of a union type, that of the
    branch which the value most likely belongs to."""
    error = max(errors, key=lambda each: (each["type"] not in OTHER_TYPE, len(each["loc"])))
    place = ".".join(str(part) for part in error["loc"][1:] if not _is_branch(part))
    if error["type"] == "json_invalid":
        what = f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    elif not place and error["type"] in ("missing", "model_attributes_type"):
        what = "the body must be a JSON object"
    elif place == "score":
        what = SCORE
    elif place.partition(".")[0] == "allowed":
        inside = [each for each in errors if len(each["loc"]) > 3 and each["type"] not in ("missing", "extra_forbidden")]
        what = ".".join(("allowed", *map(str, inside[0]["loc"][3:]))) + f": {_message(inside[0])}" if inside else ALLOWED
    elif place in ("temperature", "top_p"):
        what = f"{place}: outputs are searched for, not sampled; leave it out, got {_quoted(error.get('input'))}"
    else:
        what = f"{place}: {_message(error)}" if place else _message(error)
    return what.encode("utf-8", "replace").decode()


def _explain_unreadable(cause: BaseException | None) -> str:
    """The message for a body that Python's JSON parser fails on."""
    if isinstance(cause, RecursionError):
        what = "it is nested too deeply"
    elif isinstance(cause, UnicodeDecodeError):
        what = f"byte {cause.start} is not UTF-8"
    else:
        what = "a number in it has too many digits"
    return f"the body cannot be read as JSON: {what}; send a JSON object in UTF-8"


def _explain_type(content_type: str) -> str | None:
    """The message for a body whose Content-Type is not JSON; None if it is."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    return f"Content-Type: must be application/json, got {_quoted(content_type)}; curl: -H 'Content-Type: application/json'"


def _is_branch(part: object) -> bool:
    """Whether this part of pydantic's `loc` names a branch of a union type, not a field of the request."""
    return isinstance(part, str) and (part.startswith(("list[", "constrained-", "literal[", "tagged-union[")) or part == "str")


def _message(error: Mapping[str, Any]) -> str:
    kind, value = error["type"], error.get("input")
    if kind == "string_pattern_mismatch":
        return "a text must not contain NUL characters"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    message = error["msg"][0].lower() + error["msg"][1:]
    return message if isinstance(value, (dict, list)) else f"{message}, got {_quoted(value)}"


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
