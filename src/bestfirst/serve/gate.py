"""Gate: what is checked of a request before anything looks at it: who sends it, how large it is, whether it arrives at all."""

from __future__ import annotations

import asyncio
import hmac
import json
from time import monotonic
from typing import Any

MOST_READ = 64 << 20  # of a body that is too large, this much is read and thrown away, so that the client hears why
SLOWEST = 30.0  # seconds a body may take to arrive


class Gate:
    """ASGI middleware. `guarded` paths need the token, where there is one."""

    def __init__(self, app: Any, *, max_bytes: int, token: str | None, guarded: frozenset[str]) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.token = token
        self.guarded = guarded

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not self._admits(scope["path"], headers):
            bearer = [(b"www-authenticate", b"Bearer")]
            await refuse(send, 401, "this server asks for a token: send 'Authorization: Bearer TOKEN'", bearer)
            return
        try:
            body = await asyncio.wait_for(self._body(receive), SLOWEST)
        except asyncio.TimeoutError:
            await refuse(send, 408, f"the body did not arrive within {SLOWEST:g} seconds")
            return
        if body is None:
            await refuse(send, 413, f"a body may have {self.max_bytes:,} bytes, this one has more; send less at a time")
            return
        await self.app(scope, replay(body, receive), send)

    def _admits(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.token is None or path not in self.guarded:
            return True
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + self.token.encode())

    async def _body(self, receive: Any) -> bytes | None:
        """The whole body, or None for one that is too large."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            part = message.get("body", b"")  # a client that has left sends nothing more
            more = message.get("more_body", False)
            size += len(part)
            if size <= self.max_bytes:
                parts.append(part)
            elif size > MOST_READ:
                break
        return b"".join(parts) if size <= self.max_bytes else None


def replay(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body in one piece, and then what the connection gives."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def refuse(send: Any, status: int, detail: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Answer with an error."""
    body = json.dumps({"detail": detail}).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


class Watch:
    """ASGI middleware: tells of every response what was asked, how it ended and how long it took."""

    def __init__(self, app: Any, *, note: Any) -> None:
        self.app = app
        self.note = note

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = monotonic(), 500

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            self.note(scope["path"], status, monotonic() - begun)
