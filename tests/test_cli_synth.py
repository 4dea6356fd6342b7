"""``ioprobe synth``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ioprobe.data.describe import describe
from ioprobe_cli.main import run


def test_the_url_goes_to_stdout_and_the_summary_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "d"
    arguments = ["--samples", "8", "--shard-size", "3", "--image-size", "32x24", "--workers", "0"]
    assert run(["synth", str(place), *arguments]) == 0
    out, err = capsys.readouterr()
    assert out == f"{place}/shard-{{000000..000002}}.tar\n"
    assert err.startswith("8 samples in 3 shards, ")
    assert describe(out.strip()).num_samples == 8
    assert run(["synth", str(place), *arguments]) == 0
    assert "3 kept from before" in capsys.readouterr().err


def test_every_option_reaches_the_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--format parquet --kind tokens --samples 40 --shard-size 8kB --sample-bytes 1kB:0.1 --compression zstd"
    more = "--row-group-size 3 --seed 9 --workers 1 --quiet"
    assert run(["synth", str(tmp_path / "d"), *options.split(), *more.split()]) == 0
    assert capsys.readouterr() == ("", "")
    facts = describe(str(tmp_path / "d"))
    assert (facts.num_shards, facts.num_samples, facts.compression) == (5, 40, "zstd")
    assert facts.row_group_rows[:3] == [3, 3, 2]


def test_a_format_brings_its_own_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", str(tmp_path / "d"), "--format", "tokens", "--samples", "4"]) == 0
    assert describe(str(tmp_path / "d")).format == "tokens"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", "0"], "0 is not in the range"),
        (["--format", "zarr"], "unknown format 'zarr'"),
        (["--sample-bytes", "12parsecs"], "cannot read size '12parsecs'"),
        (["--sample-bytes", "1kB:much"], "cannot read variation 'much'"),
        (["--image-size", "big"], "cannot read image size 'big'"),
        (["--shard-size", "0"], "shard_samples is 0"),
        (["--compression", "rar"], "webdataset has no compression 'rar'"),
    ],
)
def test_a_wrong_option_is_one_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run(["synth", str(tmp_path / "d"), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "d").exists()


def test_a_folder_that_holds_something_else_is_refused_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("x")
    arguments = ["synth", str(tmp_path), "--samples", "2", "--image-size", "16"]
    assert run(arguments) == 2
    assert "holds files that no synth wrote: mine.txt" in capsys.readouterr().err
    assert run([*arguments, "--force"]) == 0
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_a_read_only_place_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "/proc/ioprobe-synth", "--samples", "2", "--image-size", "16"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: cannot write '/proc/ioprobe-synth")
    assert "Traceback" not in err
