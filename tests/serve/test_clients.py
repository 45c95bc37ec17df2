"""Misbehaving clients: half-sent requests, endless bodies, unread responses, foreign Host headers."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from time import perf_counter

import pytest

from bestfirst import Decoding
from bestfirst.serve.app import error_fields
from bestfirst.serve.engine_thread import EngineThread
from bestfirst.serve.exchange import json_line
from bestfirst.serve.middleware import CheckRequests, Hosts
from bestfirst.serve.request_queue import MOST_UNREAD, DeadlinePassed, QueueFull, RequestQueue, TooMuch
from bestfirst.serve.schemas import Limits
from bestfirst.serve.server import listen
from serve.served import ENVIRONMENT, PATIENCE, SLOW, Served, run_async, wait_until
from serve.test_engine import Letters

USUAL = Decoding(beam=4)


def send_raw(server: Served, text: str) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE)
    connection.sendall(text.encode())
    return connection


def refuses_connections(server: Served) -> bool:
    """Whether connections are refused."""
    try:
        socket.create_connection((server.host, server.port), timeout=PATIENCE).close()
    except ConnectionError:
        return True
    return False


def read_to_end(connection: socket.socket) -> str:
    """All that the server sends until it closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts).decode()


# -- host names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/docs", "/health", "/"])
def test_an_unknown_host_header_is_refused(frail, path):
    answer = frail.get(path, Host="attacker.example")
    assert answer.status == 400
    assert "does not answer to 'attacker.example'" in answer.json["detail"]
    for host in ("localhost", f"127.0.0.1:{frail.port}", "[::1]:80", "translate.example", "Translate.Example:443"):
        assert frail.get(path, Host=host).status == 200


def test_allowed_hosts_follow_from_the_bound_address():
    assert "attacker.example" not in Hosts("0.0.0.0")
    assert "192.168.1.2:8000" in Hosts("0.0.0.0")
    assert socket.gethostname() in Hosts("::")
    assert "192.168.1.2" in Hosts("192.168.1.2")
    assert "localhost" not in Hosts("192.168.1.2")
    assert "localhost.attacker.example" not in Hosts("127.0.0.1")
    assert "" not in Hosts("127.0.0.1")
    assert all("[fd00::1]:8000" in Hosts("127.0.0.1", [allowed]) for allowed in ("fd00::1", "[FD00::1]"))


@pytest.mark.parametrize(("options", "environment"), [([], {"BESTFIRST_TOKEN": ""}), (["--token", " "], {})])
def test_an_empty_token_is_refused_at_the_start(options, environment):
    line = [sys.executable, "-m", "bestfirst", "serve", "--port", "0", *options]
    done = subprocess.run(line, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "the token is empty" in done.stderr


# -- time and size -----------------------------------------------------------------------------------------------------------


def test_accepted_connections_have_tcp_nodelay():
    """Nagle's algorithm with delayed acknowledgements costs 40 ms a response."""

    async def serve_one() -> int:
        found = asyncio.get_running_loop().create_future()

        class Accept(asyncio.Protocol):
            def connection_made(self, transport):
                sock = transport.get_extra_info("socket")
                found.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        with listen("127.0.0.1", 0) as listening:
            server = await asyncio.get_running_loop().create_server(Accept, sock=listening)
            with socket.create_connection(listening.getsockname()):
                value = await asyncio.wait_for(found, PATIENCE)
            server.close()
        return value

    assert run_async(serve_one()) != 0


@pytest.mark.parametrize("sent", ["", "POST /translate HTTP/1.1\r\nHost: localhost\r\nConte"])
def test_an_incomplete_request_head_times_out(frail, sent):
    begun = perf_counter()
    response = read_to_end(send_raw(frail, sent))
    assert "408 Request Timeout" in response
    assert perf_counter() - begun > 1


def test_an_incomplete_body_times_out(frail):
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    assert "the body did not arrive within 3 seconds" in read_to_end(send_raw(frail, head))


CHUNKED = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"\x16\x03\x01\x02\0\r\n\r\n", 400, "illegal request line"),
        (b"GET /" + b"a" * 70_000, 400, "Receive buffer too long"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host: header"),
        (CHUNKED + b"zz\r\n", 400, "illegal chunk header"),
        (CHUNKED + b"200000\r\n" + b"a" * 0x200000 + b"\r\nzz\r\n", 413, "this one has more"),
    ],
)
def test_malformed_http_gets_an_error_in_json_and_no_line_in_the_log(frail, sent, status, said):
    """Also after the response has begun, as that to a too large body."""
    head, _, body = read_to_end(send_raw(frail, sent.decode("latin-1"))).partition("\r\n\r\n")
    assert int(head.split()[1]) == status
    assert said in json.loads(body)["detail"]
    assert len(body) < 200
    assert frail.health["status"] == "ok"
    assert not [line for line in frail.stderr_lines if "Invalid HTTP" in line or "Traceback" in line]


