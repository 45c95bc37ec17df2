"""A real `bestfirst serve` in a process of its own, and a small client for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from time import monotonic, sleep
from typing import Any, NamedTuple

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PATIENCE = 240.0  # seconds; on a busy machine everything takes longer
SENTENCE = "Als ich gestern nach Hause kam, war niemand mehr da, und das Licht in der Küche brannte noch."
ENDLESS = {"score": {"name": "length-reward", "beta": 100}, "max_length": 500}
SLOW = {"text": [SENTENCE] * 6, "beam": 50, "strategy": "beam", **ENDLESS}  # minutes at one row per pass, on any machine


class Response(NamedTuple):
    """A response whose body has been read."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class Served:
    """`bestfirst serve` with these options, on a free port. `files` limits how many files it may have open."""

    def __init__(self, *options: object, files: int | None = None, **environment: str) -> None:
        line = [sys.executable, "-m", "bestfirst", "serve", "--port", "0", *map(str, options)]
        if files is not None:
            line = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *line]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **environment})
        self.stderr_lines: list[str] = []
        while not (found := re.search(r" at http://([\d.]+):(\d+) ", self._read_line())):
            assert self.process.poll() is None, self.stderr_lines
        self.host, self.port = found[1], int(found[2])
        self._reader = threading.Thread(target=lambda: self.stderr_lines.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def _read_line(self) -> str:
        self.stderr_lines.append(self.process.stderr.readline())
        return self.stderr_lines[-1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.host, self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return Response(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        return self.ask("GET", path, **headers)

    def post(self, path: str, payload: Any, **headers: str) -> Response:
        return self.ask("POST", path, json.dumps(payload).encode(), **headers)

    def translate(self, text: str | list[str], **settings: Any) -> Response:
        return self.post("/translate", {"text": text, **settings})

    def send(self, payload: Any, **headers: str) -> HTTPConnection:
        """Send a request, and return its connection with the response unread."""
        connection = self.connect()
        connection.request("POST", "/translate", json.dumps(payload), {"Content-Type": "application/json", **headers})
        return connection

    @property
    def health(self) -> dict[str, Any]:
        return self.get("/health").json

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in another thread: this one may already run the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    end = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < end
        sleep(0.02)
