"""The paths: what can be asked of the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from fastapi_swagger import patch_fastapi

from .. import __version__
from ..page import component
from .desk import Broken, Busy, Desk, Late
from .engine import Engine
from .gate import Gate, Watch
from .limits import Limits
from .schemas import Error, Health, Line, SearchRequest, SearchResponse, TranslateRequest, TranslateResponse
from .service import Service
from .trouble import explain

GUARDED = frozenset({"/translate", "/search", "/metrics"})
PATHS = GUARDED | {"/", "/docs", "/openapi.json", "/health"}
ONLY_OURS = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

ABOUT = """Beam search's answer for a fraction of the model calls. Requests in flight share the forward passes of one model.

Errors are `{"detail": "what is wrong and what to do"}`."""


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What a path answers when it does not do what it is asked, as the OpenAPI document tells it."""
    why = {
        400: "The body is no JSON that can be read.",
        401: "The token is missing or wrong.",
        408: "The body did not arrive in time.",
        413: "The body is larger than the server allows.",
        422: "Something in the request is wrong; `detail` names it.",
        429: "The queue is full. Try again after `Retry-After` seconds.",
        503: "The engine has stopped.",
        504: "The deadline has passed.",
    }
    found: dict[int | str, dict[str, Any]] = {code: {"model": Error, "description": why[code]} for code in codes}
    if 429 in found:
        found[429]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return found


def create_app(model: Any, limits: Limits, *, token: str | None = None, row_budget: int | None = None) -> FastAPI:
    """The application, with its engine: ready to be run by any ASGI server, in one process."""
    engine = Engine(model, max_beam=limits.max_beam, row_budget=row_budget)
    service = Service(model.name, Desk(engine, limits), PATHS)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.desk.open()
        yield
        engine.stop()

    quiet: dict[str, Any] = {"docs_url": None, "redoc_url": None, "swagger_ui_oauth2_redirect_url": None}
    app = FastAPI(title="bestfirst", version=__version__, description=ABOUT, lifespan=lifespan, **quiet)
    patch_fastapi(app, redirect_from_root_to_docs=False)  # Swagger UI from this server, not from somebody else's
    app.add_middleware(Gate, max_bytes=limits.max_bytes, token=token, guarded=GUARDED)
    app.add_middleware(Watch, note=service.metrics.request)
    _add_work(app, service, limits, token is not None)
    _add_views(app, service, token is not None)
    _tell_errors(app)
    return app


def _bearer(token: bool) -> list[Any]:
    """What the OpenAPI document says of the token; the gate is who checks it."""
    return [Depends(HTTPBearer(auto_error=False, description="The token that the server was started with."))] if token else []


def _add_work(app: FastAPI, service: Service, limits: Limits, token: bool) -> None:
    refused = refusals(400, 408, 413, 422, 429, 503, 504, *((401,) if token else ()))
    stream = {"application/x-ndjson": {"schema": Line.model_json_schema()}}
    ToTranslate, ToSearch = TranslateRequest.within(limits), SearchRequest.within(limits)  # noqa: N806

    @app.post(
        "/translate",
        dependencies=_bearer(token),
        response_class=Response,
        responses={200: {"model": TranslateResponse, "content": stream}, **refused},
    )
    async def translate(asked: ToTranslate, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text or a list of texts.

        With `"stream": true` the answer is a JSON object a line: each translation as soon as it is certain to have its place, and
        for each text a last line with its `status`.
        """
        return await service.translate(asked, request)

    @app.post(
        "/search",
        dependencies=_bearer(token),
        response_class=Response,
        responses={200: {"model": SearchResponse}, **refused},
    )
    async def search(asked: ToSearch, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text by best-first and by beam search, and tell every event of both: what the playground shows."""
        return await service.search(asked, request)


def _add_views(app: FastAPI, service: Service, token: bool) -> None:
    page = (files(__package__) / "playground.html").read_text(encoding="utf-8").replace("{{component}}", component())
    plain = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/health", responses=refusals(503))
    async def health() -> Health:
        """Whether the server does its work, and how much it has to do. Needs no token."""
        return service.health()

    @app.get(
        "/metrics",
        dependencies=_bearer(token),
        response_class=Response,
        responses={200: plain, **(refusals(401) if token else {})},
    )
    async def metrics() -> Response:
        """What the server did, for Prometheus."""
        return Response(service.metrics.read(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def playground() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": ONLY_OURS})


def _tell_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": explain(error.errors())}, 422)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 429, {"Retry-After": str(error.retry_after)})

    @app.exception_handler(Late)
    async def late(request: Request, error: Late) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 504)

    @app.exception_handler(Broken)
    async def broken(request: Request, error: Broken) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)
