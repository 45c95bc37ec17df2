"""Exchange: what all paths share: who asks, what they are refused with, and how answers are put into bytes."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic_core import to_json

from .schemas import Error

CLIENT_LEFT = 499  # nginx's code; only the metrics see it
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


def client(request: Request) -> str:
    """Who asks: those with the same address share what is one client's."""
    return request.client.host if request.client is not None else ""


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_line(fields: dict[str, Any]) -> bytes:
    """JSON, whatever the numbers: what is infinite or no number is null."""
    return to_json(fields, inf_nan_mode="null") + b"\n"


def json_response(fields: dict[str, Any]) -> Response:
    """A response of what was put together from checked parts, without checking it again."""
    return Response(to_json(fields, inf_nan_mode="null"), media_type="application/json")
