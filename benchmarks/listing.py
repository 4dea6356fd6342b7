"""Listing a bucket of very many keys: time and peak memory of each way; prints a Markdown table.

    python benchmarks/listing.py [--keys 1000000] [--clients s3fs,obstore] [--ways probe,glob,shards]

The store is a loopback server that makes its pages of 1000 keys when asked for them, in a process of its own;
each row is measured in a fresh process, whose growth is its peak resident memory less that before it listed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PREFIX = "s3://b/ds/"
WAYS = {
    "storage probe": "probe",
    "storage probe, a glob": "glob",
    "dataset, every shard": "shards",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--clients", default="s3fs,obstore")
    parser.add_argument("--ways", default=",".join(WAYS.values()))
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS, metavar=("WAY", "CLIENT", "ENDPOINT"))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.keys)
    elif arguments.way:
        print(json.dumps(measure(*arguments.way)))
    else:
        clients = [name for name in arguments.clients.split(",") if importlib.util.find_spec(name)]
        table(arguments.keys, clients, arguments.ways.split(","))


def table(keys: int, clients: list[str], ways: list[str]) -> None:
    print("| listing | client | keys found | seconds | keys/s | growth of memory |")
    print("| --- | --- | --- | --- | --- | --- |")
    command = [sys.executable, __file__]
    with subprocess.Popen(
        [*command, "--serve", "--keys", str(keys)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        for title, way in WAYS.items():
            # A dataset is listed by the client that fsspec has for the scheme.
            able = ["s3fs"] if way == "shards" else clients
            for client in able if way in ways else []:
                done = subprocess.run(
                    [*command, "--way", way, client, endpoint], capture_output=True, text=True, check=True
                )
                found: dict[str, Any] = json.loads(done.stdout)
                print(
                    f"| {title} | {client} | {found['keys']:,} | {found['seconds']:.1f} | "
                    f"{found['keys'] / found['seconds']:,.0f} | {found['growth_bytes'] / (1 << 20):.0f} MiB |",
                    flush=True,
                )
        assert server.stdin is not None
        server.stdin.close()


def serve(keys: int) -> None:
    """Serve until standard input ends."""
    path = Path(__file__).parents[1] / "tests" / "listing_server.py"
    spec = importlib.util.spec_from_file_location("listing_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.listing(keys) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def measure(way: str, client: str, endpoint: str) -> dict[str, Any]:
    """Return ``keys``, ``seconds`` and ``growth_bytes`` of one listing."""
    from ioprobe.data.urls import list_shards
    from ioprobe.probe.engines.object_listing import list_objects
    from ioprobe.probe.engines.objects import make_client

    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    fs = make_client("s3", options, "obstore" if client == "obstore" else "fsspec")
    before = peak_bytes()
    began = time.perf_counter()
    if way == "shards":
        keys = len(list_shards(PREFIX, storage_options=options).shards)
    else:
        pattern = PREFIX + ("*.tar" if way == "glob" else "")
        keys = list_objects(fs, "s3", {"patterns": [pattern], "end_ns": 1 << 62})["objects"]
    return {"keys": keys, "seconds": time.perf_counter() - began, "growth_bytes": peak_bytes() - before}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
