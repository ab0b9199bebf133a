"""Puts a proxy between a test and an S3 server. The proxy has one of the faults that connections and servers have."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOT_CARRIED = frozenset({"connection", "transfer-encoding", "content-length", "server", "date"})
ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'


@dataclass
class Answer:
    status: int
    body: bytes
    sent: int | None = None  # the proxy breaks the connection after this many bytes


# A fault gets a request's method and path and the server's response, and returns the changed response.
Fault = Callable[[str, str, Answer], Answer]


def none(method: str, path: str, answer: Answer) -> Answer:
    return answer


def error(status: int, code: str) -> Answer:
    return Answer(status, ERROR.format(code=code).encode())


def slow(seconds: float) -> Fault:
    def fault(method: str, path: str, answer: Answer) -> Answer:
        time.sleep(seconds)  # the latency is the fault
        return answer

    return fault


def unavailable_for(seconds: float) -> Fault:
    """Answer each request with 503 until ``seconds`` have passed since the first request."""
    first: list[float] = []

    def fault(method: str, path: str, answer: Answer) -> Answer:
        first.append(time.monotonic())
        return error(503, "ServiceUnavailable") if time.monotonic() - first[0] < seconds else answer

    return fault


def _is_object(method: str, path: str) -> bool:
    return method == "GET" and "/artifacts/" in path and "list-type" not in path


def truncated(method: str, path: str, answer: Answer) -> Answer:
    return Answer(answer.status, answer.body, len(answer.body) // 2) if _is_object(method, path) else answer


def altered(method: str, path: str, answer: Answer) -> Answer:
    if not _is_object(method, path):
        return answer
    body = bytearray(answer.body)
    body[-10] ^= 1
    return Answer(answer.status, bytes(body))


def another_clock(method: str, path: str, answer: Answer) -> Answer:
    """Answer as S3 does if a host's clock is off by an hour: S3 checks the time in a request's signature."""
    return error(403, "RequestTimeTooSkewed")


def revoked_after(requests: int) -> Fault:
    seen: list[str] = []

    def fault(method: str, path: str, answer: Answer) -> Answer:
        seen.append(path)
        return answer if len(seen) <= requests else error(403, "AccessDenied")

    return fault


@contextmanager
def to(port: int, fault: Fault) -> Iterator[int]:
    """Yield the port of a proxy that passes requests to a server on this machine and applies ``fault`` to its
    responses.
    """

    class Line(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _carry(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            far = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
            far.request(self.command, self.path, body, dict(self.headers.items()))
            response = far.getresponse()
            answer = fault(self.command, self.path, Answer(response.status, response.read()))
            length = response.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer.body))
            self.send_response(answer.status)
            for name, value in response.getheaders():
                if name.lower() not in NOT_CARRIED and not name.lower().startswith("x-amz-checksum"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(answer.body[: answer.sent])
            if answer.sent is not None:
                self.close_connection = True
            far.close()

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _carry

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Line)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
