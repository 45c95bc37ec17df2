"""Load test: many clients against a running server. Measures throughput and latency, and checks every answer.

    bestfirst serve &
    python tests/serve/load.py http://127.0.0.1:8000 tests/data/tatoeba-200.de --clients 64 --seconds 60

Each client sends one line after another and waits for its answer. One client runs alone first, then all. A line must always get
the same answer (or one as good, to 1e-4: the shape of a batch changes the last bits of a model's scores). With `--expected`,
answers are compared with those of `bestfirst translate --json` instead.

    python tests/serve/load.py URL FILE --clients 200 --greedy 10 --unread 20 --seconds 120 --pid $!

Besides these honest clients there can be greedy ones, which send the largest requests allowed, with a wide beam and a score that
makes every search long, and clients that request much and never read the response. The honest clients then run without them
first, and the report says how much slower they become; with `--pid`, also the peak memory of the server.

    OMP_NUM_THREADS=1 python tests/serve/load.py URL FILE --alone 20 --decode

With `--decode` each sentence of the one client is also decoded in this process, in turn: the difference is the server's overhead.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
from urllib.parse import urlsplit

NEAR_TIE = 1e-4


@dataclass
class Load:
    """The requests to send, and their outcome: latencies, answers, and what was refused, wrong or lost."""

    url: str
    lines: list[str]
    settings: dict[str, object]
    token: str | None = None
    seconds: list[float] = field(default_factory=list)
    answers: dict[str, tuple[str, float]] = field(default_factory=dict)
    sent: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def run(self, clients: int, seconds: float) -> float:
        """Run this many clients for this many seconds; returns the answered requests per second."""
        numbers, begun = count(), perf_counter()
        threads = [Thread(target=self._client, args=(numbers, begun + seconds), daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self.seconds) / (perf_counter() - begun)

    def _client(self, numbers: count[int], end: float) -> None:
        server = urlsplit(self.url)
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=300)
        begun = -inf
        while begun < end:  # at least once, however late the thread started
            line = self.lines[next(numbers) % len(self.lines)]
            begun = perf_counter()
            self.sent += 1
            try:
                status, body = self._ask(connection, line)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(f"{type(error).__name__}: {line}")
                connection.close()
                if isinstance(error, ConnectionRefusedError):
                    return  # the server is gone
                continue
            if status == 429:
                self.refused += 1
            elif status != 200:
                self.lost.append(f"{status} {body!r}: {line}")
            else:
                self.seconds.append(perf_counter() - begun)
                self._check(line, json.loads(body)["results"][0])
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, line: str) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        connection.request("POST", "/translate", json.dumps({"text": line, **self.settings}), headers)
        response = connection.getresponse()
        return response.status, response.read()

    def _check(self, line: str, result: dict) -> None:
        best = result["hypotheses"][0]
        text, score = self.answers.setdefault(line, (best["text"], best["score"]))
        if best["text"] != text and abs(best["score"] - score) > NEAR_TIE:
            self.wrong.append(f"{line!r}: {best['text']!r} ({best['score']:.5f}), not {text!r} ({score:.5f})")

    def percentile(self, share: float) -> float:
        """The latency in milliseconds that this share of the requests did not exceed."""
        return percentile(self.seconds, share)

    def compare_with_decode(self, seconds: float) -> str:
        """Alternate between one kept connection and `decode` in this process, sentence by sentence; returns one line."""
        import bestfirst

        model, end, inside = bestfirst.load(), perf_counter() + seconds, []
        server = urlsplit(self.url)
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=300)
        for line in self.lines[:5] * 3:
            self._ask(connection, line)
            bestfirst.decode(model, [line], **self.settings)
        for line in cycle(self.lines):
            begun = perf_counter()
            self._ask(connection, line)
            between = perf_counter()
            bestfirst.decode(model, [line], **self.settings)
            inside.append(perf_counter() - between)
            self.seconds.append(between - begun)
            if perf_counter() > end:
                break
        more = percentile([one - other for one, other in zip(self.seconds, inside, strict=True)], 0.5)
        took = f"served {self.percentile(0.5):.1f} ms, decoded here {percentile(inside, 0.5):.1f} ms"
        return f"{len(inside)} sentences one by one, p50: {took}; of the differences {more:.1f} ms"

    def report(self, clients: int, rate: float) -> str:
        """The outcome, in one line."""
        took = ", ".join(f"p{100 * share:.0f} {self.percentile(share):.0f} ms" for share in (0.5, 0.95, 0.99))
        trouble = f"{len(self.wrong)} wrong, {len(self.lost)} lost, {self.refused} refused (429)"
        return f"{clients:4} clients: {len(self.seconds)} of {self.sent} answered, {rate:.1f} a second; {took}; {trouble}"


@dataclass
class UnfairClients:
    """Greedy clients, and clients that do not read their responses, until `stop`."""

    url: str
    lines: list[str]
    token: str | None = None
    texts: int = 128
    stopped: Event = field(default_factory=Event)
    connections: list[http.client.HTTPConnection] = field(default_factory=list)
    answered: int = 0
    refused: int = 0

    @property
    def request(self) -> dict[str, object]:
        texts = (self.lines * self.texts)[: self.texts]
        return {"text": texts, "beam": 50, "nbest": 50, "score": {"name": "length-reward", "beta": 5.0}, "max_length": 40}

    def start(self, greedy: int, unread: int) -> None:
        """Start this many clients of each kind."""
        for client in [self._greedy] * greedy + [self._unread] * unread:
            Thread(target=client, daemon=True).start()

    def stop(self) -> None:
        """Stop all clients and close their connections."""
        self.stopped.set()
        for connection in self.connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> http.client.HTTPConnection:
        server = urlsplit(self.url)
        self.connections.append(http.client.HTTPConnection(server.hostname, server.port, timeout=300))
        return self.connections[-1]

    def _send(self, connection: http.client.HTTPConnection, **more: object) -> None:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        connection.request("POST", "/translate", json.dumps({**self.request, **more}), headers)

    def _greedy(self) -> None:
        """Send the largest request allowed, again and again."""
        while not self.stopped.is_set():
            connection = self._connect()
            try:
                self._send(connection)
                response = connection.getresponse()
                response.read()
                self.answered += response.status in (200, 504)
                self.refused += response.status == 429
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            sleep(0.2)

    def _unread(self) -> None:
        """Request much as a stream, and read none of it."""
        while not self.stopped.is_set():
            connection = self._connect()
            try:
                connection.connect()
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                self._send(connection, stream=True, text=self.lines[:8])
                self.stopped.wait(30)
            except OSError:
                sleep(0.2)
            finally:
                connection.close()


def percentile(seconds: list[float], share: float) -> float:
    """The milliseconds that this share of the values does not exceed."""
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")


def peak_memory(pid: int) -> float:
    """The peak resident memory of a process so far, in GB (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e6


def expected(path: Path, lines: list[str]) -> dict[str, tuple[str, float]]:
    """Text and score that `bestfirst translate --json` gave each of these lines."""
    given = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line: (each["text"], each["hypotheses"][0]["score"]) for line, each in zip(lines, given, strict=True) if line.strip()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://127.0.0.1:8000")
    parser.add_argument("file", type=Path, help="a text to translate, a sentence a line")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--alone", type=float, default=10, help="seconds for one client before")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--greedy", type=int, default=0, help="greedy clients beside them")
    parser.add_argument("--unread", type=int, default=0, help="clients beside them that do not read")
    parser.add_argument("--texts", type=int, default=128, help="texts in a request of a greedy client")
    parser.add_argument("--pid", type=int, help="the server's process, to see its memory")
    parser.add_argument("--decode", action="store_true", help="the one client beside `decode` in this process, and nothing else")
    parser.add_argument("--expected", type=Path, help="what `bestfirst translate --json --beam K FILE` wrote")
    options = parser.parse_args()
    lines = options.file.read_text(encoding="utf-8").splitlines()
    answers = expected(options.expected, lines) if options.expected else {}
    lines = [line for line in lines if line.strip()]
    given = (options.url, lines, {"beam": options.beam}, os.environ.get("BESTFIRST_TOKEN"))
    one, many = Load(*given, answers=answers), Load(*given, answers=answers)
    if options.decode:
        print(one.compare_with_decode(options.alone))
        return 0
    alone = one.run(1, options.alone)
    print(one.report(1, alone), flush=True)
    unfair = UnfairClients(options.url, lines, given[3], options.texts)
    loads = [one, many]
    if options.greedy or options.unread:
        quiet = Load(*given, answers=answers)
        print(quiet.report(options.clients, quiet.run(options.clients, options.seconds)), flush=True)
        if options.pid:
            print(f"the server took {peak_memory(options.pid):.2f} GB at most", flush=True)
        loads.append(quiet)
        unfair.start(options.greedy, options.unread)
    together = many.run(options.clients, options.seconds)
    unfair.stop()
    print(many.report(options.clients, together))
    if options.greedy or options.unread:
        others = f"beside {options.greedy} greedy clients ({unfair.answered} answered, {unfair.refused} refused)"
        times = many.percentile(0.99) / quiet.percentile(0.99)
        print(f"{others} and {options.unread} that do not read: p99 is {times:.2f} times that without them")
        if options.pid:
            print(f"the server took {peak_memory(options.pid):.2f} GB at most")
    elif alone:
        print(f"{options.clients} clients get {together / alone:.1f} times the throughput of one")
    troubles = [line for load in loads for line in (*load.wrong, *load.lost)]
    for line in troubles[:10]:
        print(line, file=sys.stderr)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
