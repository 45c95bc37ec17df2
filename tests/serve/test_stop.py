"""SIGTERM finishes the accepted requests; a start that fails says why."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from cli.process import only_line, run
from serve.served import PATIENCE, SLOW, Served, wait_until

LONG = {"beam": 5, "score": {"name": "length-reward", "beta": 100}, "max_length": 40}


def test_sigterm_finishes_accepted_requests_and_refuses_new_ones(lines):
    server = Served("--row-budget", 1, "--deadline", 600, "--drain", 600)
    try:
        asked = [*lines[:12]]  # seconds of work: none is done before the last is accepted
        waiting = [server.send({"text": text, **LONG}) for text in asked]
        wait_until(lambda: server.health["queue"] == len(asked))
        server.process.send_signal(signal.SIGTERM)
        found = [json.loads(connection.getresponse().read())["results"][0] for connection in waiting]
        assert [result["status"] for result in found] == ["complete"] * len(asked)
        assert server.process.wait(PATIENCE) == 0
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")
        assert [line for line in server.stderr_lines if "Traceback" in line] == []
    finally:
        server.stop()


def test_requests_that_are_not_done_when_the_drain_time_is_over_get_503():
    server = Served("--row-budget", 1, "--deadline", 600, "--drain", 1)
    try:
        waiting, streaming = server.send(SLOW), server.send({**SLOW, "stream": True})
        wait_until(lambda: server.health["queue"] == 12)
        server.process.send_signal(signal.SIGTERM)
        response = waiting.getresponse()
        assert (response.status, json.loads(response.read())) == (503, {"detail": "the server is stopping"})
        assert streaming.getresponse().read().splitlines()[-1] == b'{"detail":"the server is stopping"}'
        assert server.process.wait(PATIENCE) == 0
        assert [line for line in server.stderr_lines if "Traceback" in line] == []
    finally:
        server.stop()


def test_an_address_in_use_ends_the_start_with_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("serve", "--port", taken.getsockname()[1])
    assert done.returncode == 2
    assert "Address already in use; choose another --host or --port" in only_line(done.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "http"], "'http' is not a port from 0 to 65535"),
        (["--deadline", "0"], "'0' is not a time above 0"),
        (["--max-queue", "10"], "a request of 128 texts would never fit into a queue of 10; lower --max-items"),
        (["--model", "nowhere/to/be/found"], "nowhere/to/be/found"),
        (["--host", "nowhere.invalid"], "cannot listen on nowhere.invalid:8000"),
    ],
)
def test_invalid_options_end_the_start_with_one_line(options, said):
    done = run("serve", *options)
    assert done.returncode == 2
    assert said in only_line(done.stderr)
