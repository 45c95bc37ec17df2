"""Service: how a request is carried out, from what it asks to what it gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from .. import __version__
from .desk import Broken, Desk, Late, Ticket
from .engine import Certified, Done
from .metrics import Metrics
from .schemas import Health, SearchRequest, SearchResponse, TextResult, TranslateRequest, TranslateResponse, summary

CLIENT_LEFT = 499  # nginx's code; only the metrics see it


class Service:
    """One model's."""

    def __init__(self, model: str, desk: Desk, paths: frozenset[str]) -> None:
        self.model = model
        self.desk = desk
        self.metrics = Metrics(desk, paths)

    async def translate(self, asked: TranslateRequest, request: Request) -> Response:
        """A result for each text, or a stream of lines."""
        task = asked.task(asked.strategy)
        beam = asked.beam if asked.strategy == "best-first" else None
        ticket = self.desk.accept([(text, task) for text in asked.texts], stream=asked.stream)
        if asked.stream:
            return StreamingResponse(self._lines(ticket, beam), media_type="application/x-ndjson")
        found = await self._run(ticket, request, [beam] * len(asked.texts))
        if found is None:
            return Response(status_code=CLIENT_LEFT)
        results = [TextResult.of(done.result) for done in found]
        return written(TranslateResponse.model_construct(model=self.model, results=results))

    async def search(self, asked: SearchRequest, request: Request) -> Response:
        """Both searches of one text, with their events."""
        both = [(asked.text, asked.task(strategy)) for strategy in ("best-first", "beam")]
        found = await self._run(self.desk.accept(both, traced=True), request, [asked.beam, None])
        if found is None:
            return Response(status_code=CLIENT_LEFT)
        best_first, beam = (TextResult.of(done.result) for done in found)
        events = [done.trace.events for done in found if done.trace is not None]
        return written(SearchResponse.model_construct(model=self.model, best_first=best_first, beam=beam, searches=events))

    def health(self) -> Health:
        """How it is."""
        if not self.desk.engine.alive:
            raise Broken("the engine has stopped; start the server again")
        return Health(model=self.model, version=__version__, queue=self.desk.queued, in_flight=self.desk.engine.in_flight)

    async def _run(self, ticket: Ticket, request: Request, beams: Sequence[int | None]) -> list[Done] | None:
        """All results of an order, or None for a client that has left."""
        try:
            found = await ticket.done(left(request))
        finally:
            ticket.close()
        for done, beam in zip(found or [], beams, strict=False):
            self.metrics.text(done.result, beam)
        return found

    async def _lines(self, ticket: Ticket, beam: int | None) -> AsyncIterator[str]:
        try:
            async for event in ticket.events():
                fields: dict[str, Any] = {"index": event.index}
                if isinstance(event, Certified):
                    fields |= {"rank": event.rank, **asdict(event.answer)}
                else:
                    self.metrics.text(event.result, beam)
                    fields |= summary(event.result)
                yield json.dumps(fields, ensure_ascii=False) + "\n"
        except (Late, Broken) as error:
            yield json.dumps({"detail": str(error)}) + "\n"
        finally:
            ticket.close()


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def written(answer: Any) -> Response:
    """A response of what was put together from checked parts, without checking it again."""
    return Response(answer.model_dump_json(), media_type="application/json")
