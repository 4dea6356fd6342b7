"""Object stores that refuse, cut, hang, truncate or lie: retried, counted, or named in one line without a secret."""

from __future__ import annotations

import itertools
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import FaultyProxy, PlainServer, serving
from object_servers import KEY, SECRET, SIZE, measure, options

from ioprobe.errors import StoreError, TargetError
from ioprobe.probe import storage_crew, storage_objects
from ioprobe.probe.engines import object_faults
from ioprobe.run import Host, Run, Workload, dumps, load

FAULTS = Path(__file__).parents[1] / "fixtures" / "pipelines" / "faults.py"


@pytest.fixture(scope="module", autouse=True)
def stalling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A measurement of storage that stalls for 30 s: it sleeps beside the tests of this file."""
    folder = tmp_path_factory.mktemp("stalling")
    command = [sys.executable, "-m", "ioprobe_cli", "loader", f"{FAULTS}:storage_stalls", "--seconds", "8", "-o", "out"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, folder
        finally:
            process.terminate()


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


@pytest.mark.parametrize("answer", ["429", "503"])
def test_throttled_requests_are_sent_again_and_counted(s3_port: int, answer: str) -> None:
    def every_third_get(number: int, line: str) -> str:
        return answer if line.startswith("GET /bucket/ds/") and number % 3 == 0 else ""

    with serving(FaultyProxy(s3_port, fault=every_third_get)) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is None
    assert sum(j.throttled for j in jobs) > 0
    assert sum(j.retries for j in jobs) >= sum(j.throttled for j in jobs)
    assert any(c.code == "throttled" for j in jobs for c in j.caveats)


def test_cut_connections_are_sent_again_and_counted(s3_port: int) -> None:
    def every_fourth_get(number: int, line: str) -> str:
        return "cut" if line.startswith("GET /bucket/ds/") and number % 4 == 0 else ""

    with serving(FaultyProxy(s3_port, fault=every_fourth_get)) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is None
    assert sum(j.retries for j in jobs) > 0
    assert sum(j.throttled for j in jobs) == 0


def test_a_store_that_only_throttles_fails_after_a_few_tries(s3_port: int) -> None:
    with serving(
        FaultyProxy(s3_port, fault=lambda n, line: "503" if line.startswith("GET /bucket/ds/") else "")
    ) as middle:
        jobs = measure("s3://bucket/ds", 2.0, storage_options=options(middle.url))
    assert len(jobs) == 1
    assert jobs[0].failure is not None
    assert "the store throttles (" in jobs[0].failure.message
    assert jobs[0].ops == 0


def test_credentials_that_expire_meanwhile_fail_at_once_with_the_reason(s3_port: int) -> None:
    with serving(
        FaultyProxy(s3_port, fault=lambda n, line: "denied" if line.startswith("GET /bucket/ds/") else "")
    ) as middle:
        jobs = measure("s3://bucket/ds", storage_options=options(middle.url))
    assert jobs[0].failure is not None
    assert "access was denied (ExpiredToken)" in jobs[0].failure.message
    assert "expired" in jobs[0].failure.hint


def test_a_store_that_hangs_is_given_up_in_bounded_time(http_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_objects, "_LIST_LIMIT_S", 0.1)
    monkeypatch.setattr(storage_crew, "_GRACE_S", 0.2)
    with (
        serving(FaultyProxy(http_store.port, fault=lambda n, line: "hang")) as middle,
        pytest.raises(StoreError, match="the store does not answer within 100 ms"),
    ):
        measure(f"{middle.url}/ds/s-0.tar")


def test_one_object_in_fifty_that_fails_is_named_and_the_figures_until_then_are_kept(http_store: Any) -> None:
    gets = itertools.count()

    def one_goes_bad(number: int, line: str) -> str:
        # Only once many others were read: the order is drawn, and the bad one may be the first.
        read = next(gets) if line.startswith("GET /many/") else 0
        return "500" if line.startswith("GET /many/s-37.tar ") and read > 100 else ""

    with serving(FaultyProxy(http_store.port, fault=one_goes_bad)) as middle:
        jobs = measure(f"{middle.url}/many/s-{{00..49}}.tar", 3.0)
    failed = [job for job in jobs if job.failure is not None]
    assert len(failed) == 1
    assert failed[0].failure is not None
    assert "/many/s-37.tar': the store failed (status 500)" in failed[0].failure.message
    assert sum(job.ops for job in jobs) > 20
    assert sum(job.bytes_read for job in jobs) > 20 * SIZE // 10


def test_requests_that_do_not_come_back_cost_neither_the_figures_of_the_others_nor_go_unsaid(http_store: Any) -> None:
    gets = itertools.count()

    def three_hang(number: int, line: str) -> str:
        return "hang" if line.startswith("GET") and next(gets) in (20, 21, 22) else ""

    with (
        serving(FaultyProxy(http_store.port, fault=three_hang)) as middle,
        storage_objects.ObjectsProbe(f"{middle.url}/many/s-{{00..49}}.tar", processes=1) as probe,
    ):
        probe.allow(0.0)
        job = probe.get("whole", 8, 1, 0.5)
    assert job.failure is None
    assert job.ops > 20
    assert [caveat.text.partition(" seconds")[0] for caveat in job.caveats if caveat.code == "hung"] == [
        "3 requests had not come back"
    ]


def test_short_bodies_are_not_taken_for_whole_objects(http_store: Any) -> None:
    with serving(
        FaultyProxy(http_store.port, fault=lambda n, line: "short" if line.startswith("GET") else "")
    ) as middle:
        jobs = measure(f"{middle.url}/ds/s-0.tar", 2.0)
    assert jobs[0].failure is not None
    assert f"{SIZE // 2} of {SIZE} bytes came" in jobs[0].failure.message


def test_a_missing_object_over_http_names_the_url(http_store: Any) -> None:
    with pytest.raises(TargetError, match=r"cannot read 'http://127.0.0.1:\d+/none.tar': there is no such object"):
        measure(f"{http_store.url}/none.tar?signature=SECRET")


def test_a_self_signed_certificate_is_named(tmp_path: Path, bucket: Path) -> None:
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
        serving(PlainServer(bucket, context=context)) as server,
        pytest.raises(StoreError, match="the server's certificate is not trusted"),
    ):
        measure(f"{server.url}/ds/s-0.tar")


def test_a_bucket_in_another_region_is_named_as_that(s3_port: int) -> None:
    with (
        serving(FaultyProxy(s3_port, fault=lambda number, line: "region")) as middle,
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


@pytest.mark.slow
def test_storage_that_stalls_for_thirty_seconds_is_waited_for_and_seen(
    stalling: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = stalling
    _, errors = process.communicate(timeout=90)  # the default --timeout is a minute
    assert process.returncode == 0, errors
    (found,) = [m for m in load(folder / "out").loaders if m.purpose == "baseline"]
    assert found.failure is None
    assert max(found.main.wait_s) > 28
