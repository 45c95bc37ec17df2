"""The FastAPI application: its paths, its middleware, and the playground page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi_swagger import patch_fastapi
from starlette.exceptions import HTTPException

from .. import __version__
from ..page import component
from . import exchange, openai, schemas
from .allowed import ServedConstraints
from .engine_process import EngineProcess
from .engine_thread import EngineThread
from .metrics import Metrics
from .middleware import CheckRequests, Hosts, MeasureRequests
from .request_queue import ClientLeft, DeadlinePassed, QueueFull, RequestQueue, Submission, TooMuch
from .schemas import Limits
from .server import body_seconds
from .work import Certified, EngineStopped

PATHS = openai.PATHS | {"/translate", "/search", "/metrics", "/", "/docs", "/openapi.json", "/health"}
ERRORS = (RequestValidationError, HTTPException, TooMuch, QueueFull, EngineStopped, DeadlinePassed, ClientLeft)
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

ABOUT = """Beam search's answer for a fraction of the model calls. Requests in flight share the forward passes of one model.

Errors are `{"detail": "what is wrong and what to do"}`."""


def create_app(
    engine: EngineThread | EngineProcess,
    limits: Limits,
    *,
    hosts: Hosts,
    token: str | None = None,
    constraints: ServedConstraints | None = None,
) -> FastAPI:
    """The application in front of an engine, which it starts and stops: ready to be run by any ASGI server, in one process."""
    model, queue = engine.model, RequestQueue(engine, limits)
    metrics = Metrics(queue, PATHS)
    queue.on_results = metrics.count_results

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue.open()
        yield
        queue.engine.stop()

    quiet: dict[str, Any] = {"docs_url": None, "redoc_url": None, "swagger_ui_oauth2_redirect_url": None}
    app = FastAPI(title="bestfirst", version=__version__, description=ABOUT, lifespan=lifespan, **quiet)
    patch_fastapi(app, redirect_from_root_to_docs=False)  # Swagger UI is served from here, not from a CDN
    name = getattr(model, "name", type(model).__name__)
    constraints = constraints or ServedConstraints(model)
    paths, openai_paths = exchange.guarded_paths(token is not None), exchange.guarded_paths(token is not None, openai.ApiError)
    _add_translate(paths, name, queue, constraints)
    _add_search(paths, name, queue)
    openai.add_openai(openai_paths, name, queue, constraints)
    _add_state(app, paths, name, queue, metrics)
    app.include_router(paths)
    app.include_router(openai_paths)
    guarded = [route for router in (paths, openai_paths) for route in router.routes if isinstance(route, APIRoute)]
    size, time = limits.max_bytes, body_seconds(limits.deadline)
    app.add_middleware(exchange.AnswerBodies, routes=guarded, errors=ERRORS, error_response=error_response)
    names = frozenset(route.path for route in guarded)
    checks: dict[str, Any] = {"guarded": names, "max_bytes": size, "seconds": time, "error_fields": error_fields}
    app.add_middleware(CheckRequests, hosts=hosts, token=token, **checks)
    app.add_middleware(MeasureRequests, note=metrics.count_request)
    for kind in ERRORS:
        app.add_exception_handler(kind, error_response)
    return app


def _add_translate(paths: APIRouter, model: str, queue: RequestQueue, constraints: ServedConstraints) -> None:
    Body = schemas.TranslateRequest.within(queue.limits)  # noqa: N806
    stream = {"application/x-ndjson": {"schema": schemas.StreamLine.model_json_schema()}}
    head = exchange.json_bytes({"model": model, "results": []}).removesuffix(b"]}")

    @paths.post("/translate", **exchange.model_path({"model": schemas.TranslateResponse, "content": stream}, 404))
    async def translate(body: Body, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text or a list of texts.

        With `"stream": true` the answer is a JSON object a line: each translation as soon as it is certain to have its place, and
        for each text a last line with its `status`.
        """
        decoding = await constraints.using(body.decoding(body.strategy), body.allowed)  # type: ignore[attr-defined]
        texts = [(text, decoding) for text in body.texts]  # type: ignore[attr-defined]
        # Each result is serialised while other texts are searched, so that little is left to do when the last is found.
        how = {"write": schemas.text_result_json, "stream": body.stream}  # type: ignore[attr-defined]
        submission = queue.submit(texts, client=exchange.client_address(request), **how)
        if body.stream:  # type: ignore[attr-defined]
            return exchange.EventStream(submission, stream_lines(submission), "application/x-ndjson")
        return exchange.json_response(head + b",".join(await submission.results(exchange.disconnection(request))) + b"]}")


def _add_search(paths: APIRouter, model: str, queue: RequestQueue) -> None:
    Body = schemas.SearchRequest.within(queue.limits)  # noqa: N806

    @paths.post("/search", **exchange.model_path({"model": schemas.SearchResponse}))
    async def search(body: Body, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text by best-first and by beam search, and return every event of both, for the playground."""
        both = [(body.text, body.decoding(strategy)) for strategy in ("best-first", "beam")]  # type: ignore[attr-defined]
        submission = queue.submit(both, client=exchange.client_address(request), recorded=True)
        results = await submission.results(exchange.disconnection(request))
        best_first, beam = (schemas.text_result(done.result) for done in results)
        events = [done.trace.events for done in results if done.trace is not None]
        return exchange.json_response({"model": model, "best_first": best_first, "beam": beam, "searches": events})


def _add_state(app: FastAPI, paths: APIRouter, model: str, queue: RequestQueue, metrics: Metrics) -> None:
    page = (files(__package__) / "playground.html").read_text(encoding="utf-8").replace("{{component}}", component())
    plain = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/health", responses=exchange.error_responses(503))
    async def health() -> schemas.Health:
        """Whether the server works, and its load. Needs no token."""
        queue.check_engine()
        return schemas.Health(model=model, version=__version__, queue=queue.queued, in_flight=queue.engine.in_flight)

    @paths.get("/metrics", response_class=Response, responses={200: plain})
    async def read_metrics() -> Response:
        """The server's metrics, for Prometheus."""
        return Response(metrics.read(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def playground() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """The response to a request that raised one of `ERRORS`."""
    status, headers = getattr(error, "status_code", 422), getattr(error, "headers", None)
    return JSONResponse(error_fields(request.url.path, status, exchange.explain(request, error)), status, headers)


def error_fields(path: str, status: int, message: str) -> dict[str, Any]:
    """The JSON object of an error."""
    return openai.error_fields(status, message) if path.startswith("/v1/") else {"detail": message}


async def stream_lines(submission: Submission) -> AsyncIterator[bytes]:
    """The lines of a streamed `/translate`: one JSON object for each event, or for the error that ends the stream."""
    try:
        async for event in submission.events():
            if isinstance(event, Certified):
                yield exchange.json_line({"index": event.index, "rank": event.rank, **schemas.translation(event.answer)})
            else:
                yield exchange.json_line({"index": event.index, **schemas.summary(event.result)})
    except (DeadlinePassed, EngineStopped) as error:
        yield exchange.json_line({"detail": str(error)})
