"""GETs through an fsspec client: one process, as many threads as requests in flight.

The client's own retries are switched off where it allows that, so that every
refusal is seen, counted and retried here. Nothing that a store or a client
says is passed on verbatim: it may hold keys or signatures.
"""

from __future__ import annotations

import array
import importlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.object_faults import ShortBody, classify
from ioprobe.probe.engines.object_listing import list_objects
from ioprobe.probe.host import package_version

_ATTEMPTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LATE_S = 3.0
"""Time after the end of a round in which requests may still come back; less than the crew's patience [s]."""

Get = Callable[[str, "int | None", "int | None"], int]
"""(path, first byte, end) -> bytes received."""


class Worker:
    """Lists, asks for sizes and reads objects; see :meth:`round`."""

    def __init__(self, job: dict[str, Any], board: Board, *, fs: Any = None) -> None:
        self.board, self.slot = board, job["slot"]
        self.protocol: str = job["protocol"]
        self.fs = fs or make_client(self.protocol, job["storage_options"], job.get("client", "fsspec"))
        self.items: list[tuple[str, int | None]] = []

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Carry out ``list``, ``head`` or ``get``; failures come back as facts, classified."""
        do = command["do"]
        try:
            if do == "list":
                return {**list_objects(self.fs, self.protocol, command), "client": client_name(self.fs)}, {}
            if do == "head":
                return {"failed": None}, {"latency_ns": _heads(self.fs, command["paths"], command["end_ns"])}
        except Exception as error:
            return {"failed": {**classify(error), "path": command.get("url", "")}}, {}
        if "items" in command:
            self.items = [(path, size) for path, size in command["items"]]
        return _Getting(self.fs, self.items, command, self.board, self.slot).run()

    def close(self) -> None:
        """The client closes with the process."""


def make_client(protocol: str, options: dict[str, Any], client: str) -> Any:
    """Return a file system whose own retries are off and whose waits are bounded."""
    import fsspec

    options = dict(options)
    if client == "obstore":
        importlib.import_module("obstore.fsspec").register(protocol, asynchronous=False)
        options = _for_obstore(options)
    elif protocol in ("s3", "s3a"):
        bounds = {"connect_timeout": 4, "read_timeout": 10, "retries": {"total_max_attempts": 1}}
        bounds["max_pool_connections"] = 128
        options["config_kwargs"] = {**bounds, **options.get("config_kwargs", {})}
    elif protocol in ("http", "https"):
        import aiohttp

        kwargs = dict(options.get("client_kwargs", {}))
        kwargs.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=4, sock_read=10))
        options["client_kwargs"] = kwargs
    if client != "obstore":
        options["use_listings_cache"] = False
    fs = fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    if hasattr(fs, "retries"):
        fs.retries = 1
    return fs


def _for_obstore(options: dict[str, Any]) -> dict[str, Any]:
    """Return s3fs's options in obstore's words, so that one command can ask both."""
    words = {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "endpoint_url": "endpoint",
    }
    inner = options.pop("client_kwargs", {})
    found = {words.get(name, name): value for name, value in {**inner, **options}.items()}
    if "region_name" in found:
        found["region"] = found.pop("region_name")
    if "endpoint" in found:
        found.setdefault("region", "us-east-1")  # a store of one's own has none, but the signature needs one
    found.setdefault("retry_config", {"max_retries": 0})
    found.setdefault("client_options", {"timeout": "10s", "connect_timeout": "4s", "allow_http": True})
    return found


def client_name(fs: Any) -> str:
    """Return the client's package and version, such as ``s3fs 2026.9.0``."""
    package = type(fs).__module__.split(".", 1)[0]
    return f"{package} {package_version(package) or ''}".rstrip()


def _heads(fs: Any, paths: list[str], end_ns: int) -> array.array[int]:
    times = array.array("q")
    for path in paths:
        fs.invalidate_cache()
        before = time.perf_counter_ns()
        fs.info(path)
        times.append(time.perf_counter_ns() - before)
        if time.perf_counter_ns() >= end_ns:
            break
    return times


