"""ioprobe.toml: what it may say, and how its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ioprobe.config import Config, FrameRule, config_schema, load_config, parse_config
from ioprobe.config.places import Place, scan
from ioprobe.errors import ConfigError
from ioprobe.run import Stage


def complaint(text: str, name: str = "ioprobe.toml") -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, name)
    return caught.value.message, caught.value.hint


def test_an_unknown_key_is_named_by_place_and_path_with_a_suggestion() -> None:
    assert complaint("[pipelines.train]\nnum_workers = 4\nprefetch_facto = 2") == (
        "ioprobe.toml:3:1: pipelines.train.prefetch_facto: unknown key 'prefetch_facto'",
        "did you mean 'prefetch_factor'?",
    )


def test_a_key_of_another_table_is_sent_there() -> None:
    message, hint = complaint("num_workers = 4")
    assert message == "ioprobe.toml:1:1: num_workers: unknown key 'num_workers'"
    assert hint == "'num_workers' belongs in [pipelines.NAME]"


def test_a_wrong_type_says_what_was_found_and_expected() -> None:
    message, _ = complaint("[pipelines.train]\n  num_workers = '8'")
    assert message == (
        "ioprobe.toml:2:3: pipelines.train.num_workers: 'num_workers' is `'8'`: expected `int`, got `str`"
    )


def test_a_number_out_of_range_is_refused() -> None:
    message, _ = complaint("[pipelines.train]\nnum_workers = -1")
    assert message.endswith("'num_workers' is `-1`: expected `int` >= 0")


def test_a_word_that_is_no_choice_gets_the_nearest() -> None:
    assert complaint("[pipelines.t]\nmultiprocessing_context = 'frok'")[1] == "did you mean 'fork'?"


def test_a_toml_error_has_line_and_column() -> None:
    assert complaint("[pipelines.train\n")[0].startswith("ioprobe.toml:1:17: ")
    assert complaint("a =")[0].startswith("ioprobe.toml:1:4: ")


def test_several_mistakes_are_all_told_in_one_line() -> None:
    message, _ = complaint("[host]\ncors = 4\nmemory_bytes = '12 zib'\naccelerators = 1.5")
    assert "\n" not in message
    assert "host.cors" in message
    assert "ioprobe.toml:3:1" in message
    assert "ioprobe.toml:4:1" in message


def test_sizes_durations_and_shares_may_be_written_as_people_write_them() -> None:
    config = parse_config(
        "[host]\nmemory_bytes = '64GiB'\n[budgets]\nstall_share = '5%'\nmemory = '1.5GiB'\n"
        "[pipelines.train]\nbatch_bytes = 1024\ntimeout = '2min'"
    )
    assert config.host is not None
    assert config.host.memory_bytes == 64 << 30
    assert config.budgets.stall_share == 0.05
    assert config.budgets.memory == 3 << 29
    assert config.pipelines["train"].batch_bytes == 1024
    assert config.pipelines["train"].timeout == 120.0


def test_dashes_and_underscores_are_the_same() -> None:
    config = parse_config("[check]\nper-pipeline = { val = ['IO5'] }\n[pipelines.a]\nnum-workers = 2")
    assert config.check.per_pipeline == {"val": ["IO5"]}
    assert config.pipelines["a"].num_workers == 2


def test_pyproject_is_read_below_tool_ioprobe() -> None:
    text = "[tool.other]\nx = 1\n[tool.ioprobe.pipelines.train]\nnum_workers = 2"
    config = parse_config(text, "pyproject.toml")
    assert config.pipelines["train"].num_workers == 2
    assert config.place("pipelines", "train", "num_workers") == Place(4, 1)
    assert complaint("[tool.other]\nx = 1", "pyproject.toml")[0] == "'pyproject.toml' has no table [tool.ioprobe]"
    assert "tool.ioprobe.pipelines.t.x" in complaint("[tool.ioprobe.pipelines.t]\nx = 1", "pyproject.toml")[0]


def test_the_nearest_file_upwards_is_found_and_a_repository_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ioprobe.toml").write_text("[pipelines.outer]\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert list(load_config().pipelines) == ["outer"]
    (tmp_path / "a" / ".git").mkdir()
    assert load_config() == Config()
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.ioprobe.pipelines.mine]\n")
    assert list(load_config(None).pipelines) == ["mine"]
    assert load_config(tmp_path / "a").folder == tmp_path / "a"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load_config(tmp_path / "nope.toml")
    with pytest.raises(ConfigError, match=r"no ioprobe\.toml in"):
        load_config(tmp_path)


def test_a_pipeline_is_chosen_by_name_or_when_there_is_no_doubt() -> None:
    config = parse_config("[pipelines.train]\n[pipelines.val]\n")
    assert config.pipeline()[0] == "train"
    assert config.pipeline("val")[0] == "val"
    with pytest.raises(ConfigError) as caught:
        config.pipeline("vla")
    assert caught.value.hint == "did you mean 'val'?"
    with pytest.raises(ConfigError, match="several pipelines"):
        parse_config("[pipelines.a]\n[pipelines.b]\n").pipeline()
    with pytest.raises(ConfigError, match="has no pipeline"):
        Config().pipeline()


def test_a_host_is_the_pipelines_own_else_the_common_one() -> None:
    config = parse_config("[host]\ncores = 4\n[hosts.big]\ncores = 64\n[pipelines.a]\n[pipelines.b]\nhost = 'big'")
    a, b = config.pipelines["a"], config.pipelines["b"]
    cores = [host.cores for host in (config.host_of(a), config.host_of(b), config.host_of(a, "big")) if host]
    assert cores == [4, 64, 64]
    with pytest.raises(ConfigError, match=r"no table \[hosts\.bug\]"):
        config.host_of(a, "bug")


def test_a_host_table_becomes_facts_without_this_machines() -> None:
    config = parse_config("[host]\ncores = 96\naccelerators = 2\naccelerator = 'H100'")
    assert config.host is not None
    host = config.host.to_host()
    assert (host.usable_cores, host.accelerators, host.memory_bytes, host.hostname) == (96, ["H100", "H100"], None, "")


def test_budgets_of_a_pipeline_lie_over_the_common_ones() -> None:
    config = parse_config("[budgets]\nau = 0.9\nmemory = 5\n[pipelines.a.budgets]\nau = 0.5")
    budgets = config.budgets_of(config.pipelines["a"])
    assert (budgets.au, budgets.memory) == (0.5, 5)


def test_frame_rules_of_live_are_read_in_order() -> None:
    config = parse_config("[[attach.rules]]\nstage = 'decode'\nfunction = 'load_*'\n[[attach.rules]]\nstage = 'read'")
    assert config.attach.rules == [FrameRule(stage=Stage.DECODE, function="load_*"), FrameRule(stage=Stage.READ)]


def test_places_survive_strings_comments_and_values_over_several_lines() -> None:
    text = (
        'a = """\n[not.a.table]\nb = 1\n"""\n'
        "list = [\n  1, # ]\n  '#',\n]\n"
        "[ t . 'quoted key' ]\n"
        "  x.y = { z = 1 } # ioprobe: ignore[IO101, io5] because\n"
        "[[many]]\nv = 1\n[[many]]\nv = 2\n[many.sub]\nw = 3\n"
    )
    places = scan(text)
    assert places.keys[("a",)] == Place(1, 1)
    assert ("not", "a", "table") not in places.keys
    assert places.keys[("list",)] == Place(5, 1)
    assert places.keys[("t", "quoted key", "x", "y")] == Place(10, 3)
    assert places.keys[("many", "1", "v")] == Place(14, 1)
    assert places.keys[("many", "1", "sub", "w")] == Place(16, 1)
    (ignore,) = places.ignores
    assert (ignore.codes, ignore.reason, ignore.line) == (("IO101", "IO5"), "because", 10)


def test_the_schema_names_every_table() -> None:
    schema = config_schema()
    tables = schema["$defs"]["ConfigFile"]["properties"]
    assert set(tables) == {"pipelines", "host", "hosts", "budgets", "check", "compare", "attach", "analyze"}
    assert "num_workers" in schema["$defs"]["PipelineConfig"]["properties"]


def test_the_schema_allows_what_people_write_sizes_as_text_and_keys_with_dashes() -> None:
    tables = config_schema()["$defs"]
    (size,) = [s for s in tables["PipelineConfig"]["properties"]["batch-bytes"]["anyOf"] if s["type"] != "null"]
    assert size == {"type": ["integer", "string"], "description": "bytes or '64MiB'", "minimum": 0}
    assert tables["CompareConfig"]["properties"]["noise"]["type"] == ["number", "string"]
    assert "per-pipeline" in tables["CheckConfig"]["properties"]
