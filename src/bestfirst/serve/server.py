"""Server: uvicorn with time limits for connections. On SIGTERM or Ctrl-C it finishes the accepted requests, then ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from math import ceil
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # that the head of a request may take to arrive
BODY_SECONDS = 30.0
GRACE_SECONDS = 5.0  # after the deadline, or that of a stopping server, for the client to read its response


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to this address: before a model is loaded, so that an address in use is noticed at once. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # asyncio turns Nagle's algorithm off only for sockets that say they are TCP; with it, responses wait for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def url(listening: socket.socket) -> str:
    """The URL of the server."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def body_seconds(deadline: float) -> float:
    """The number of seconds that the body of a request may take to arrive."""
    return min(BODY_SECONDS, deadline)


class TimedConnection(H11Protocol):
    """uvicorn's connection with time limits: for the head of a request to arrive, and for a response to be read.

    When there are more than `most` connections, the one that has been idle longest is closed.
    """

    def __init__(self, *args: Any, deadline: float, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_seconds = min(HEAD_SECONDS, deadline)
        self._response_seconds = body_seconds(deadline) + deadline + GRACE_SECONDS
        self._most = most
        self._timer: asyncio.TimerHandle | None = None
        self._half_closed = False  # by the client, which sends nothing more

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._allow(self._head_seconds)
        if len(self.connections) > self._most:
            idle = (each for each in self.connections if isinstance(each, TimedConnection) and each.idle and each._timer)
            min(idle, key=lambda each: each._timer.when()).transport.abort()  # type: ignore[union-attr]

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its half of the connection. If a request is open, it either waits for the response or has left.

        Only sending tells which: a waiting client skips a `100 Continue`, a client that has left answers with a reset.
        """
        if self.idle or self.cycle.more_body:
            return False
        if not self._half_closed:
            self._half_closed = True
            if not self.cycle.response_started and self.cycle.scope["http_version"] == "1.1":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._watch(0.02)
        return True

    def _watch(self, seconds: float) -> None:
        """Check regularly whether the connection was reset: asyncio, which does not read from it any more, would not notice."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(seconds, self._watch, min(2 * seconds, 1.0))

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._allow(self._response_seconds)

    def on_response_complete(self) -> None:
        is_read = self.transport.is_closing() or not self.transport.get_write_buffer_size()
        self._allow(self._head_seconds if is_read else self._response_seconds)
        super().on_response_complete()
        if self._half_closed and self.idle:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _allow(self, seconds: float) -> None:
        """Restart the timer that ends the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.idle and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self._refuse("408 Request Timeout", "the request did not arrive in time")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled, which says what is wrong. No response if the one to this request has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse("400 Bad Request", f"this is not a request of HTTP/1.1: {sys.exc_info()[1]!s:.100}")
        else:
            self.transport.close()

    def _refuse(self, status: str, detail: str) -> None:
        body = json.dumps({"detail": detail}).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which calls `ready` when it listens, and ends at once on a second signal. `give_up` is called `drain`
    seconds after the first, to answer what is not done: tasks that uvicorn cancels have no response."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], drain: float, give_up: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready, self.drain, self.give_up = ready, drain, give_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self.drain, self.give_up)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # the engine's thread may be in the middle of a forward pass, and there is nothing to save
        super().handle_exit(sig, frame)


def run(
    app: Any, listening: socket.socket, *, deadline: float, ready: Callable[[], None], drain: float, give_up: Callable[[], None]
) -> None:
    """Serve until the first SIGTERM or SIGINT, then stop listening and finish the accepted requests; call `give_up` if that takes
    longer than `drain` seconds. A second signal ends the process at once."""
    config = uvicorn.Config(
        app,
        http=partial(TimedConnection, deadline=deadline, most=most_connections()),  # type: ignore[arg-type]
        ws="none",
        log_level="error",  # uvicorn warns of every invalid request
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=ceil(drain + GRACE_SECONDS),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it is done: the exit code is to be 0
    Server(config, ready, drain, give_up).run(sockets=[listening])


def most_connections() -> int:
    """The most connections to keep open: file descriptors are left for everything else."""
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # on Windows
        return 512
    return max(16, min(4096, getrlimit(RLIMIT_NOFILE)[0] - 64))
