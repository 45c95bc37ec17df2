"""The paths: what can be asked of the server, and how it is carried out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi_swagger import patch_fastapi
from starlette.exceptions import HTTPException

from .. import __version__
from ..page import component
from . import openai, schemas
from .allowed import ServedConstraints
from .engine_process import EngineProcess
from .engine_thread import EngineThread
from .exchange import AnswerBodies, EventStream, bearer, client, explain, json_bytes, json_line, json_response, left, of_work, refusals
from .metrics import Metrics
from .middleware import CheckRequests, Hosts, MeasureRequests
from .request_queue import ClientLeft, DeadlinePassed, QueueFull, RequestQueue, Submission, TooMuch
from .schemas import Limits
from .server import body_seconds
from .work import Certified, EngineStopped

GUARDED = frozenset({"/translate", "/search", "/metrics"}) | openai.PATHS
PATHS = GUARDED | {"/", "/docs", "/openapi.json", "/health"}
REFUSED = (RequestValidationError, HTTPException, TooMuch, QueueFull, EngineStopped, DeadlinePassed, ClientLeft)
ONLY_OURS = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
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
    """The application, in front of its engine: ready to be run by any ASGI server, in one process."""
    model, queue = engine.model, RequestQueue(engine, limits)
    metrics = Metrics(queue, PATHS)
    queue.on_results = metrics.texts

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue.open()
        yield
        queue.engine.stop()

    quiet: dict[str, Any] = {"docs_url": None, "redoc_url": None, "swagger_ui_oauth2_redirect_url": None}
    app = FastAPI(title="bestfirst", version=__version__, description=ABOUT, lifespan=lifespan, **quiet)
    patch_fastapi(app, redirect_from_root_to_docs=False)  # Swagger UI from this server, not from somebody else's
    size, time = limits.max_bytes, body_seconds(limits.deadline)
    app.add_middleware(AnswerBodies, routes=app.routes, refused=REFUSED, refuse=refuse)
    app.add_middleware(CheckRequests, hosts=hosts, token=token, guarded=GUARDED, max_bytes=size, seconds=time)
    app.add_middleware(MeasureRequests, note=metrics.request)
    name = getattr(model, "name", type(model).__name__)
    constraints = constraints or ServedConstraints(model)
    _add_translate(app, name, queue, token is not None, constraints)
    _add_search(app, name, queue, token is not None)
    openai.add_openai(app, name, queue, token is not None, constraints)
    _add_state(app, name, queue, metrics, token is not None)
    for kind in REFUSED:
        app.add_exception_handler(kind, refuse)
    return app


def _add_translate(app: FastAPI, model: str, queue: RequestQueue, token: bool, constraints: ServedConstraints) -> None:
    Body = schemas.TranslateRequest.within(queue.limits)  # noqa: N806
    shared = of_work(token, 404)
    stream = {"application/x-ndjson": {"schema": schemas.StreamLine.model_json_schema()}}
    shared["responses"][200] = {"model": schemas.TranslateResponse, "content": stream}
    head = json_bytes({"model": model, "results": []}).removesuffix(b"]}")

    @app.post("/translate", **shared)
    async def translate(asked: Body, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text or a list of texts.

        With `"stream": true` the answer is a JSON object a line: each translation as soon as it is certain to have its place, and
        for each text a last line with its `status`.
        """
        decoding = await constraints.using(asked.decoding(asked.strategy), asked.allowed)  # type: ignore[attr-defined]
        texts = [(text, decoding) for text in asked.texts]  # type: ignore[attr-defined]
        # Each is written while others are searched for: there is less to do when the last is found.
        how = {"write": schemas.written, "stream": asked.stream}  # type: ignore[attr-defined]
        submission = queue.submit(texts, client=client(request), **how)
        if asked.stream:  # type: ignore[attr-defined]
            return EventStream(submission, stream_lines(submission), "application/x-ndjson")
        return json_response(head + b",".join(await submission.results(left(request))) + b"]}")


def _add_search(app: FastAPI, model: str, queue: RequestQueue, token: bool) -> None:
    Body = schemas.SearchRequest.within(queue.limits)  # noqa: N806
    shared = of_work(token)
    shared["responses"][200] = {"model": schemas.SearchResponse}

    @app.post("/search", **shared)
    async def search(asked: Body, request: Request) -> Response:  # type: ignore[valid-type]
        """Translate a text by best-first and by beam search, and tell every event of both: what the playground shows."""
        both = [(asked.text, asked.decoding(strategy)) for strategy in ("best-first", "beam")]  # type: ignore[attr-defined]
        found = await queue.submit(both, client=client(request), recorded=True).results(left(request))
        best_first, beam = (schemas.text_result(done.result) for done in found)
        events = [done.trace.events for done in found if done.trace is not None]
        return json_response({"model": model, "best_first": best_first, "beam": beam, "searches": events})


def _add_state(app: FastAPI, model: str, queue: RequestQueue, metrics: Metrics, token: bool) -> None:
    page = (files(__package__) / "playground.html").read_text(encoding="utf-8").replace("{{component}}", component())
    plain = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    shared: dict[str, Any] = {"dependencies": bearer(token), "response_class": Response}

    @app.get("/health", responses=refusals(503))
    async def health() -> schemas.Health:
        """Whether the server does its work, and how much it has to do. Needs no token."""
        queue.check_engine()
        return schemas.Health(model=model, version=__version__, queue=queue.queued, in_flight=queue.engine.in_flight)

    @app.get("/metrics", responses={200: plain, **(refusals(401) if token else {})}, **shared)
    async def read_metrics() -> Response:
        """What the server did, for Prometheus."""
        return Response(metrics.read(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def playground() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": ONLY_OURS})


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """What is said of an error, and its status."""
    status, headers = getattr(error, "status_code", 422), getattr(error, "headers", None)
    if request.url.path in openai.PATHS:
        return openai.refused(status, explain(request, error), headers=headers)
    return JSONResponse({"detail": explain(request, error)}, status, headers)


async def stream_lines(submission: Submission) -> AsyncIterator[bytes]:
    """A line for each event."""
    try:
        async for event in submission.events():
            if isinstance(event, Certified):
                yield json_line({"index": event.index, "rank": event.rank, **schemas.translation(event.answer)})
            else:
                yield json_line({"index": event.index, **schemas.summary(event.result)})
    except (DeadlinePassed, EngineStopped) as error:
        yield json_line({"detail": str(error)})
