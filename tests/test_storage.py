"""The dataset's own reads: what is planned, what comes out, what is said when it goes wrong."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ioprobe.diagnosis import storage as rates
from ioprobe.errors import StoreError, TargetError
from ioprobe.probe import storage, storage_members, storage_plan
from ioprobe.probe.storage import measure_dataset
from ioprobe.probe.storage_crew import Reply
from ioprobe.probe.storage_members import members_of
from ioprobe.probe.storage_place import Place, place_of
from ioprobe.probe.storage_plan import plan_dataset
from ioprobe.probe.storage_series import Window, narrow_enough, replies_window, scaled_to_window, slice_series
from ioprobe.probe.storage_tar import index_tar
from ioprobe.run import DatasetFacts, StorageJob

SAMPLES, PAYLOAD = 40, 5000


def write_tar(path: Path, samples: int = SAMPLES) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for suffix, data in (("jpg", os.urandom(PAYLOAD)), ("cls", b"12")):
                member = tarfile.TarInfo(f"{number:05d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: Path) -> str:
    for number in range(3):
        write_tar(tmp_path / f"s-{number}.tar")
    return f"{tmp_path}/s-{{0..2}}.tar"


@pytest.fixture
def on_disk(tmp_path: Path) -> None:
    if place_of(tmp_path).in_memory or place_of(tmp_path).filesystem == "overlay":
        pytest.skip("the folder for tests has no page cache of its own to empty")


def test_shards_are_read_cold_then_warm_then_by_single_samples(shards: str, on_disk: None) -> None:
    jobs = measure_dataset(shards, seconds=0.6, concurrency=2, samples_per_shard=SAMPLES)
    assert [(j.pattern, j.cache_state) for j in jobs] == [("shards", "cold"), ("shards", "warm"), ("members", "cold")]
    cold, warm, members = jobs
    assert cold.resident_before == 0.0
    assert warm.resident_before == 1.0
    assert warm.device_read_bytes in (0, None)
    assert cold.device_read_bytes is None or cold.device_read_bytes >= cold.bytes_read * 0.9
    assert members.bytes_read > 0
    assert all(j.failure is None and j.processes >= 2 for j in jobs)
    total = 3 * SAMPLES
    size = sum(Path(p).stat().st_size for p in Path(shards).parent.glob("*.tar"))
    assert cold.samples == pytest.approx(cold.bytes_read * total / size, abs=1)


def test_the_share_of_bytes_that_belong_to_samples_comes_from_tar_headers(shards: str) -> None:
    plan = plan_dataset(shards)
    size = sum(path.stat().st_size for path in Path(shards).parent.glob("*.tar"))
    assert plan.file_bytes == plan.planned_bytes == size
    assert plan.used_share == pytest.approx((PAYLOAD + 2) / (512 + 5120 + 512 + 512))
    assert plan.samples == pytest.approx(3 * SAMPLES, rel=0.1)
    assert "samples-estimated" in {c.code for c in plan.caveats}


def test_known_samples_need_no_estimate(shards: str) -> None:
    facts = DatasetFacts(url=shards, format="webdataset", num_shards=3, num_samples=120)
    plan = plan_dataset(shards, facts=facts)
    assert plan.samples == 120
    assert plan.caveats == []
    assert plan_dataset(shards, samples_per_shard=40).samples == 120


def test_only_the_columns_that_the_loader_reads_are_planned(tmp_path: Path) -> None:
    table = pa.table({"image": [os.urandom(2000) for _ in range(100)], "label": list(range(100))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=25)
    everything = plan_dataset(str(tmp_path / "a.parquet"))
    labels = plan_dataset(str(tmp_path / "a.parquet"), columns=["label"])
    assert (everything.pattern, len(everything.groups), everything.samples) == ("row-groups", 4, 100)
    assert labels.planned_bytes < everything.planned_bytes / 20
    assert "columns label" in labels.caveats[0].text


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(TargetError, match="no rows in the columns read: y"):
        plan_dataset(str(tmp_path / "a.parquet"), columns=["y"])


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TargetError, match=r"cannot read '.*a.parquet' as Parquet: ") as caught:
        plan_dataset(str(tmp_path / "a.parquet"))
    assert "\n" not in caught.value.message


def test_row_groups_are_read_and_counted_in_rows(tmp_path: Path) -> None:
    table = pa.table({"image": [os.urandom(2000) for _ in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=25)
    jobs = measure_dataset(str(tmp_path / "a.parquet"), seconds=0.3, concurrency=2)
    assert {j.pattern for j in jobs} == {"row-groups"}
    assert all(j.samples and j.failure is None for j in jobs)


def test_many_small_files_are_one_sample_each(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(os.urandom(3000))
    plan = plan_dataset(str(tmp_path))
    assert (plan.pattern, len(plan.groups), plan.samples) == ("files", 50, 50)
    jobs = measure_dataset(str(tmp_path), seconds=0.3, concurrency=2)
    assert all(j.samples == j.ops for j in jobs)
    assert jobs[0].open_s is not None


def test_token_files_are_read_at_random_in_pieces_of_a_sample(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(os.urandom(100_000))
    facts = DatasetFacts(url="x", format="tokens", num_samples=50, total_bytes=100_000)
    plan = plan_dataset(str(tmp_path / "train.bin"), facts=facts)
    assert (plan.pattern, plan.sample_bytes, plan.samples) == ("random", 2000, 50)
    offsets = [offset for group in plan.groups for _, spans in group for offset, _ in spans]
    assert sorted(offsets) == list(range(0, 100_000, 2000))
    assert offsets != sorted(offsets)


def test_long_files_are_planned_in_segments_that_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_plan, "SEGMENT_BYTES", 1000)
    (tmp_path / "a.tar").write_bytes(bytes(2500))
    plan = plan_dataset(str(tmp_path / "a.tar"))
    assert [spans for _, spans in plan.groups[0]] == [[(0, 1000)], [(1000, 1000)], [(2000, 500)]]
    assert len(plan.shares(4, 0)) == 1


def test_single_samples_need_a_known_size(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 100)
    assert members_of(plan_dataset(str(tmp_path / "a.jsonl")), 0) is None


def test_single_samples_of_tars_are_the_members_that_their_headers_tell(shards: str) -> None:
    members = members_of(plan_dataset(shards), 0)
    assert members is not None
    assert members.samples == 3 * SAMPLES
    assert members.planned_bytes == 3 * SAMPLES * (PAYLOAD + 2)
    assert members.caveats == []
    for [(path, spans)] in members.groups:
        with tarfile.open(path) as tar:
            assert set(spans) <= {(m.offset_data, m.size) for m in tar}
    order = [span for [(_, spans)] in members.groups for span in spans]
    assert order != sorted(order)
    assert sorted(len(spans) for [(_, spans)] in members.groups)[-1] == 32  # two members each of 16 samples


def test_where_headers_take_too_long_the_samples_found_until_then_are_read(
    shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_members, "_INDEX_LIMIT_S", 0.0)
    members = members_of(plan_dataset(shards), 0)
    assert members is not None
    assert members.samples == 1
    assert [c.code for c in members.caveats] == ["members-sampled"]
    assert "0 of 3 shards are indexed whole" in members.caveats[0].text


def test_single_samples_of_other_shards_are_ranges_of_the_mean_size_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 100)
    members = members_of(plan_dataset(str(tmp_path / "a.jsonl"), samples_per_shard=100), 0)
    assert members is not None
    assert (members.sample_bytes, members.samples) == (3, 100)
    assert [c.code for c in members.caveats] == ["mean-sized-samples"]


def test_compressed_shards_have_no_single_samples(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(bytes(1000))
    assert members_of(plan_dataset(str(tmp_path / "a.tar.gz"), samples_per_shard=10), 0) is None


def test_a_damaged_tar_gives_the_samples_before_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path)
    whole = index_tar(str(path))
    with open(path, "r+b") as file:
        file.seek(whole.span_bytes // 2 // 512 * 512)
        file.write(b"\xff" * 20_000)
    found = index_tar(str(path))
    assert whole.complete
    assert not found.complete
    assert found.samples == whole.samples[: len(found.samples)] != []
    assert index_tar(str(tmp_path / "none.tar")).samples == []


def test_empty_shards_are_left_out_and_named(shards: str) -> None:
    empty = Path(shards).parent / "s-1.tar"
    empty.write_bytes(b"")
    plan = plan_dataset(shards)
    assert len(plan.paths) == 2
    assert f"1 of 3 files have zero bytes, the first is '{empty}'" in {c.text for c in plan.caveats}


def test_a_dataset_with_holes_is_said_to_cost_nothing(tmp_path: Path) -> None:
    if place_of(tmp_path).in_memory:
        pytest.skip("no blocks are counted in memory")
    with open(tmp_path / "holes.tar", "wb") as file:
        file.truncate(4 << 20)
    caveats = {c.code: c.text for c in plan_dataset(str(tmp_path / "holes.tar")).caveats}
    assert "0 B on disk for 4.0 MiB" in caveats["sparse-files"]


def test_a_dataset_of_nothing_but_empty_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    with pytest.raises(TargetError, match="holds no data: 1 files of zero bytes"):
        measure_dataset(str(tmp_path / "a.tar"), seconds=0.1, concurrency=1)


@pytest.mark.parametrize("name", ["none.tar", "*.none", "x-{0..3}.tar"])
def test_a_dataset_that_is_not_there_is_a_target_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(TargetError, match="cannot read dataset"):
        measure_dataset(f"{tmp_path}/{name}", seconds=0.1, concurrency=1)


def test_a_dataset_that_may_not_be_read_is_a_store_error(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def denied(path: str, flags: int, *more: int) -> int:
        if str(path).endswith(".tar"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *more)

    monkeypatch.setattr(storage.os, "open", denied)
    with pytest.raises(StoreError, match=r"cannot read '.*s-0.tar': Permission denied"):
        measure_dataset(shards, seconds=0.1, concurrency=1)


def test_a_shard_that_vanishes_after_listing_leaves_a_failure_and_the_figures_of_the_rest(
    shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Path(shards).parent / "s-2.tar"
    monkeypatch.setattr(storage, "_readable", lambda plan: gone.unlink())
    jobs = measure_dataset(shards, seconds=0.3, concurrency=1)
    assert jobs[0].failure is not None
    assert jobs[0].failure.message == f"cannot read '{gone}': No such file or directory"
    assert jobs[0].bytes_read > 0


def test_files_in_memory_are_measured_warm_only_and_named_as_such(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "place_of", lambda path: Place("tmpfs", "tmpfs", "/tmp"))
    jobs = measure_dataset(shards, seconds=0.3, concurrency=1)
    assert [j.cache_state for j in jobs] == ["warm"]
    codes = {c.code for c in jobs[0].caveats}
    assert "memory-filesystem" in codes
    assert "fits-in-memory" not in codes


def test_a_dataset_that_fits_in_memory_is_said_to_with_both_rates(shards: str, on_disk: None) -> None:
    text = next(c.text for c in measure_dataset(shards, seconds=0.4, concurrency=1)[0].caveats if "fits" in c.code)
    assert text.startswith("the dataset fits in RAM (")
    assert " against " in text
    assert text.endswith(" cold)")


def test_fewer_shards_than_workers_is_said(shards: str) -> None:
    jobs = measure_dataset(shards, seconds=0.3, concurrency=8)
    assert jobs[0].processes == 3
    assert "3 shards for 8 workers: only 3 read at a time" in {c.text for c in jobs[0].caveats}


def test_a_cache_that_cannot_be_dropped_makes_the_figure_mixed(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.pagecache, "drop", lambda paths: storage.pagecache.Dropped(1.0, 1.0, 0))
    jobs = measure_dataset(shards, seconds=0.3, concurrency=1)
    assert jobs[0].cache_state == "mixed"
    assert "cache-not-dropped" in {c.code for c in jobs[0].caveats}


def test_the_dataset_is_never_written(shards: str) -> None:
    folder = Path(shards).parent
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    measure_dataset(shards, seconds=0.2, concurrency=1)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def reply(done_ms: list[float], nbytes: int = 10) -> Reply:
    done = (np.array(done_ms) * 1e6).astype(np.int64)
    return Reply(
        {}, {"done_ns": done, "latency_ns": np.full(done.size, 1_000_000), "nbytes": np.full(done.size, nbytes)}
    )


def test_the_window_is_where_every_process_was_reading() -> None:
    window = replies_window([reply([1, 2, 3, 4, 5, 6]), reply([3, 4, 5])])
    assert window is not None
    assert window.seconds == pytest.approx(0.002)
    assert window.done_s.tolist() == pytest.approx([0.001, 0.001, 0.002, 0.002])
    assert replies_window([]) is None


def test_a_single_read_counts_from_its_start() -> None:
    window = replies_window([reply([5])])
    assert window is not None
    assert (window.ops, window.seconds) == (1, pytest.approx(0.001))


def test_slices_add_up_to_all_that_was_read() -> None:
    windows = [
        Window(2.0, np.linspace(0.1, 2.0, 20), np.full(20, 5.0), np.full(20, 0.1)),
        Window(1.0, np.linspace(0.1, 1.0, 10), np.full(10, 5.0), np.full(10, 0.1)),
    ]
    per_s, lengths = slice_series(windows)
    assert float((per_s * lengths).sum()) == pytest.approx(150)
    assert float(lengths.sum()) == pytest.approx(3.0)
    assert float((slice_series(windows, ops=True)[0] * lengths).sum()) == pytest.approx(30)


def test_a_steady_rate_is_narrow_enough_and_a_wild_one_is_not() -> None:
    lengths = np.full(40, 0.1)
    assert narrow_enough(np.full(40, 100.0), lengths)
    assert not narrow_enough(np.random.default_rng(0).uniform(10, 300, 40), lengths)
    assert not narrow_enough(np.full(4, 100.0), lengths[:4])


def test_device_bytes_are_scaled_to_the_window() -> None:
    assert scaled_to_window(1000, 300, 600) == 500
    assert scaled_to_window(0, 300, 600) == 0
    assert scaled_to_window(None, 300, 600) is None
    assert scaled_to_window(1000, 0, 0) == 1000


def test_mounts_are_found_by_the_longest_and_newest_match(tmp_path: Path) -> None:
    table = "\n".join(
        [
            "1 0 8:1 / / rw - ext4 /dev/sda rw",
            f"2 1 0:5 / {tmp_path} rw - nfs4 server:/x rw",
            f"3 1 0:6 / {tmp_path}/a\\040b rw - tmpfs tmpfs rw",
        ]
    )
    (tmp_path / "a b").mkdir()
    assert place_of(tmp_path / "f", table).remote
    assert place_of(tmp_path / "a b" / "f", table).in_memory
    assert place_of("/", table).filesystem == "ext4"


def job(**more: object) -> StorageJob:
    base = {"name": "x", "url": "u", "pattern": "shards", "ops": 100, "bytes_read": 1000, "window_s": 2.0}
    return StorageJob(**{**base, **more})  # type: ignore[arg-type]


def test_rates_are_work_over_time_with_an_interval() -> None:
    found = rates.ops_per_s(job(series_ops_per_s=[40.0, 40.0, 60.0, 60.0, 50.0]))
    assert found is not None
    assert found.value == 50.0
    assert found.low < 50.0 < found.high


def test_samples_need_to_be_known() -> None:
    assert rates.samples_per_s(job()) is None
    found = rates.samples_per_s(job(samples=500))
    assert found is not None
    assert found.value == 250.0


def test_what_was_not_read_has_no_rate() -> None:
    assert rates.bytes_per_s(job(bytes_read=0)) is None
    assert rates.ops_per_s(job(window_s=0.0)) is None


def test_amplification_counts_the_device_when_cold_and_the_reads_when_warm() -> None:
    cold = job(used_bytes=500, device_read_bytes=2000, cache_state="cold")
    assert rates.read_amplification(cold) == 4.0
    assert rates.read_amplification(job(used_bytes=500, device_read_bytes=0, cache_state="warm")) == 2.0
    assert rates.read_amplification(job()) is None


def test_the_concurrency_that_a_rate_needs_follows_littles_law() -> None:
    measured = job(samples=500, processes=2)  # 250 samples/s from 2 readers: 125 each
    assert rates.concurrency_for_samples(measured, 1000) == 8
    assert rates.concurrency_for_samples(job(), 1000) is None


def test_a_file_name_that_is_no_text_is_measured_and_can_be_stored(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.tar")
    try:
        write_tar(tmp_path / name)
    except OSError:
        pytest.skip("the file system takes text names only")
    jobs = measure_dataset(str(tmp_path / name), seconds=0.2, concurrency=1)
    assert jobs[0].bytes_read > 0
    assert b"\xef\xbf\xbd" in msgspec.json.encode(jobs)


def test_where_processes_are_not_counted_the_disk_is(shards: str, on_disk: None) -> None:
    counter = storage.pagecache.DeviceBytes(Path(shards).parent)
    found = counter.since()
    assert found is None or found >= 0
