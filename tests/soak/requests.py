"""Random requests to a real server: valid, odd, broken and unfinished ones."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import Any

from serve.served import Served

from .forks import GERMAN

PATHS = (
    "/translate",
    "/search",
    "/health",
    "/metrics",
    "/",
    "/docs",
    "/openapi.json",
    "/nothing",
    "/translate/",
    "//",
    "/%00",
    "/..",
    "/v1/models",
)
FIELDS = {
    "/translate": ("text", "beam", "nbest", "score", "stop", "max_length", "stream", "finished", "strategy", "x", "deadline"),
    "/v1/completions": (
        "prompt",
        "n",
        "best_of",
        "beam_width",
        "max_tokens",
        "min_tokens",
        "stop",
        "stream",
        "temperature",
        "model",
    ),
    "/v1/chat/completions": ("messages", "n", "beam_width", "max_tokens", "length_penalty", "stop", "stream", "seed", "user"),
}
"""The fields of each path that decodes, the input first."""
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    1e308,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[[]]],
    "9" * 50,
    "\x00",
    "ä" * 3000,
    [""] * 200,
)


def send_requests(served: Served, seed: int, times: int, clients: int = 8) -> Iterator[Counter[str]]:
    """Yields the counts so far, every thousand requests."""
    lines = GERMAN.read_text(encoding="utf-8").splitlines()
    done: Queue[Counter[str]] = Queue()

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(number, times, clients):
            done.put(_send_one(served, rng, lines))
        done.put(Counter())

    for number in range(clients):
        Thread(target=client, args=(number,), daemon=True).start()
    count: Counter[str] = Counter()
    over = 0
    while over < clients:
        found = done.get()
        over += not found
        count += found
        if found and count["requests"] % 1000 == 0:
            yield count
    count["tracebacks"] = sum("Traceback" in line for line in served.stderr_lines)
    count["crashes"] = int(served.process.poll() is not None)
    yield count


def _send_one(served: Served, rng: random.Random, lines: list[str]) -> Counter[str]:
    """Send one random request as raw bytes, and count its outcome."""
    data, complete = _random_request(rng, lines, served.port)
    count = Counter(requests=1)
    try:
        with socket.create_connection((served.host, served.port), timeout=300) as connection:
            with suppress(OSError):  # it may answer, and close, before all is sent
                connection.sendall(data)
            if not complete:
                count["not whole"] += 1
                connection.settimeout(0.05)
                with suppress(OSError):
                    connection.recv(4096)
                return count
            if rng.random() < 0.1:
                count["half closed"] += 1
                with suppress(OSError):  # answered and closed already
                    connection.shutdown(socket.SHUT_WR)
            answer = b""
            while len(answer) < 65536 and (more := connection.recv(65536)):
                answer += more
    except OSError as error:
        count["unanswered"] += 1
        count[f"unanswered: {type(error).__name__} after {data[:200]!r}"] += 1
        return count
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 "):
        count["unanswered"] += 1
        count[f"unanswered: {data[:200]!r}"] += 1
        return count
    status = answer[9:12].decode(errors="replace")
    count[f"{status[:1]}xx"] += 1
    if status[:1] == "5":
        count[f"5xx: {answer[:300]!r} to {data[:300]!r}"] += 1
    return count


def _random_request(rng: random.Random, lines: list[str], port: int) -> tuple[bytes, bool]:
    """The bytes of a random request, and whether it is complete."""
    kind = rng.random()
    if kind < 0.06:
        return b"GET " + rng.randbytes(rng.randrange(1, 300)) + b"\r\n\r\n", False  # random bytes
    work = "/translate" if rng.random() < 0.7 else rng.choice(list(FIELDS))
    body = _random_body(rng, lines, work)
    method = "POST" if rng.random() < 0.85 else rng.choice(("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"))
    path = work if rng.random() < 0.7 else rng.choice(PATHS)
    headers = {
        "Host": f"127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    framed = True  # whether it declares where it ends
    if rng.random() < 0.1:
        name = rng.choice(("Host", "Content-Type", "Content-Length", "Transfer-Encoding", "Authorization", "Expect", "X" * 2000))
        headers[name] = rng.choice(("", "attacker.example", "chunked", "-1", "99999999999", "text/plain", "\u00e4", "x" * 9000))
        framed = name not in ("Content-Length", "Transfer-Encoding")
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    data = head.encode("latin-1", "replace") + body
    if kind < 0.1:
        return data[: rng.randrange(len(data))], False
    return data, framed


def _random_body(rng: random.Random, lines: list[str], path: str) -> bytes:
    text: Any = rng.choice(lines)
    if rng.random() < 0.2:
        text = rng.sample(lines, rng.randint(1, 4))
    if path == "/v1/chat/completions":
        text = [{"role": "user", "content": text}]
    fields = FIELDS[path]
    asked: dict[str, Any] = {fields[0]: text}
    if rng.random() < 0.5:
        asked |= {"beam_width" if "beam_width" in fields else "beam": rng.randint(1, 8), "stream": rng.random() < 0.3}
    if rng.random() < 0.6:
        asked[rng.choice(fields)] = rng.choice(ODD)
    data = json.dumps(asked).encode()
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    elif rng.random() < 0.05:
        data = b"[" * rng.choice((10, 100_000))
    return data
