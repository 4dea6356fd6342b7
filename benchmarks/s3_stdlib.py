"""GETs from S3 with nothing but the standard library: ``http.client`` and a signature (AWS version 4) of its own.

What a client could cost: the yardstick beside which the clients of ``object_store.py`` stand. Run as a child of
that benchmark, with the job as JSON on stdin; prints figures as JSON.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import http.client
import json
import random
import sys
import threading
import time
from typing import Any
from urllib.parse import quote, urlsplit

_EMPTY = hashlib.sha256(b"").hexdigest()
_REGION = "us-east-1"


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    latencies: list[list[float]] = [[] for _ in range(job["threads"])]
    end = time.perf_counter() + job["seconds"]
    cpu, began = time.process_time(), time.perf_counter()
    threads = [threading.Thread(target=get_until, args=(job, end, found)) for found in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"latencies_s": [t for found in latencies for t in found], "wall_s": wall, "cpu_s": cpu}))


def get_until(job: dict[str, Any], end: float, latencies: list[float]) -> None:
    """Get objects or ranges over one connection."""
    host = urlsplit(job["endpoint"]).netloc
    connection = http.client.HTTPConnection(host, timeout=20)
    draw = random.Random(id(latencies))
    while (before := time.perf_counter()) < end:
        name = draw.choice(job["names"])
        wanted, headers = job["object_bytes"], {}
        if job["range_bytes"]:
            start = draw.randrange(wanted - job["range_bytes"] + 1)
            wanted = job["range_bytes"]
            headers["Range"] = f"bytes={start}-{start + wanted - 1}"
        path = quote(f"/{job['bucket']}/{name}")
        connection.request("GET", path, headers={**headers, **signature(host, path, job["key"], job["secret"])})
        answer = connection.getresponse()
        got = len(answer.read())
        if answer.status not in (200, 206) or got != wanted:
            raise SystemExit(f"status {answer.status}, {got} of {wanted} bytes")
        latencies.append(time.perf_counter() - before)
    connection.close()


def signature(host: str, path: str, key: str, secret: str) -> dict[str, str]:
    """Return the headers that sign a GET without query (AWS signature version 4)."""
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{_REGION}/s3/aws4_request"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"GET\n{path}\n\nhost:{host}\nx-amz-content-sha256:{_EMPTY}\nx-amz-date:{stamp}\n\n{names}\n{_EMPTY}"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signed = hmac.new(signing_key(secret, stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
    return {
        "x-amz-date": stamp,
        "x-amz-content-sha256": _EMPTY,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signed}",
    }


@functools.cache
def signing_key(secret: str, day: str) -> bytes:
    """Return the key of a day."""
    key = f"AWS4{secret}".encode()
    for part in (day, _REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


if __name__ == "__main__":
    main()