def test_half_sent_requests_do_not_exhaust_open_files(frail):
    """More of them than the server may open files: it drops the oldest, and complete requests are served."""
    half_sent = [send_raw(frail, "POST /translate HT") for _ in range(200)]
    assert frail.translate("Ja.").json["results"][0]["text"] == "Yes."
    for connection in half_sent:
        connection.close()


def test_a_too_large_content_length_is_refused_before_the_body_arrives(frail):
    connection = send_raw(frail, "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n{")
    response = connection.recv(65536).decode()
    assert "413" in response.splitlines()[0]
    connection.close()


def test_status_413_is_sent_before_a_too_large_body_is_read():
    happened: list[str] = []

    async def receive():
        happened.append("read")
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        happened.append(f"sent {message.get('status') or message['type']}")

    limits = {"max_bytes": 10, "seconds": 1.0, "error_fields": error_fields}
    middleware = CheckRequests(None, Hosts("127.0.0.1"), None, frozenset(), **limits)
    headers = [(b"host", b"localhost"), (b"content-length", b"11")]
    run_async(middleware({"type": "http", "path": "/translate", "headers": headers}, receive, send))
    assert happened == ["sent 413", "sent http.response.body", "read", "sent http.response.body"]


def test_a_chunked_body_is_limited_in_size(frail):
    chunk = f"{1 << 20:x}\r\n" + "a" * (1 << 20) + "\r\n"
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert "413" in send_raw(frail, head + chunk + chunk).recv(65536).decode().splitlines()[0]


def test_the_refusal_of_a_form_names_the_header_it_needs(frail):
    kinds = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = frail.ask("POST", "/translate", b'{"text": "Ja."}', **kinds)
    assert answer.status == 422
    assert answer.json["detail"].startswith("Content-Type: must be application/json, got 'application/x-www-form-urlencoded'; ")
    assert "-H 'Content-Type: application/json'" in answer.json["detail"]


def test_infinities_and_nan_are_written_as_null():
    assert json_line({"a": inf, "b": [-inf, nan], "c": "é"}) == '{"a":null,"b":[null,null],"c":"é"}\n'.encode()


# -- half-closed connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("more", ["", ', "stream": true'])
def test_a_half_closed_connection_gets_every_response(server, version, more):
    """As `printf ... | nc -N` leaves it; also with a second, pipelined request."""
    body = '{"text": ["Ja.", "Nein."], "strategy": "beam", "beam": 40' + more + "}"
    head = f"POST /translate HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    requests = 2 if version == "1.1" else 1
    connection = send_raw(server, f"{head}Content-Length: {len(body)}\r\n\r\n{body}" * requests)
    connection.shutdown(socket.SHUT_WR)
    response = read_to_end(connection)
    assert response.count("HTTP/1.1 200 OK") == requests
    assert response.count("Yes.") >= requests
    assert ("100 Continue" in response) <= (version == "1.1")


# -- unread responses ---------------------------------------------------------------------------------------------------------


def test_an_unread_response_ends_at_the_deadline(frail, lines):
    """Its places in the queue are free as soon as the engine is done."""
    asked = json.dumps({"text": lines[:60], "beam": 20, "nbest": 20, "stream": True})
    waiting = [frail.connect() for _ in range(4)]
    for connection in waiting:
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.request("POST", "/translate", asked, {"Content-Type": "application/json"})
    wait_until(lambda: frail.health["queue"] == frail.health["in_flight"] == 0)
    assert frail.translate("Ja.").status == 200
    ports = {connection.sock.getsockname()[1] for connection in waiting}
    wait_until(lambda: not ports & open_client_ports(frail))
    for connection in waiting:
        connection.close()


