"""A loopback HTTP proxy that delays, throttles and cuts, and a plain server; tests and benchmarks load it by path."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Fault = Callable[[int, str], str]
"""(number of the request from 0, its first line) -> ``""`` or ``429 500 503 denied region cut short hang``."""

_REFUSALS = {
    "429": (b"429 Too Many Requests", "TooManyRequests"),
    "500": (b"500 Internal Server Error", "InternalError"),
    "503": (b"503 Slow Down", "SlowDown"),
    "denied": (b"403 Forbidden", "ExpiredToken"),
    "region": (b"301 Moved Permanently", "PermanentRedirect"),
}


class FaultyProxy(socketserver.ThreadingTCPServer):
    """Passes requests on to one upstream server, one connection each."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, upstream_port: int, *, delay_s: float = 0.0, fault: Fault | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream_port = upstream_port
        self.delay_s = delay_s
        self.fault = fault or (lambda number, line: "")
        self.count = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        """Set at the end, so that hanging answers end, too."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the game."""


class _Handler(socketserver.BaseRequestHandler):
    server: FaultyProxy

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (head := _head(self.request)) is not None:
            with self.server.lock:
                number = self.server.count
                self.server.count += 1
            line = head.split(b"\r\n", 1)[0].decode()
            fault = self.server.fault(number, line)
            if self.server.delay_s:
                self.server.released.wait(self.server.delay_s)
            if fault == "hang":
                self.server.released.wait(60)
                return
            if fault in _REFUSALS:
                status, code = _REFUSALS[fault]
                body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
                text = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
                self.request.sendall(text % len(body) + (b"" if line.startswith("HEAD") else body))
                continue
            if not self._pass(head, line, fault):
                return

    def _pass(self, head: bytes, line: str, fault: str) -> bool:
        """Send the request upstream and the answer back; return whether the connection goes on."""
        with socket.create_connection(("127.0.0.1", self.server.upstream_port)) as up:
            up.sendall(head)
            answer = _head(up)
            if answer is None:
                return False
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer)
            left = 0 if line.startswith("HEAD") else int(length[1]) if length else -1
            if fault == "short" and left > 1:
                # Says less and sends less: a proxy that truncates.
                answer = re.sub(rb"(?i)(\r\ncontent-length: *)\d+", rb"\g<1>%d" % (left // 2), answer)
                left //= 2
            elif fault == "cut" and left > 1:
                left //= 2
            self.request.sendall(answer)
            while left != 0:
                data = up.recv(65536 if left < 0 else min(65536, left))
                if not data:
                    break
                self.request.sendall(data)
                left -= len(data) if left > 0 else 0
            return fault != "cut" and length is not None


def _head(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = connection.recv(1)
        except OSError:
            return None
        if not more:
            return None
        data += more
    return data


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[Any]:
    """Run a server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if isinstance(server, FaultyProxy):
            server.released.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class PlainServer(socketserver.ThreadingTCPServer):
    """Serves a folder without ranges, as Python's own server does, and counts requests."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, folder: Path, *, context: Any = None) -> None:
        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def log_message(self, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.scheme = "https"

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the game."""


def wait_for(port: int, limit_s: float = 10.0) -> None:
    """Return when something listens on a loopback port."""
    until = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
