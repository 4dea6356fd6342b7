"""Published figures: accelerators' dense peaks, and workloads' demand with the source of each.

Nothing here is measured by ioprobe and nothing is guessed: what the tables do
not hold is None or an error that lists what they hold.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec

from ioprobe.errors import UsageError


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator model; figures per package, dense (never the 2:4-sparse marketing figures)."""

    id: str
    vendor: str
    match: list[str]
    """Regular expressions over the names that drivers and torch give the device."""
    peak_dense_tflops: dict[str, float | None]
    """By ``fp32`` (vector units), ``tf32``, ``fp16``, ``bf16``, ``fp8`` [TFLOP/s]; None: not published."""
    memory: dict[str, Any] = {}
    tdp_w: float | None = None
    """Thermal design power [W]."""
    torch_devices_per_package: int = 1
    """Devices that torch counts in one package."""
    max_achievable_bf16_tflops: float | None = None
    """Best matrix product measured by others [TFLOP/s]."""
    max_achievable_fraction: float | None = None
    """The same over the dense bf16 peak."""
    sources: list[str] = []
    confidence: str = ""
    notes: str = ""

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """Return the dense peak of one torch device [FLOP/s], or None where it is not published.

        Args:
            dtype: ``fp32``, ``tf32``, ``fp16``, ``bf16`` or ``fp8``, or torch's own word (``bfloat16``).
        """
        word = _DTYPES.get(dtype.removeprefix("torch."), dtype)
        peak = self.peak_dense_tflops.get(word)
        return None if peak is None else peak * 1e12 / self.torch_devices_per_package


_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """What one accelerator asks of storage for one published workload."""

    id: str
    accelerator: str
    """As the source names it."""
    samples_per_s: float
    """Of one accelerator that never waits [units/s]."""
    unit: str
    """What is counted: ``samples``, ``images``, ``sequences``, ``tokens``, ..."""
    bytes_per_sample: float
    """On storage [bytes]."""
    batch_size: int | None = None
    step_s: float | None = None
    """Seconds per step at that batch size."""
    samples_per_file: int | None = None
    files: int | None = None
    format: str | None = None
    au_threshold: float | None = None
    """Accelerator utilisation below which the benchmark's rules call the run failed [fraction]."""
    epochs: int | None = None
    evidence: str
    """``emulated`` (a benchmark's constant), ``measured``, ``derived`` or ``estimate``."""
    source: str
    note: str = ""


class StepPreset(msgspec.Struct, frozen=True):
    """A constant step that stands for a published workload."""

    step_s: float
    """Seconds per step."""
    batch_size: int
    source: str
    """One line that says where the figure comes from and how it was scaled."""
    anchor: Anchor


def accelerator(name: str) -> Accelerator | None:
    """Return the accelerator a device name or an id stands for, or None where it is not known for sure.

    ``h100`` alone is two products with different peaks, and a MIG slice has
    less than its card: both are None.

    >>> accelerator("NVIDIA H100 80GB HBM3").id
    'h100-sxm5-80gb'
    """
    wanted = name.strip().lower()
    table = accelerators()
    found = [a for a in table if a.id == wanted]
    if not found and not re.search(r"\bmig\b", wanted):
        found = [a for a in table if any(re.search(m, name, re.IGNORECASE) for m in a.match)]
        found = found or [a for a in table if a.id.startswith(wanted + "-")]
    return found[0] if len(found) == 1 else None


def accelerators() -> list[Accelerator]:
    """Return every accelerator in the table."""
    return _tables().accelerators


