"""A real server in a process of its own, and what a client needs to talk to it."""

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
PATIENCE = 240.0  # seconds; on a busy machine everything takes its time
SENTENCE = "Als ich gestern nach Hause kam, war niemand mehr da, und das Licht in der Küche brannte noch."
ENDLESS = {"score": {"name": "length-reward", "beta": 100}, "max_length": 500}
SLOW = {"text": [SENTENCE] * 6, "beam": 50, "strategy": "beam", **ENDLESS}  # minutes, a row at a time, on any machine


class Answer(NamedTuple):
    """A response, read to its end."""

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
    """`bestfirst serve` with these options, on a port that is free; with `files`, it can have no more of them open."""

    def __init__(self, *options: object, files: int | None = None, **environment: str) -> None:
        line = [sys.executable, "-m", "bestfirst", "serve", "--port", "0", *map(str, options)]
        if files is not None:
            line = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *line]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **environment})
        self.said: list[str] = []
        while not (found := re.search(r" at http://([\d.]+):(\d+) ", self._line())):
            assert self.process.poll() is None, self.said
        self.host, self.port = found[1], int(found[2])
        self._listening = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self._listening.start()

    def _line(self) -> str:
        self.said.append(self.process.stderr.readline())
        return self.said[-1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.host, self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, asked: Any, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps(asked).encode(), **headers)

    def translate(self, text: str | list[str], **settings: Any) -> Answer:
        return self.post("/translate", {"text": text, **settings})

    def send(self, asked: Any, **headers: str) -> HTTPConnection:
        """Begin a request, and leave the answer to whoever wants it."""
        connection = self.connect()
        connection.request("POST", "/translate", json.dumps(asked), {"Content-Type": "application/json", **headers})
        return connection

    @property
    def health(self) -> dict[str, Any]:
        return self.get("/health").json

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listening.join()
        self.process.stderr.close()


def in_a_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it in a thread of its own: this one may have the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def until(claim: Callable[[], bool]) -> None:
    """Wait until this is so."""
    end = monotonic() + PATIENCE
    while not claim():
        assert monotonic() < end
        sleep(0.02)
