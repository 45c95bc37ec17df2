"""ASGI middleware: checks of host, token and body size before a request is parsed; metrics of every response."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from typing import Any

MOST_DISCARDED = 64 << 20  # bytes of a too large body that are read and discarded, so that the client gets to read the response
DISCARD_SECONDS = 5.0  # that this may take


class Hosts:
    """The host names that a server answers to. Protects against DNS rebinding: a web page of another name, pointed at this
    address, could otherwise make a browser send requests here.

    A numeric address in the `Host` header cannot be rebound, so a server that is bound to all addresses accepts any address.
    """

    def __init__(self, bound: str, allowed: Collection[str] = ()) -> None:
        self.anywhere = ip_address(bound).is_unspecified
        self.loopback = ip_address(bound).is_loopback
        own = {socket.gethostname(), socket.getfqdn()} if self.anywhere else {bound}
        local = {"localhost", "127.0.0.1", "::1"} if self.anywhere or self.loopback else set()
        self.names = {name.lower().strip("[]") for name in {*own, *local, *allowed}}

    def __contains__(self, header: str) -> bool:
        """Whether the value of a `Host` header, with or without a port, is one of these names."""
        name = header.lower()
        name = name[1:].split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        if self.anywhere:
            with suppress(ValueError):
                return bool(ip_address(name))
        return name in self.names


@dataclass
class CheckRequests:
    """ASGI middleware. Refuses requests to other hosts (400), requests to `guarded` paths without the token, if there is one
    (401), and bodies of more than `max_bytes` (413) or that take longer than `seconds` to arrive (408). HEAD is passed on as
    GET: the server that runs the application leaves out the body."""

    app: Any
    hosts: Hosts
    token: str | None
    guarded: frozenset[str]
    max_bytes: int
    seconds: float
    error_fields: Callable[[str, int, str], dict[str, Any]]  # of a path, a status code and a message

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host not in self.hosts:
            detail = f"Host: this server does not answer to {host[:60]!r}; whoever runs it can allow that name"
            await self._reject(scope, send, 400, detail)
        elif not self._admits(scope["path"], headers):
            bearer = (b"www-authenticate", b"Bearer")
            await self._reject(scope, send, 401, "this server asks for a token: send 'Authorization: Bearer TOKEN'", bearer)
        elif int(headers.get(b"content-length", 0)) > self.max_bytes:
            await self._refuse_large(scope, receive, send)
        else:
            await self._read({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)

    def _admits(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.token is None or path not in self.guarded:
            return True
        scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(sent, self.token.encode())

    async def _read(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray()
        try:
            too_large = await asyncio.wait_for(read_into(body, receive, self.max_bytes), self.seconds)
        except asyncio.TimeoutError:
            await self._reject(scope, send, 408, f"the body did not arrive within {self.seconds:g} seconds", CLOSE)
            return
        if too_large:
            await self._refuse_large(scope, receive, send)
        else:
            await self.app(scope, replay(bytes(body), receive), send)

    async def _refuse_large(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the error at once, then read on for a while before the connection is closed: a client that is still sending does
        not read yet, and would see a reset instead of the response."""
        detail = f"a body may have {self.max_bytes:,} bytes, this one has more; send less at a time"
        await self._reject(scope, send, 413, detail, CLOSE, more_body=True)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read_into(None, receive, MOST_DISCARDED), DISCARD_SECONDS)
        await send({"type": "http.response.body", "body": b""})

    async def _reject(
        self, scope: Any, send: Any, status: int, detail: str, *headers: tuple[bytes, bytes], more_body: bool = False
    ) -> None:
        body = json.dumps(self.error_fields(scope["path"], status, detail)).encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
        await send({"type": "http.response.body", "body": body, "more_body": more_body})


CLOSE = (b"connection", b"close")


async def read_into(body: bytearray | None, receive: Any, most: int) -> bool:
    """Append a request's body to `body`, or discard it if that is None. Stops, and returns True, after more than `most` bytes."""
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        part = message.get("body", b"")  # missing, as `more_body` is, if the client has disconnected
        more = message.get("more_body", False)
        size += len(part)
        if body is not None:
            body += part
    return size > most


def replay(body: bytes, receive: Any) -> Any:
    """An ASGI `receive` for a body that was already read: first the body in one message, then what the connection sends."""
    replayed = False

    async def receive_again() -> Any:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


@dataclass
class MeasureRequests:
    """ASGI middleware: calls `note` with the path, status code and seconds of every response."""

    app: Any
    note: Callable[[str, int, float], None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = monotonic(), 500

        async def send_noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            self.note(scope["path"], status, monotonic() - begun)
