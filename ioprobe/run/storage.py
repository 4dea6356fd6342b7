"""One measurement of storage."""

from __future__ import annotations

import msgspec

from ioprobe.run.words import Caveat, Failure


class StorageJob(msgspec.Struct, kw_only=True):
    """One storage measurement: an access pattern at one block size and depth."""

    name: str
    """Such as ``random 16 KiB x8 direct``, ``shards in sequence, cold``."""
    url: str
    pattern: str
    """``random``, ``sequential``, ``shards``, ``members``, ``row-groups``, ``files`` or ``objects``."""
    block_bytes: int | None = None
    depth: int = 1
    """Requests in flight."""
    processes: int = 1
    direct: bool = False
    ops: int = 0
    """Requests completed in the window."""
    bytes_read: int = 0
    window_s: float = 0.0
    """Measured window, ramp left out [s]."""
    latency_s: dict[str, float] = {}
    """``p50 p95 p99 p999 max`` of one request [s]."""
    series_ops_per_s: list[float] = []
    """Rate in successive slices of equal length, for interval and drift."""
    series_bytes_per_s: list[float] = []
    samples: int | None = None
    """Dataset samples read in the window, where the pattern reads whole samples."""
    open_s: float | None = None
    """Median cost of opening one file or object [s]."""
    first_byte_s: float | None = None
    list_s: float | None = None
    """Listing the shards [s]."""
    cache_state: str = "unknown"
    """``cold``, ``warm``, ``direct``, ``mixed`` or ``unknown``."""
    resident_before: float | None = None
    """Share of the file pages in the page cache before [fraction]."""
    resident_after: float | None = None
    device_read_bytes: int | None = None
    engine: str = ""
    engine_ceiling_ops_per_s: float | None = None
    """What this engine reaches on this host when the data costs nothing."""
    cpu_s_per_op: float | None = None
    """CPU time of the measuring processes for one request, kernel included [s]."""
    client: str | None = None
    """Object-store client and version."""
    retries: int = 0
    throttled: int = 0
    used_bytes: int | None = None
    """Bytes of bytes_read that belong to samples (read amplification = bytes_read / used_bytes)."""
    stopped_because: str = "seconds"
    caveats: list[Caveat] = []
    failure: Failure | None = None
