"""Object stores on loopback for tests: an S3 server, a plain HTTP server, and how to measure them briefly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import PlainServer, serving, wait_for

from ioprobe.run import StorageJob

KEY, SECRET = "AKIATESTTESTTESTTEST", "s3cr3t/that+nobody/should=see"
SIZE = 100_000
"""Of each of the four objects below ``ds/`` [bytes]; fifty smaller ones lie below ``many/``."""


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "bucket"
    (folder / "ds").mkdir(parents=True)
    (folder / "many").mkdir()
    for number in range(4):
        (folder / "ds" / f"s-{number}.tar").write_bytes(os.urandom(SIZE))
    for number in range(50):
        (folder / "many" / f"s-{number:02d}.tar").write_bytes(os.urandom(SIZE // 10))
    return folder


@pytest.fixture(scope="module")
def http_store(bucket: Path) -> Iterator[Any]:
    pytest.importorskip("aiohttp", reason="http through fsspec needs aiohttp")
    with serving(PlainServer(bucket)) as server:
        yield server


@pytest.fixture(scope="module")
def s3_port(bucket: Path) -> Iterator[int]:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    pytest.importorskip("nanio", reason="the S3 server for tests is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ["--data-dir", str(bucket.parent), "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from nanio.__main__ import main; sys.exit(main())", "serve", *place],
        env={**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            wait_for(port)
            yield port
        finally:
            server.terminate()
            server.wait(10)


def options(endpoint: str, secret: str = SECRET) -> dict[str, Any]:
    return {"key": KEY, "secret": secret, "endpoint_url": endpoint}


def measure(url: str, seconds: float = 0.25, *, concurrency: int = 1, **more: Any) -> list[StorageJob]:
    from ioprobe.probe.storage_objects import measure_objects

    return measure_objects(url, seconds=seconds, concurrency=concurrency, **more)