class _Getting:
    def __init__(
        self, fs: Any, items: list[tuple[str, int | None]], command: dict[str, Any], board: Board, slot: int
    ) -> None:
        self.fs, self.items, self.board, self.at = fs, items, board, Board.at(slot)
        self.mode: str = command["mode"]
        self.range_bytes: int = command.get("range_bytes", 0)
        self.threads: int = command["threads"]
        self.at_ns, self.end_ns = command["at_ns"], command["end_ns"]
        self.random = random.Random(command["seed"])
        self.lock = threading.Lock()
        self.rows: list[tuple[int, int, int]] = []
        self.order: list[int] = []
        self.throttled = self.retries = self.ranges_ignored = 0
        self.failed: dict[str, Any] | None = None

    def run(self) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        cpu_before_s = time.process_time()
        threads = [threading.Thread(target=self._loop, daemon=True) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        # Requests that hang, however many, must not hold the others' figures back.
        limit_ns = self.end_ns + int(_LATE_S * 1e9)
        for thread in threads:
            thread.join(max(0.0, (limit_ns - time.perf_counter_ns()) / 1e9))
        hung = sum(t.is_alive() for t in threads)
        rows = sorted(self.rows)
        columns = {
            name: array.array("q", [row[i] for row in rows])
            for i, name in enumerate(("done_ns", "latency_ns", "nbytes"))
        }
        if hung and self.failed is None and not rows:
            self.failed = {"kind": "timeout", "text": "the store does not answer", "path": ""}
        facts = {
            "failed": self.failed,
            "throttled": self.throttled,
            "retries": self.retries,
            "ranges_ignored": self.ranges_ignored,
            "hung": hung,
            "cpu_s": time.process_time() - cpu_before_s,
            "at_ns": self.at_ns,
            "end_ns": self.end_ns,
        }
        return facts, columns

    def _next(self) -> tuple[str, int | None]:
        with self.lock:
            if not self.order:
                self.order = list(range(len(self.items)))
                self.random.shuffle(self.order)
            return self.items[self.order.pop()]

    def _loop(self) -> None:
        time.sleep(max(0.0, (self.at_ns - time.perf_counter_ns()) / 1e9))
        while time.perf_counter_ns() < self.end_ns and not self.board.words[0] and self.failed is None:
            path, size = self._next()
            before = time.perf_counter_ns()
            got = self._persist(path, size)
            now = time.perf_counter_ns()
            if got is None:
                continue
            with self.lock:
                self.rows.append((now, now - before, got))
                self.board.words[self.at] += 1
                self.board.words[self.at + 1] += got

    def _persist(self, path: str, size: int | None) -> int | None:
        """Get one object or range, again where that makes sense; None where it failed for good or time is over."""
        pause_s = _FIRST_PAUSE_S
        for attempt in range(_ATTEMPTS):
            try:
                return self._get(path, size)
            except Exception as error:
                found = classify(error)
            with self.lock:
                self.throttled += found["kind"] == "throttled"
                again = found["kind"] in ("throttled", "cut", "short", "server", "timeout")
                if not again or attempt == _ATTEMPTS - 1:
                    self.failed = self.failed or {**found, "path": path}
                    return None
                self.retries += 1
            left_s = (self.end_ns - time.perf_counter_ns()) / 1e9
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _get(self, path: str, size: int | None) -> int:
        if self.mode == "open":
            with self.fs.open(path, "rb") as file:
                got = len(file.read())
        elif self.mode == "range":
            length = min(self.range_bytes, size or self.range_bytes)
            start = self.random.randrange(max(1, (size or length) - length + 1))
            got = len(self.fs.cat_file(path, start=start, end=start + length))
            if got > length:
                self.ranges_ignored += 1
                return length
            size = length
        else:
            got = len(self.fs.cat_file(path))
        if size is not None and got != size:
            raise ShortBody(got, size)
        return got
