"""``ioprobe schema``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ioprobe_cli.main import cli, run


@pytest.mark.parametrize(("what", "root"), [("run", "Run"), ("report", "Report"), ("config", "ConfigFile")])
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

    for what in ("run", "report", "config"):
        document = json.loads(CliRunner().invoke(cli, ["schema", what]).stdout)
        assert references(document) <= {f"#/$defs/{name}" for name in document["$defs"]}


def test_an_unknown_schema_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "ladder"]) == 2
    assert "'ladder' is not one of 'run', 'report', 'config'" in capsys.readouterr().err