def open_client_ports(server: Served) -> set[int]:
    """Ports of the clients whose connections a process still holds open at the server's end (Linux)."""
    table = Path("/proc/net/tcp")
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return {int(row[2][-4:], 16) for row in rows if int(row[1][-4:], 16) == server.port and row[9] != "0"}


def test_queue_places_are_freed_when_the_engine_is_done_and_at_the_deadline():
    """Whether or not the response is read."""

    async def scenario() -> None:
        model = Letters()
        limits = Limits(max_beam=8, max_queue=4, max_items=4, deadline=PATIENCE)
        queue = RequestQueue(EngineThread(model, limits), limits)
        queue.open()
        try:
            unread = queue.submit([("hello", USUAL)] * 4, client="one", stream=True)
            with pytest.raises(QueueFull):
                queue.submit([("hello", USUAL)], client="two")
            while queue.queued:
                await asyncio.sleep(0.01)
            queue.limits = replace(limits, deadline=1.0)
            stuck = queue.submit([("slow", USUAL)] * 4, client="one", stream=True)
            while queue.queued:
                await asyncio.sleep(0.01)
            assert not model.over.is_set()  # the engine is in the middle of a forward pass
            assert len([event async for event in unread.events()]) == 8
            with pytest.raises(DeadlinePassed, match="0 of 4 texts were done within 1 seconds"):
                [event async for event in stuck.events()]
        finally:
            model.go.set()
            queue.engine.stop()

    run_async(scenario())


def test_an_unread_stream_ends_when_too_many_events_wait():
    async def scenario() -> None:
        model = Letters()
        limits = Limits(max_beam=8, max_queue=4096, max_items=4096, deadline=PATIENCE)
        queue = RequestQueue(EngineThread(model, limits), limits)
        queue.open()
        try:
            # Two events each. An engine that emits all of them before the loop runs is held at "slow" until they are seen.
            texts = ["a"] * 1400 + ["slow"] + ["a"] * 600
            submission = queue.submit([(text, Decoding(beam=2)) for text in texts], client="one", stream=True)
            while queue.queued and not (model.begun.is_set() and len(submission._events) > MOST_UNREAD):
                await asyncio.sleep(0.01)
            model.go.set()
            while queue.queued:
                await asyncio.sleep(0.01)
            assert len(submission._events) < 2 * MOST_UNREAD
            with pytest.raises(DeadlinePassed, match="waiting to be read"):
                [event async for event in submission.events()]
        finally:
            model.go.set()
            queue.engine.stop()

    run_async(scenario())


def test_large_requests_get_half_of_the_queue_and_each_request_is_bounded_in_hypotheses():
    async def scenario() -> None:
        model = Letters()
        queue = RequestQueue(EngineThread(model, Limits(max_beam=8)), Limits(max_beam=8, max_rows=100_000))
        queue.open()
        try:
            large = [queue.submit([("slow", USUAL)] * 128, client="one") for _ in range(2)]
            with pytest.raises(QueueFull, match="more than 2 texts have 256 of 256 places, 128 needed"):
                queue.submit([("slow", USUAL)] * 128, client="one")
            small = [queue.submit([("slow", USUAL)], client="one") for _ in range(256)]
            with pytest.raises(QueueFull, match="512 of 512 places are taken, 1 needed"):
                queue.submit([("slow", USUAL)], client="one")
            for each in (*large, *small):
                each.close()
            assert (queue.queued, queue.queued_by_large) == (0, 0)
            with pytest.raises(TooMuch, match="512,000 hypotheses at worst, a request may have 100,000; send fewer texts"):
                queue.submit([("slow", Decoding(beam=8, max_length=500))] * 128, client="one")
        finally:
            model.go.set()
            queue.engine.stop()

    run_async(scenario())


def test_a_second_sigterm_ends_the_server_at_once():
    server = Served("--row-budget", 1, "--deadline", 600, "--drain", 600)
    try:
        waiting = server.send(SLOW)
        wait_until(lambda: server.health["in_flight"] >= 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses_connections(server))
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        waiting.close()
    finally:
        server.stop()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux tells of another process")
def test_the_limit_on_open_files_is_in_force(frail):
    assert resource.prlimit(frail.process.pid, resource.RLIMIT_NOFILE)[0] == 128
