"""``ioprobe schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_makers import loader_run, run_of

from ioprobe.run import dumps
from ioprobe_cli.main import cli, run

ROOTS = {"run": "Run", "report": "Report", "check": "CheckReport", "compare": "Comparison", "config": "ConfigFile"}


@pytest.mark.parametrize(("what", "root"), ROOTS.items())
def test_every_schema_is_printed_with_its_root(what: str, root: str) -> None:
    result = CliRunner().invoke(cli, ["schema", what])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["$ref"] == f"#/$defs/{root}"
    assert "properties" in document["$defs"][root]
    assert result.stderr == ""


def test_every_reference_in_a_schema_resolves() -> None:
    def references(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(value) for value in node.values()))
        if isinstance(node, list):
            return set().union(*(references(value) for value in node))
        return set()

    for what in ROOTS:
        document = json.loads(CliRunner().invoke(cli, ["schema", what]).stdout)
        assert references(document) <= {f"#/$defs/{name}" for name in document["$defs"]}


def test_an_unknown_schema_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "ladder"]) == 2
    assert "'ladder' is not one of 'run', 'report', 'check', 'compare', 'config'" in capsys.readouterr().err


def objects(value: object, schema: dict[str, Any], defs: dict[str, Any]) -> None:
    """Fail where an object lacks a required key, has one that is unknown, or a value of none of the types allowed."""
    if "$ref" in schema:
        return objects(value, defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        schema = next(s for s in schema["anyOf"] if (s.get("type") == "null") == (value is None))
        return objects(value, schema, defs)
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    if "type" in schema:
        allowed = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        allowed += ["integer"] if "number" in allowed else []
        assert names.get(type(value), "null") in allowed, (value, schema)
    assert "enum" not in schema or value in schema["enum"]
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value)
        for key, item in value.items():
            objects(item, schema["properties"][key] if "properties" in schema else schema["additionalProperties"], defs)
    elif isinstance(value, list):
        for item in value:
            objects(item, schema["items"], defs)
    return None


def test_what_check_and_compare_print_keeps_their_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ioprobe.toml").write_text(
        "[host]\ncores = 4\n[pipelines.train]\nnum_workers = 0  # ioprobe: ignore[IO102] tensors in memory\n"
        "prefetch_factor = 2\nranks = 8\n[pipelines.val]\ntarget = 'missing/*.tar'\n"
    )
    for name, wait_s in (("base", 0.01), ("new", 0.02)):
        Path(f"{name}.json").write_bytes(dumps(run_of(loader_run([wait_s] * 64, [0.03] * 64, first_batch_s=1.0))))
    for what, words in (("check", ["check"]), ("compare", ["compare", "base.json", "new.json"])):
        schema = json.loads(CliRunner().invoke(cli, ["schema", what]).stdout)
        printed = json.loads(CliRunner().invoke(cli, [*words, "--format", "json"]).stdout)
        objects(printed, schema, schema["$defs"])
        with pytest.raises((AssertionError, KeyError)):
            objects({**printed, "surprise": 1}, schema, schema["$defs"])
