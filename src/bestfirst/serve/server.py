"""Server: listens, runs the application, and on SIGTERM or Ctrl-C finishes what was accepted before it ends."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to this address, so that trouble with it is known before a model is loaded. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def url(listening: socket.socket) -> str:
    """Where it can be reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's, which tells when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def run(app: Any, listening: socket.socket, *, drain: float, ready: Callable[[], None]) -> None:
    """Serve until told to stop, then at most `drain` seconds longer, for what was accepted.

    The first SIGTERM or SIGINT stops listening and drains; a second one ends at once.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=max(1, round(drain))
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again when it is done, and then all is well
    gc.collect()
    gc.freeze()  # the model is here to stay: no garbage collection need look at it
    Server(config, ready).run(sockets=[listening])
