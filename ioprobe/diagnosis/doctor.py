"""Judge a host: what would spoil a measurement here, what that limits, and what to do."""

from __future__ import annotations

from ioprobe.diagnosis import doctor_machine, doctor_setup
from ioprobe.diagnosis.doctor_finding import Finding
from ioprobe.run import Host, Surroundings

_CHECKS = (
    doctor_setup.system,
    doctor_setup.accelerators,
    doctor_machine.cores,
    doctor_machine.threads,
    doctor_machine.load,
    doctor_machine.clock,
    doctor_machine.memory,
    doctor_machine.limits,
    doctor_setup.rights,
    doctor_setup.files,
    doctor_setup.packages,
    doctor_setup.environment,
)


def examine(host: Host, around: Surroundings) -> list[Finding]:
    """Return every finding: what spoils most first, then notes, then what is well."""
    found = [finding for check in _CHECKS for finding in check(host, around)]
    return sorted(found, key=lambda f: ("warn", "note", "ok").index(f.status))


__all__ = ["Finding", "examine"]
