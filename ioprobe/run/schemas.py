"""JSON Schemas of the run file and of other types."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.run.whole import Run


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the run file."""
    return json_schema(Run)


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type.

    A field's ``Meta(extra_json_schema={"types": [...]})`` names all types that its JSON may have, where these are more
    than what it is decoded to.
    """

    def widen(node: Any) -> Any:
        if isinstance(node, list):
            return [widen(part) for part in node]
        if not isinstance(node, dict):
            return node
        wide = {key: widen(value) for key, value in node.items() if key != "types"}
        return wide | {"type": node["types"]} if isinstance(node.get("types"), list) else wide

    found: dict[str, Any] = widen(msgspec.json.schema(kind))
    return found
