"""Metrics of the server, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..corpus.worker import beam_calls, compared_beam
from ..search import Result
from ..settings import Decoding
from .request_queue import RequestQueue

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics(Collector):
    """Counts requests and results as they end; reads the state of the queue and the engine when it is scraped (`collect`)."""

    def __init__(self, queue: RequestQueue, paths: frozenset[str]) -> None:
        self.paths = paths
        self._queue = queue
        self.registry = CollectorRegistry()
        self.registry.register(self)
        own: dict[str, Any] = {"namespace": "bestfirst", "registry": self.registry}
        self._requests = Counter("requests", "Requests answered.", ["path", "code"], **own)
        self._seconds = Histogram("request_seconds", "How long they took.", ["path"], buckets=SECONDS, **own)
        self._texts = Counter("texts", "Texts done, by how they ended.", ["status"], **own)
        self._calls = Counter("calls", "Hypotheses that searches had to score.", **own)
        self._saved = Counter("calls_saved", "Calls that beam search would have made beyond these, at the very least.", **own)

    def count_request(self, path: str, code: int, seconds: float) -> None:
        path = path if path in self.paths else "other"
        self._requests.labels(path, str(code)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_results(self, done: Sequence[tuple[Result, Decoding]]) -> None:
        """Count the results of a step, with one increment of each counter: those take longer than everything else here."""
        statuses = [result.status for result, _ in done]
        for status in {*statuses}:
            self._texts.labels(status).inc(statuses.count(status))
        calls = saved = 0
        for result, decoding in done:
            calls += result.calls
            if beam := compared_beam(decoding):
                saved += max(0, beam_calls(result, beam) - result.calls)
        self._calls.inc(calls)
        self._saved.inc(saved)

    def read(self) -> bytes:
        """The response to Prometheus."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Any]:
        """Called by the registry at every scrape: the metrics that are not counted here."""
        queue, engine = self._queue, self._queue.engine
        yield GaugeMetricFamily("bestfirst_queue", "Texts accepted and not done.", queue.queued)
        yield GaugeMetricFamily("bestfirst_queue_limit", "How many there may be.", queue.limits.max_queue)
        yield GaugeMetricFamily("bestfirst_in_flight", "Texts that share the forward passes.", engine.in_flight)
        yield CounterMetricFamily("bestfirst_rows", "Hypotheses scored, ahead of need included.", engine.stats.rows)
        yield CounterMetricFamily("bestfirst_steps", "Forward passes.", engine.stats.steps)
