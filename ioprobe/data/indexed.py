"""The ``index.json`` of formats whose folder has one (MDS, litdata)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ioprobe.data.shards import Shard, reading
from ioprobe.errors import DataError

INDEX = "index.json"


def folder_of(shard: Shard) -> str:
    """Return the URL of the folder that holds a shard.

    >>> folder_of(Shard("data/a/shard.00000.mds"))
    'data/a'
    """
    return shard.url.rpartition("/")[0] or "."


def file_of(shard: Shard) -> str:
    """Return the shard's name within its folder."""
    return shard.url.rpartition("/")[2]


def read_index(shard: Shard) -> dict[str, Any]:
    """Return the index beside a shard.

    Raises:
        TargetError: there is none.
        DataError: it is no JSON object.
    """
    index = Shard(f"{folder_of(shard)}/{INDEX}", None, shard.storage_options)
    with reading(index), index.open() as file:
        return _parse(file.read(), index.name)


@lru_cache(maxsize=4)
def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise DataError(f"cannot read index '{name}': {error}", hint="write or download it again") from None
    if not isinstance(found, dict):
        raise DataError(f"cannot read index '{name}': it is no JSON object", hint="write or download it again")
    return found
