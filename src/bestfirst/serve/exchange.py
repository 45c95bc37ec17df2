"""Exchange: what all paths share: who asks, what they are refused with and what is said to be wrong, and how answers are put into
bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic_core import SchemaValidator, to_json
from starlette.exceptions import HTTPException

from .middleware import replay
from .request_queue import Submission
from .schemas import NO_NUL, Error

WHY = {
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


def refusals(*codes: int, model: type[Error] = Error) -> dict[int | str, dict[str, Any]]:
    """What a path answers when it does not do what it is asked, as the OpenAPI document tells it."""
    found: dict[int | str, dict[str, Any]] = {code: {"model": model, "description": WHY[code]} for code in codes}
    if 429 in found:
        found[429]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return found


def bearer(token: bool) -> list[Any]:
    """What the OpenAPI document says of the token; the middleware is who checks it."""
    return [Depends(HTTPBearer(auto_error=False, description="The token that the server was started with."))] if token else []


def of_work(token: bool, *codes: int, model: type[Error] = Error) -> dict[str, Any]:
    """What paths have in common that ask the model."""
    refused = refusals(400, 408, 413, 422, 429, 503, 504, *codes, *((401,) if token else ()), model=model)
    return {"dependencies": bearer(token), "response_class": Response, "responses": refused}


@dataclass
class AnswerBodies:
    """ASGI middleware. Where a path's function takes `asked`, the body, and the request, a body that is as it should be is read,
    checked and answered here, in a fraction of FastAPI's time; anything else is left to FastAPI, which says what is wrong.
    `refuse`: what is said when the function raises one of `refused`."""

    app: Any
    routes: Sequence[Any]
    refused: tuple[type[Exception], ...]
    refuse: Callable[[Request, Exception], Awaitable[Response]]

    def __post_init__(self) -> None:
        functions = {route.path: route.endpoint for route in self.routes if isinstance(route, APIRoute)}
        kinds = {path: each.__annotations__.get("asked") for path, each in functions.items()}
        checks = {path: SchemaValidator(_but_for_nul(kind.__pydantic_core_schema__)) for path, kind in kinds.items() if kind}
        self._paths = {path: (check, functions[path]) for path, check in checks.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self.app(scope, receive, send)
            return
        check, function = self._paths[scope["path"]]
        body = (await receive())["body"]
        try:
            if dict(scope["headers"]).get(b"content-type") != b"application/json" or b"\\u0000" in body:
                raise ValueError
            asked = check.validate_json(body)
        except ValueError:
            await self.app(scope, replay(body, receive), send)
            return
        request = Request(scope, receive, send)
        try:
            response = await function(asked, request)
        except self.refused as error:
            response = await self.refuse(request, error)
        await response(scope, receive, send)


def _but_for_nul(schema: Any) -> Any:
    """What checks the same, but that no text has a NUL: that is seen sooner of a body as a whole."""
    if isinstance(schema, dict):
        return {key: _but_for_nul(value) for key, value in schema.items() if (key, value) != ("pattern", NO_NUL)}
    return [_but_for_nul(each) for each in schema] if isinstance(schema, list) else schema


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


def client(request: Request) -> str:
    """Who asks: those with the same address share what is one client's."""
    return request.client.host if request.client is not None else ""


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_bytes(fields: Any) -> bytes:
    """JSON, whatever the numbers: what is infinite or no number is null."""
    return to_json(fields, inf_nan_mode="null")


def json_line(fields: dict[str, Any]) -> bytes:
    return json_bytes(fields) + b"\n"


def json_response(fields: dict[str, Any] | bytes) -> Response:
    """A response of what was put together from checked parts, without checking it again."""
    return Response(fields if isinstance(fields, bytes) else json_bytes(fields), media_type="application/json")


# -- what is wrong -------------------------------------------------------------------------------------------------------------

LONGEST = 60  # characters of a wrong value that are shown
OTHER_TYPE = ("string_type", "list_type", "literal_error", "model_attributes_type")  # it may have been meant as something else
SCORE = 'score: must be "logprob", or an object with the name and the parameters of another: {"name": "gnmt", "alpha": 0.6}'

ALLOWED = 'allowed: must be a name, or an object with "outputs", "regex", "json_schema" or "grammar": {"outputs": ["yes", "no"]}'


def explain(request: Request, error: Exception) -> str:
    """What is wrong with a request, in never more than a line, whatever was sent: it goes back to who sent it."""
    if isinstance(error, RequestValidationError):
        return _explain_type(request.headers.get("content-type", "")) or _explain_fields(error.errors())
    if isinstance(error, HTTPException):
        return _explain_unreadable(error.__cause__) if error.status_code == 400 else str(error.detail)
    return str(error)


def _explain_fields(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of pydantic's errors, with the field's name and its value; where a value may be one of several things, what is
    wrong with it as the likeliest of them."""
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


def _explain_unreadable(cause: BaseException | None) -> str:
    """Why a body cannot be read, where Python's reader of JSON says so."""
    if isinstance(cause, RecursionError):
        what = "it is nested too deeply"
    elif isinstance(cause, UnicodeDecodeError):
        what = f"byte {cause.start} is not UTF-8"
    else:
        what = "a number in it has too many digits"
    return f"the body cannot be read as JSON: {what}; send a JSON object in UTF-8"


def _explain_type(content_type: str) -> str | None:
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
