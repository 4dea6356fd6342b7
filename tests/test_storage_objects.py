"""Object stores: a real S3 server and a plain HTTP server on loopback."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from faulty_proxy import FaultyProxy, serving
from listing_server import OBJECT_BYTES, listing
from object_servers import SIZE, measure, options

from ioprobe.errors import TargetError, UsageError
from ioprobe.probe.engines import object_listing, objects
from ioprobe.probe.storage import measure_dataset
from ioprobe.probe.storage_crew import Reply
from ioprobe.probe.storage_objects import measure_objects
from ioprobe.probe.storage_objects_words import knee_of, objects_window, side_by_side
from ioprobe.run import StorageJob


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


def test_latency_of_the_store_shows_in_the_figures(http_store: Any) -> None:
    with serving(FaultyProxy(http_store.port, delay_s=0.05)) as middle:
        jobs = measure(f"{middle.url}/ds/s-0.tar", 0.6)
    assert jobs[0].open_s is not None
    assert jobs[0].open_s >= 0.05
    assert jobs[1].latency_s["p50"] >= 0.05


def test_a_server_without_ranges_is_found_out(http_store: Any) -> None:
    _, ranges = measure(f"{http_store.url}/ds/s-{{0..3}}.tar")
    assert "no-ranges" in {c.code for c in ranges.caveats}
    assert ranges.bytes_read == ranges.ops * (16 << 10)


def test_the_ladder_names_a_knee_and_compares_processes(http_store: Any) -> None:
    jobs = measure_objects(f"{http_store.url}/ds/s-{{0..3}}.tar", seconds=1.0, concurrency=2, ladder=True)
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
    for keys in (2_000, 10_000):
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
    # A page or two may wait for Python's collector; all the keys would be some 4 MB.
    assert peaks[1] < peaks[0] + (2 << 20)


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
