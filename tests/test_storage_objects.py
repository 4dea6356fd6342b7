"""Object stores: a real S3 server and a plain HTTP server on loopback, with faults in between."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from listing_server import OBJECT_BYTES, listing

from ioprobe.errors import StoreError, TargetError, UsageError
from ioprobe.probe import storage_crew, storage_objects
from ioprobe.probe.engines import object_faults, object_listing, objects
from ioprobe.probe.storage import measure_dataset
from ioprobe.probe.storage_crew import Reply
from ioprobe.probe.storage_objects import measure_objects
from ioprobe.probe.storage_objects_words import knee_of, objects_window, side_by_side
from ioprobe.run import Host, Run, StorageJob, Workload, dumps

pytest.importorskip("aiohttp", reason="http through fsspec needs aiohttp")
_spec = importlib.util.spec_from_file_location("faulty_proxy", Path(__file__).with_name("faulty_proxy.py"))
assert _spec is not None
assert _spec.loader is not None
proxy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(proxy)

KEY, SECRET = "AKIATESTTESTTESTTEST", "s3cr3t/that+nobody/should=see"
SIZE = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bucket = tmp_path_factory.mktemp("store") / "bucket"
    (bucket / "ds").mkdir(parents=True)
    for number in range(4):
        (bucket / "ds" / f"s-{number}.tar").write_bytes(os.urandom(SIZE))
    return bucket


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[Any]:
    with proxy.serving(proxy.PlainServer(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def s3_port(folder: Path) -> Iterator[int]:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    pytest.importorskip("nanio", reason="the S3 server for tests is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ["--data-dir", str(folder.parent), "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from nanio.__main__ import main; sys.exit(main())", "serve", *place],
        env={**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            proxy.wait_for(port)
            yield port
        finally:
            server.terminate()
            server.wait(10)


def options(endpoint: str, secret: str = SECRET) -> dict[str, Any]:
    return {"key": KEY, "secret": secret, "endpoint_url": endpoint}


def measure(url: str, seconds: float = 0.25, **more: Any) -> list[StorageJob]:
    return measure_objects(url, seconds=seconds, concurrency=1, **more)


def test_whole_objects_and_ranges_are_read_from_s3_and_the_client_is_named(s3_port: int) -> None:
    whole, ranges = measure("s3://bucket/ds", storage_options=options(f"http://127.0.0.1:{s3_port}"))
    assert whole.failure is None
    assert whole.bytes_read == whole.ops * SIZE > 0
    assert ranges.bytes_read == ranges.ops * (16 << 10) > 0
    assert whole.client is not None
    assert whole.client.startswith("s3fs ")
    assert None not in (whole.list_s, whole.open_s, ranges.first_byte_s)
    assert (whole.retries, whole.throttled) == (0, 0)
    assert "request-costs" in {c.code for c in whole.caveats}


def test_measure_dataset_takes_an_object_store_url_and_gives_samples(s3_port: int) -> None:
    jobs = measure_dataset(
        "s3://bucket/ds/s-{0..3}.tar",
        seconds=0.4,
        concurrency=1,
        samples_per_shard=50,
        storage_options=options(f"http://127.0.0.1:{s3_port}"),
    )
    assert jobs[0].samples == round(jobs[0].bytes_read / SIZE * 50)


def test_credentials_never_reach_the_run_file(s3_port: int) -> None:
    jobs = measure("s3://bucket/ds", 0.2, storage_options=options(f"http://127.0.0.1:{s3_port}"))
    text = dumps(Run(kind="storage", created_at="", version="", host=Host(), workload=Workload(), storage=jobs))
    assert SECRET.encode() not in text
    assert KEY.encode() not in text


def test_a_wrong_secret_is_one_line_about_credentials(s3_port: int) -> None:
    with pytest.raises(StoreError, match=r"cannot read 's3://bucket/ds': access was denied") as caught:
        measure("s3://bucket/ds", storage_options=options(f"http://127.0.0.1:{s3_port}", "wrong"))
    assert "credentials" in caught.value.hint
    assert "wrong" not in caught.value.message


def test_a_missing_prefix_is_a_target_error(s3_port: int) -> None:
    with pytest.raises(TargetError, match=r"cannot read 's3://bucket/none': there is no such object or bucket"):
        measure("s3://bucket/none", storage_options=options(f"http://127.0.0.1:{s3_port}"))


def test_an_endpoint_where_nothing_listens_is_named_as_that() -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(StoreError, match="nothing answers at the endpoint"):
        measure("s3://bucket/ds", storage_options=options("http://127.0.0.1:1"))


def test_throttled_requests_are_sent_again_and_counted(s3_port: int) -> None:
    def every_third_get(number: int, line: str) -> str:
        return "503" if line.startswith("GET /bucket/ds/") and number % 3 == 0 else ""

    with proxy.serving(proxy.FaultyProxy(s3_port, fault=every_third_get)) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is None
    assert sum(j.throttled for j in jobs) > 0
    assert sum(j.retries for j in jobs) >= sum(j.throttled for j in jobs)
    assert any(c.code == "throttled" for j in jobs for c in j.caveats)


def test_cut_connections_are_sent_again_and_counted(s3_port: int) -> None:
    def every_fourth_get(number: int, line: str) -> str:
        return "cut" if line.startswith("GET /bucket/ds/") and number % 4 == 0 else ""

    with proxy.serving(proxy.FaultyProxy(s3_port, fault=every_fourth_get)) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is None
    assert sum(j.retries for j in jobs) > 0
    assert sum(j.throttled for j in jobs) == 0


def test_a_store_that_only_throttles_fails_after_a_few_tries(s3_port: int) -> None:
    with proxy.serving(
        proxy.FaultyProxy(s3_port, fault=lambda n, line: "503" if line.startswith("GET /bucket/ds/") else "")
    ) as middle:
        jobs = measure("s3://bucket/ds", 2.0, storage_options=options(middle.url))
    assert len(jobs) == 1
    assert jobs[0].failure is not None
    assert "the store throttles (" in jobs[0].failure.message
    assert jobs[0].ops == 0


def test_credentials_that_expire_meanwhile_fail_at_once_with_the_reason(s3_port: int) -> None:
    with proxy.serving(
        proxy.FaultyProxy(s3_port, fault=lambda n, line: "denied" if line.startswith("GET /bucket/ds/") else "")
    ) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is not None
    assert "access was denied (ExpiredToken)" in jobs[0].failure.message
    assert "expired" in jobs[0].failure.hint


def test_a_store_that_hangs_is_given_up_in_bounded_time(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_objects, "_LIST_LIMIT_S", 0.1)
    monkeypatch.setattr(storage_crew, "_GRACE_S", 0.2)
    with (
        proxy.serving(proxy.FaultyProxy(http.port, fault=lambda n, line: "hang")) as middle,
        pytest.raises(StoreError, match="the store does not answer within 100 ms"),
    ):
        measure(f"{middle.url}/ds/s-0.tar")


def test_latency_of_the_store_shows_in_the_figures(http: Any) -> None:
    with proxy.serving(proxy.FaultyProxy(http.port, delay_s=0.05)) as middle:
        jobs = measure(f"{middle.url}/ds/s-0.tar", 0.6)
    assert jobs[0].open_s is not None
    assert jobs[0].open_s >= 0.05
    assert jobs[1].latency_s["p50"] >= 0.05


def test_a_server_without_ranges_is_found_out(http: Any) -> None:
    _, ranges = measure(f"{http.url}/ds/s-{{0..3}}.tar")
    assert "no-ranges" in {c.code for c in ranges.caveats}
    assert ranges.bytes_read == ranges.ops * (16 << 10)


def test_short_bodies_are_not_taken_for_whole_objects(http: Any) -> None:
    with proxy.serving(
        proxy.FaultyProxy(http.port, fault=lambda n, line: "short" if line.startswith("GET") else "")
    ) as middle:
        jobs = measure(f"{middle.url}/ds/s-0.tar", 2.0)
    assert jobs[0].failure is not None
    assert f"{SIZE // 2} of {SIZE} bytes came" in jobs[0].failure.message


def test_a_missing_object_over_http_names_the_url(http: Any) -> None:
    with pytest.raises(TargetError, match=r"cannot read 'http://127.0.0.1:\d+/none.tar': there is no such object"):
        measure(f"{http.url}/none.tar?signature=SECRET")


def test_a_self_signed_certificate_is_named(tmp_path: Path, folder: Path) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("openssl is not there to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with (
        proxy.serving(proxy.PlainServer(folder, context=context)) as server,
        pytest.raises(StoreError, match="the server's certificate is not trusted"),
    ):
        measure(f"{server.url}/ds/s-0.tar")


def test_the_ladder_names_a_knee_and_compares_processes(http: Any) -> None:
    jobs = measure_objects(f"{http.url}/ds/s-{{0..3}}.tar", seconds=1.0, concurrency=2, ladder=True)
    assert all(j.failure is None for j in jobs)
    assert {j.depth for j in jobs} >= {1, 4}
    codes = [c.code for j in jobs for c in j.caveats]
    assert codes.count("knee") == 2
    assert codes.count("processes") == 1


def test_a_client_that_is_not_installed_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the client for 'unknown-scheme://b/x' cannot be used"):
        measure("unknown-scheme://b/x")


def test_a_store_of_one_process_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'memory://x' lives in one process only"):
        measure("memory://x")


class PagedStore:
    """An S3 client of endless keys: 1000 a page, made when asked for; knows how many pages live at once."""

    def __init__(self, pages: int) -> None:
        asyn = pytest.importorskip("fsspec.asyn")
        self.loop = asyn.get_loop()
        self.count, self.living, self.most_living, self.prefixes = pages, 0, 0, [""]

    async def set_session(self) -> None:
        pass

    async def get_s3(self, bucket: str) -> PagedStore:
        return self

    def get_paginator(self, name: str) -> PagedStore:
        return self

    async def paginate(self, **asked: str) -> AsyncIterator[dict[str, Any]]:
        self.prefixes.append(asked["Prefix"])
        for page in range(self.count):
            entries = LivingPage({"Key": f"ds/{page:04d}-{n:03d}.tar", "Size": 2} for n in range(1000))
            self.living += 1
            weakref.finalize(entries, self._gone)
            self.most_living = max(self.most_living, self.living)
            found, entries = {"Contents": entries}, None
            yield found
            del found

    def _gone(self) -> None:
        self.living -= 1

    def _strip_protocol(self, url: str) -> str:
        return url.removeprefix("s3://")

    def info(self, url: str) -> dict[str, str]:
        return {"type": "directory"}


class LivingPage(list[Any]):
    """A list that can be watched."""


def listed(store: PagedStore, pattern: str, end_ns: int = 1 << 62) -> dict[str, Any]:
    return object_listing.list_objects(store, "s3", {"patterns": [pattern], "end_ns": end_ns})


@pytest.mark.parametrize(("pattern", "objects"), [("s3://b/ds", 30_000), ("s3://b/ds/00?[02]-*.tar", 6_000)])
def test_keys_are_listed_page_by_page_and_a_sample_of_them_is_kept(
    pattern: str, objects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_listing, "MOST_LISTED", 500)
    store = PagedStore(30)
    found = listed(store, pattern)
    assert (found["objects"], found["bytes"], found["cut"]) == (objects, 2 * objects, False)
    assert len({path for path, _ in found["rows"]}) == 500
    assert store.most_living <= 3
    assert store.prefixes[-1] == "ds/"


def test_a_listing_that_takes_too_long_is_cut_and_says_so() -> None:
    found = listed(PagedStore(30), "s3://b/ds", end_ns=0)
    assert (found["objects"], found["cut"]) == (1000, True)


def test_a_listing_that_ends_in_time_with_its_first_page_is_whole() -> None:
    assert not listed(PagedStore(1), "s3://b/ds", end_ns=0)["cut"]


def s3_client(name: str, url: str) -> Any:
    # obstore takes s3fs's place in fsspec's registry, which the tests that follow need.
    with mock.patch.dict(pytest.importorskip("fsspec.registry")._registry):
        return objects.make_client("s3", options(url), "obstore" if name == "obstore" else "fsspec")


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
@pytest.mark.parametrize("pattern", ["s3://b/ds", "s3://b/ds/", "s3://b/ds/*.tar"])
def test_clients_list_page_by_page_in_memory_that_does_not_grow_with_the_keys(
    client: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(client)
    pytest.importorskip("s3fs")
    monkeypatch.setattr(object_listing, "MOST_LISTED", 500)
    peaks = []
    for keys in (3_000, 9_000):
        with listing(keys) as server:
            fs = s3_client(client, server.url)
            ask = {"patterns": [pattern], "end_ns": 0}
            object_listing.list_objects(fs, "s3", ask)  # what the client needs once is there now
            before = server.pages
            tracemalloc.start()
            found = object_listing.list_objects(fs, "s3", {**ask, "end_ns": 1 << 62})
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert (found["objects"], found["bytes"]) == (keys, OBJECT_BYTES * keys)
            assert server.pages - before <= keys // 1000 + 1
    assert peaks[1] < peaks[0] + (1 << 20)


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_a_glob_in_a_store_lists_what_it_matches(s3_port: int, client: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")
    jobs = measure(
        "s3://bucket/d?/s-[01].tar", 0.1, client=client, storage_options=options(f"http://127.0.0.1:{s3_port}")
    )
    assert jobs[0].failure is None
    with pytest.raises(TargetError, match="no object there"):
        measure("s3://bucket/ds/*.none", client=client, storage_options=options(f"http://127.0.0.1:{s3_port}"))


def test_a_bucket_in_another_region_is_named_as_that(s3_port: int) -> None:
    with (
        proxy.serving(proxy.FaultyProxy(s3_port, fault=lambda number, line: "region")) as middle,
        pytest.raises(StoreError, match="the bucket is in another region") as caught,
    ):
        measure("s3://bucket/ds", storage_options=options(middle.url))
    assert caught.value.hint == "set the bucket's region, such as AWS_DEFAULT_REGION"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("SlowDown: please reduce your request rate"), "throttled"),
        (PermissionError("Forbidden"), "denied"),
        (FileNotFoundError("x"), "missing"),
        (ConnectionResetError("x"), "cut"),
        (TimeoutError("x"), "timeout"),
        (ssl.SSLCertVerificationError("certificate verify failed"), "tls"),
        (OSError("AuthorizationHeaderMalformed: expecting 'eu-west-1'"), "region"),
        (ValueError("key=SECRET"), "other"),
    ],
)
def test_what_clients_raise_is_classed_without_repeating_it(error: Exception, kind: str) -> None:
    found = object_faults.classify(error)
    assert found["kind"] == kind
    assert "SECRET" not in json.dumps(found)


def _rung(depth: int, rate: float) -> StorageJob:
    return StorageJob(name=f"x{depth}", url="u", pattern="objects", depth=depth, bytes_read=int(rate), window_s=1.0)


def test_the_knee_is_the_least_concurrency_near_the_best_rate() -> None:
    knee = knee_of([_rung(1, 100), _rung(4, 380), _rung(16, 400), _rung(64, 390)])
    assert knee is not None
    assert knee.depth == 4
    assert knee_of([]) is None


def test_the_window_leaves_out_ramp_and_tail() -> None:
    done = np.arange(1, 21, dtype=np.int64) * 1_000_000_000
    columns = {"done_ns": done, "latency_ns": np.full(20, 2_000_000_000), "nbytes": np.full(20, 10)}
    window = objects_window([Reply({"at_ns": 0, "end_ns": int(done[-1]) - 1}, columns)], threads=2)
    assert window is not None
    assert (window.ops, window.seconds) == (17, 17.0)


def test_clients_side_by_side_say_which_is_the_limit() -> None:
    slow, fast = _rung(1, 100), _rung(1, 300)
    slow.client, fast.client = "s3fs 1", "obstore 2"
    jobs = side_by_side([[slow], [fast]])
    assert [j.name for j in jobs] == ["s3fs: x1", "obstore: x1"]
    assert jobs[0].caveats[0].text == (
        "obstore 2 reaches 300 B/s, s3fs 1 100 B/s (3.0 times): the slower client is the limit, not the store"
    )


def test_obstore_is_given_the_same_options_in_its_own_words() -> None:
    found = objects._for_obstore(
        {"key": "k", "secret": "s", "endpoint_url": "http://x", "client_kwargs": {"region_name": "eu"}}
    )
    names = ("access_key_id", "secret_access_key", "endpoint", "region")
    assert [found[n] for n in names] == ["k", "s", "http://x", "eu"]


def test_obstore_reads_the_same_objects(s3_port: int) -> None:
    pytest.importorskip("obstore", reason="obstore is optional")
    whole, ranges = measure("s3://bucket/ds", storage_options=options(f"http://127.0.0.1:{s3_port}"), client="obstore")
    assert whole.failure is None
    assert whole.bytes_read == whole.ops * SIZE > 0
    assert (whole.client or "").startswith("obstore ")
    assert ranges.failure is None