def workload(name: str, accelerator_name: str) -> Anchor:
    """Return a published workload on an accelerator.

    Where several versions of a benchmark publish it, the newest released one counts.

    Args:
        name: Such as ``resnet50``, ``unet3d``, ``cosmoflow``, ``clip-vit-b32``.
        accelerator_name: A family (``h100``) or a device name that holds one.

    Raises:
        UsageError: the workload is not in the tables, or not on that accelerator.
    """
    rows = _tables().anchors
    wanted = name.strip().lower().removesuffix("-mlps")
    of_workload = [a for a in rows if a.id == wanted]
    if not of_workload:
        known = workload_names()
        near = difflib.get_close_matches(wanted, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "choose one of " + ", ".join(known)
        raise UsageError(f"unknown workload '{name}'", hint=hint)
    for anchor in of_workload:
        if re.search(rf"(?<![a-z0-9]){_family(anchor.accelerator)}(?![0-9])", accelerator_name.lower()):
            return anchor
    there = ", ".join(dict.fromkeys(_family(a.accelerator) for a in of_workload))
    raise UsageError(
        f"no published rate of workload '{wanted}' on '{accelerator_name}'; published for: {there}",
        hint="choose one of these with --accelerator, or give the step's time with --step-ms",
    )


def workload_names() -> list[str]:
    """Return the ids of the published workloads, in alphabetical order."""
    return sorted({a.id for a in _tables().anchors})


def step_preset(name: str, accelerator_name: str, batch_size: int | None = None) -> StepPreset:
    """Return the seconds per step of a published workload.

    Args:
        name: See :func:`workload`.
        accelerator_name: See :func:`workload`.
        batch_size: Samples per step; the published one by default. Another one scales the time in proportion.

    Raises:
        UsageError: the workload is unknown, or its source gives no batch size and none was passed.
    """
    anchor = workload(name, accelerator_name)
    size = batch_size or anchor.batch_size
    if size is None:
        raise UsageError(
            f"the source of workload '{anchor.id}' gives a rate but no batch size", hint="pass --batch-size"
        )
    step_s = size / anchor.samples_per_s
    source = f"{anchor.id} on {anchor.accelerator} ({anchor.evidence}: {anchor.source}"
    if anchor.batch_size == size and anchor.step_s is not None:
        step_s = anchor.step_s
    elif anchor.batch_size is not None:
        source += f"; scaled in proportion from batch {anchor.batch_size}"
    else:
        source += f"; {anchor.samples_per_s:g} {anchor.unit}/s taken at batch {size}"
    return StepPreset(step_s, size, source + ")", anchor)


class _Tables(msgspec.Struct):
    accelerators: list[Accelerator]
    anchors: list[Anchor]


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    chips = msgspec.convert(_read("accelerators.json")["accelerators"], list[Accelerator])
    runs = [r for r in _read("mlperf_workloads.json")["training"] if r["model"] != "default" and r.get("accelerator")]
    runs = sorted((r for r in runs if r["status"] in _STATUS), key=lambda r: _STATUS.index(r["status"]))
    # Within one status the table goes from the newest suite to the oldest.
    rates = [r for r in _read("workload_anchors.json")["rows"] if not r["id"].endswith("-mlps")]
    return _Tables(chips, [_from_benchmark(r) for r in runs] + [_from_rate(r) for r in rates])


# Drafts and superseded versions are kept in the file and never used.
_STATUS = ["released", "v3.0 closed/open", "v3.0 whatif mode only", "built-in"]

_UNITS = {
    "img/s": "images",
    "seq/s": "sequences",
    "tok/s": "tokens",
    "patch/s": "patches",
    "utt/s": "utterances",
}


def _from_benchmark(row: dict[str, Any]) -> Anchor:
    return Anchor(
        id=row["model"],
        accelerator=row["accelerator"],
        samples_per_s=row["batch_size"] / row["computation_time_s"],
        unit="samples",
        bytes_per_sample=row["record_length_bytes"],
        batch_size=row["batch_size"],
        step_s=row["computation_time_s"],
        samples_per_file=row.get("num_samples_per_file"),
        files=row.get("num_files_train_yaml"),
        format=row.get("format"),
        au_threshold=row.get("au_threshold"),
        epochs=row.get("epochs"),
        evidence="emulated",
        source=f"{row['suite']}, {row['repo']}@{row['commit'][:7]} {row['path']}",
        note="; ".join(row.get("notes") or []),
    )


def _from_rate(row: dict[str, Any]) -> Anchor:
    return Anchor(
        id=row["id"],
        accelerator=row["hw"],
        samples_per_s=row["rate_per_accelerator"],
        unit=_UNITS.get(row["unit"], row["unit"].removesuffix("/s")),
        bytes_per_sample=row["bytes_per_unit_on_storage"],
        evidence=row["evidence"],
        source=row["source"],
        note=row["note"],
    )


def _family(hardware: str) -> str:
    """``a100`` of ``A100-80``, ``h100`` of ``H100 x8``."""
    return re.split(r"[\s-]", hardware.lower(), maxsplit=1)[0]


def _read(name: str) -> dict[str, Any]:
    data = resources.files("ioprobe.facts").joinpath(name).read_bytes()
    found: dict[str, Any] = msgspec.json.decode(data)
    return found
