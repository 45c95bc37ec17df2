"""Load: many clients against a running server, to see what it takes and whether all answers are right.

    bestfirst serve &
    python tests/serve/load.py http://127.0.0.1:8000 tests/data/tatoeba-200.de --clients 64 --seconds 60

Each client sends one line after another and waits for its answer. First one client alone, then all; what one client got is what
all must get (or an answer as good, to 1e-4: the shape of a batch changes the last bits of a model's scores). With `--expected`,
the answers are held against those of `bestfirst translate --json` instead.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Thread
from time import perf_counter
from urllib.parse import urlsplit

NEAR_TIE = 1e-4


@dataclass
class Load:
    """What to send, and what came of it."""

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
        """So many clients for so long; returns the requests answered a second."""
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
        while perf_counter() < end:
            line = self.lines[next(numbers) % len(self.lines)]
            begun = perf_counter()
            self.sent += 1
            try:
                status, body = self._ask(connection, line)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(f"{type(error).__name__}: {line}")
                connection.close()
                if isinstance(error, ConnectionRefusedError):
                    return  # nobody is there
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
        """Milliseconds that this share of the requests took at most."""
        if not self.seconds:
            return float("nan")
        return 1000 * sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def report(self, clients: int, rate: float) -> str:
        """One line."""
        took = ", ".join(f"p{100 * share:.0f} {self.percentile(share):.0f} ms" for share in (0.5, 0.95, 0.99))
        trouble = f"{len(self.wrong)} wrong, {len(self.lost)} lost, {self.refused} refused (429)"
        return f"{clients:4} clients: {len(self.seconds)} of {self.sent} answered, {rate:.1f} a second; {took}; {trouble}"


def expected(path: Path, lines: list[str]) -> dict[str, tuple[str, float]]:
    """The answers that `bestfirst translate --json` gave to the same lines."""
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
    parser.add_argument("--expected", type=Path, help="what `bestfirst translate --json --beam K FILE` wrote")
    options = parser.parse_args()
    lines = options.file.read_text(encoding="utf-8").splitlines()
    answers = expected(options.expected, lines) if options.expected else {}
    lines = [line for line in lines if line.strip()]
    given = (options.url, lines, {"beam": options.beam}, os.environ.get("BESTFIRST_TOKEN"))
    one, many = Load(*given, answers=answers), Load(*given, answers=answers)
    alone = one.run(1, options.alone)
    print(one.report(1, alone), flush=True)
    together = many.run(options.clients, options.seconds)
    print(many.report(options.clients, together))
    if alone:
        print(f"{options.clients} clients get {together / alone:.1f} times the throughput of one")
    for trouble in [*one.wrong, *one.lost, *many.wrong, *many.lost][:10]:
        print(trouble, file=sys.stderr)
    return 1 if one.wrong or one.lost or many.wrong or many.lost else 0


if __name__ == "__main__":
    sys.exit(main())
