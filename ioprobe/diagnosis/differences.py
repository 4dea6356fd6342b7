"""How two runs differ in host and settings, and whether they are alike enough to compare."""

from __future__ import annotations

import msgspec

from ioprobe.run import Run


def differences_of(base: Run, new: Run) -> tuple[list[str], list[str]]:
    """Return (all differences of hosts and settings, those that make the runs unlike), one line each."""
    differences: list[str] = []
    unlike: list[str] = []

    def note(what: str, a: object, b: object, alike: bool = True) -> None:
        if a != b:
            line = f"{what}: {_word(a)} -> {_word(b)}"
            differences.append(line)
            if not alike:
                unlike.append(line)

    h, g = base.host, new.host
    note("cpu", h.cpu_model, g.cpu_model, alike=False)
    note("usable cores", h.usable_cores, g.usable_cores, alike=False)
    note("accelerators", ", ".join(h.accelerators), ", ".join(g.accelerators), alike=False)
    note("hostname", h.hostname, g.hostname)
    note("memory", h.memory_bytes, g.memory_bytes)
    note("python", h.python, g.python)
    note("torch", h.torch, g.torch)
    for package in sorted(h.versions.keys() | g.versions.keys()):
        note(package, h.versions.get(package), g.versions.get(package))
    note("unit", base.workload.unit, new.workload.unit, alike=False)
    note("target", base.workload.target, new.workload.target)
    note("step", base.workload.step, new.workload.step)
    note("ranks", base.world_size, new.world_size, alike=False)
    if base.step and new.step:
        note("emulated step", base.step.emulated, new.step.emulated, alike=False)
        note("samples per step", base.step.samples_per_step, new.step.samples_per_step)
    if base.dataset and new.dataset:
        note("dataset format", base.dataset.format, new.dataset.format)
        note("dataset samples", base.dataset.num_samples, new.dataset.num_samples)
        note("dataset bytes", base.dataset.total_bytes, new.dataset.total_bytes)
        note("file system", base.dataset.filesystem, new.dataset.filesystem)
    a, b = _settings(base), _settings(new)
    for name in sorted(a.keys() | b.keys()):
        note(name, a.get(name), b.get(name))
    return differences, unlike


def _settings(run: Run) -> dict[str, object]:
    measured = run.loop() or run.loader_alone()
    return msgspec.structs.asdict(measured.settings) if measured and measured.settings else {}


def _word(value: object) -> str:
    return "nothing" if value in (None, "") else str(value)
