"""Numbers to text and back. The only place where percent, ms and MiB exist.

Stored values are base units: seconds, bytes, fractions of 1, rates per second.
"""

from __future__ import annotations

import math
import re

from ioprobe.errors import UsageError

NOT_MEASURED = "not measured"

_DECIMAL = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_SIZE = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(ns|us|µs|ms|s|m|min|h)?\s*$", re.IGNORECASE)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_bytes(text: str) -> int:
    """Return a size [bytes] written as people write it.

    ``k``/``M``/``G`` are powers of 1000 and ``Ki``/``Mi``/``Gi`` powers of 1024,
    with or without ``B``; block sizes like ``4k`` have their own function.

    Raises:
        UsageError: text is no size, or is negative.

    >>> parse_bytes("1.5MiB"), parse_bytes("100kB"), parse_bytes("42")
    (1572864, 100000, 42)
    """
    match = _SIZE.match(text)
    if not match:
        raise UsageError(f"cannot read size '{text}'", hint="write it like 512, 100kB, 64MiB or 1.5GiB")
    number, prefix, binary = match.groups()
    scale = _BINARY[prefix.lower()] if binary and prefix else _DECIMAL[prefix.lower()]
    return round(float(number) * scale)


def parse_block_size(text: str) -> int:
    """Return a block size [bytes]; here ``k`` and ``M`` are powers of 1024, as in fio.

    >>> parse_block_size("4k"), parse_block_size("1M")
    (4096, 1048576)
    """
    match = _SIZE.match(text)
    if not match:
        raise UsageError(f"cannot read block size '{text}'", hint="write it like 4k, 128k or 1M")
    number, prefix, _ = match.groups()
    return round(float(number) * (_BINARY[prefix.lower()] if prefix else 1))


def parse_seconds(text: str) -> float:
    """Return a duration [s] written as ``90ms``, ``1.5s``, ``2min`` or a plain number of seconds.

    >>> parse_seconds("90ms"), parse_seconds("2")
    (0.09, 2.0)
    """
    match = _DURATION.match(text)
    if not match:
        raise UsageError(f"cannot read duration '{text}'", hint="write it like 90ms, 1.5s or 2min")
    number, unit = match.groups()
    return float(number) * _SECONDS[(unit or "s").lower()]


def parse_bandwidth(text: str) -> float:
    """Return a bandwidth [bytes/s] written as ``25GB/s``, ``800MB/s`` or ``2GiB/s``.

    >>> parse_bandwidth("25 GB/s"), parse_bandwidth("2GiB/s"), parse_bandwidth("1e9")
    (25000000000.0, 2147483648.0, 1000000000.0)
    """
    try:
        return float(parse_bytes(text.strip().removesuffix("/s")))
    except UsageError:
        raise UsageError(f"cannot read bandwidth '{text}'", hint="write it like 25GB/s or 800MB/s") from None


def format_count(value: float | None) -> str:
    """Return a number with three significant digits and thousands separators.

    >>> format_count(1234567), format_count(0.01234), format_count(None)
    ('1,234,567', '0.0123', 'not measured')
    """
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "unbounded" if value > 0 else str(value)
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_rate(value: float | None, unit: str = "samples/s") -> str:
    """Return a rate with its unit.

    >>> format_rate(219.04), format_rate(None)
    ('219 samples/s', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{format_count(value)} {unit}"


def format_bytes(value: float | None) -> str:
    """Return a size in powers of 1024, saying so.

    >>> format_bytes(1536), format_bytes(3 << 30), format_bytes(None)
    ('1.5 KiB', '3.0 GiB', 'not measured')
    """
    if value is None:
        return NOT_MEASURED
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def format_bandwidth(value: float | None) -> str:
    """Return a bandwidth in decimal units, as storage is sold.

    >>> format_bandwidth(3.2e9), format_bandwidth(512e3), format_bandwidth(1.63e12)
    ('3.20 GB/s', '512 kB/s', '1.63 TB/s')
    """
    if value is None:
        return NOT_MEASURED
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value / scale >= 10 else f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B/s"


def format_flops(value: float | None) -> str:
    """Return a rate of floating-point operations.

    >>> format_flops(3.96e14), format_flops(2.5e9), format_flops(None)
    ('396 TFLOP/s', '2.5 GFLOP/s', 'not measured')
    """
    if value is None:
        return NOT_MEASURED
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}FLOP/s"
    return f"{format_count(value)} FLOP/s"


def format_seconds(value: float | None) -> str:
    """Return a duration in the unit that reads best.

    >>> format_seconds(0.0091), format_seconds(95e-6), format_seconds(75)
    ('9.10 ms', '95.0 us', '1 min 15 s')
    """
    if value is None:
        return NOT_MEASURED
    if value >= 60:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value / scale >= 100 else f"{value / scale:#.3g} {unit}"
    return "0 s" if value == 0 else f"{value * 1e9:.0f} ns"


def format_share(value: float | None) -> str:
    """Return a fraction of 1 as percent.

    >>> format_share(0.1234), format_share(None)
    ('12.3%', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def format_points(value: float | None) -> str:
    """Return a difference of two shares; a share that falls from 80% to 20% changes by -60 points, not by -60%.

    >>> format_points(-0.704), format_points(0.02), format_points(None)
    ('-70.4 points', '+2.0 points', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{100 * value:+.1f} points"
