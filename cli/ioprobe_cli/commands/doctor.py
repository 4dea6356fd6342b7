"""``ioprobe doctor``: what this host has, and what would spoil a measurement here."""

from __future__ import annotations

import click

from ioprobe_cli.output import format_option


@click.command()
@format_option("text", "json")
@click.option("--no-torch", is_flag=True, help="Do not import torch; accelerators are those that the driver lists.")
def command(format_: str, no_torch: bool) -> None:
    """What this host has, and what would spoil a measurement here: with what it limits and the fix.

    Looks at cores and quotas, other load, memory, /dev/shm, open files, CPU governor, rights for py-spy and
    io_uring, file systems, versions, and variables that change speed. Changes nothing. Exits with 0 whatever it finds.
    """
    from ioprobe.diagnosis.doctor import examine
    from ioprobe.probe.host import measure_host
    from ioprobe.probe.surroundings import measure_surroundings
    from ioprobe.report import doctor
    from ioprobe_cli.output import knows_unicode, terminal_width, wants_color, write_stdout

    # The load is looked at before torch is imported, which takes seconds of CPU.
    around = measure_surroundings(with_torch=not no_torch)
    host = measure_host(with_torch=not no_torch)
    findings = examine(host, around)
    if format_ == "json":
        from json import dumps

        write_stdout(dumps(doctor.as_object(host, around, findings), indent=2) + "\n")
        return
    write_stdout(doctor.render(host, findings, width=terminal_width(), color=wants_color(), unicode=knows_unicode()))
