"""Middleware: what is checked of a request before anything looks at it, and what is measured of its response."""

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

MOST_DISCARDED = 64 << 20  # bytes of a body that is too large that are read and thrown away, so that the client hears why
LINGER = 5.0  # seconds that this may take


class Hosts:
    """The names that a server bound to this address answers to, so that no page of another name can make a browser talk to it.

    An address that the browser was given is no name that somebody else can point here, so where a server is bound to all
    addresses, any address will do.
    """

    def __init__(self, bound: str, allowed: Collection[str] = ()) -> None:
        self.anywhere = ip_address(bound).is_unspecified
        self.loopback = ip_address(bound).is_loopback
        own = {socket.gethostname(), socket.getfqdn()} if self.anywhere else {bound}
        local = {"localhost", "127.0.0.1", "::1"} if self.anywhere or self.loopback else set()
        self.names = {name.lower() for name in {*own, *local, *allowed}}

    def __contains__(self, header: str) -> bool:
        """Whether this value of a `Host` header is one of them."""
        name = header.lower()
        name = name[1:].split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        if self.anywhere:
            with suppress(ValueError):
                return bool(ip_address(name))
        return name in self.names


@dataclass
class CheckRequests:
    """ASGI middleware. Refuses requests to other hosts, those to `guarded` paths without the token, where there is one, and
    bodies that are too large or do not arrive within so many seconds."""

    app: Any
    hosts: Hosts
    token: str | None
    guarded: frozenset[str]
    max_bytes: int
    seconds: float

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host not in self.hosts:
            await refuse(send, 400, f"Host: this server does not answer to {host[:60]!r}; whoever runs it can allow that name")
        elif not self._admits(scope["path"], headers):
            bearer = (b"www-authenticate", b"Bearer")
            await refuse(send, 401, "this server asks for a token: send 'Authorization: Bearer TOKEN'", bearer)
        elif int(headers.get(b"content-length", 0)) > self.max_bytes:
            await self._refuse_large(receive, send)
        else:
            await self._read(scope, receive, send)

    def _admits(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.token is None or path not in self.guarded:
            return True
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + self.token.encode())

    async def _read(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray()
        try:
            more = await asyncio.wait_for(read_into(body, receive, self.max_bytes), self.seconds)
        except asyncio.TimeoutError:
            await refuse(send, 408, f"the body did not arrive within {self.seconds:g} seconds", CLOSE)
            return
        if more:
            await self._refuse_large(receive, send)
        else:
            await self.app(scope, replay(bytes(body), receive), send)

    async def _refuse_large(self, receive: Any, send: Any) -> None:
        """Say so at once, and close when the client has heard it: one that is still sending does not listen."""
        detail = f"a body may have {self.max_bytes:,} bytes, this one has more; send less at a time"
        await refuse(send, 413, detail, CLOSE, more_body=True)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read_into(None, receive, MOST_DISCARDED), LINGER)
        await send({"type": "http.response.body", "body": b""})


CLOSE = (b"connection", b"close")


async def read_into(body: bytearray | None, receive: Any, most: int) -> bool:
    """Read a body, or throw it away; whether it has more than so many bytes."""
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        part = message.get("body", b"")  # a client that has left sends nothing more
        more = message.get("more_body", False)
        size += len(part)
        if body is not None:
            body += part
    return size > most


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


async def refuse(send: Any, status: int, detail: str, *headers: tuple[bytes, bytes], more_body: bool = False) -> None:
    body = json.dumps({"detail": detail}).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


@dataclass
class MeasureRequests:
    """ASGI middleware: tells of every response what was asked, how it ended and how long it took."""

    app: Any
    note: Callable[[str, int, float], None]

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
