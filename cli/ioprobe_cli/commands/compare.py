"""``ioprobe compare BASE NEW``: two runs, or two loaders measured in alternating rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ioprobe_cli.output import quiet_option

if TYPE_CHECKING:
    from ioprobe.run import Run


@click.command()
@click.argument("base")
@click.argument("new")
@click.option("--rounds", type=click.IntRange(4), default=16, show_default=True, help="Rounds of each loader.")
@click.option("--seconds", type=click.FloatRange(0.2), default=1.0, show_default=True, help="Length of one round.")
@click.option("--step-ms", type=click.FloatRange(min=0, min_open=True), help="An emulated step for both loaders.")
@click.option(
    "--timeout",
    "hang_s",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Seconds without progress after which a factory or loader counts as hanging.",
)
@click.option("--config", type=click.Path(path_type=Path), envvar="IOPROBE_CONFIG", help="File with a [compare] table.")
@click.option("--noise", type=click.FloatRange(0, 1), help="Changes below this are noise; default 0.03.")
@click.option("--large", type=click.FloatRange(0, 1), help="Changes above this are large; default 0.08.")
@click.option("--force", is_flag=True, help="Compare runs that are unlike: another CPU, unit, number of ranks.")
@click.option(
    "--undecided",
    type=click.Choice(["fail", "pass"]),
    envvar="IOPROBE_UNDECIDED",
    default="fail",
    show_default=True,
    help="Whether an undecided headline is exit code 2 or 0.",
)
@click.option("--format", "format_", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there instead of stdout.")
@quiet_option()
def command(
    base: str,
    new: str,
    rounds: int,
    seconds: float,
    step_ms: float | None,
    hang_s: float,
    config: Path | None,
    noise: float | None,
    large: float | None,
    force: bool,
    undecided: str,
    format_: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Compare two runs: what changed, by how much, and whether that is more than noise.

    BASE and NEW are run files (or their folders), or both are targets (factory or
    dataset URL), which are then measured in alternating rounds and compared in pairs:
    the way to see changes of a few per cent on a machine that others use, too.
    A figure is slower only when the change is significant and beyond the noise band.

    \b
    ioprobe compare main/run.json branch/run.json
    ioprobe compare old/train.py:make_loader new/train.py:make_loader

    Exit codes: 0 nothing is slower, 1 something is, 2 undecided or not comparable.
    """
    import msgspec

    from ioprobe.config import load_config
    from ioprobe.diagnosis.compare import compare
    from ioprobe.report import compare as renderer
    from ioprobe_cli.output import write_stdout

    bands = load_config(config).compare
    bands = msgspec.structs.replace(bands, noise=bands.noise if noise is None else noise)
    bands = msgspec.structs.replace(bands, large=bands.large if large is None else large)
    first, second = _runs(base, new, rounds, seconds, step_ms, hang_s, quiet)
    result = compare(first, second, bands=bands, force=force)
    render = {"text": renderer.render_text, "json": renderer.render_json, "md": renderer.render_markdown}[format_]
    if output is not None:
        from ioprobe.run import write_atomic

        write_atomic(output, render(result).encode())
    else:
        write_stdout(render(result))
    return result.exit_code(undecided)


def _runs(
    base: str, new: str, rounds: int, seconds: float, step_ms: float | None, hang_s: float, quiet: bool
) -> tuple[Run, Run]:
    from ioprobe.errors import UsageError
    from ioprobe.probe.target import is_factory
    from ioprobe.run import load

    targets = [is_factory(place) or "://" in place for place in (base, new)]
    if not any(targets):
        return load(base), load(new)
    if not all(targets):
        raise UsageError(
            "a run and a target cannot be compared: the run is past, and what the host did then is not known",
            hint="give two runs, or two targets",
        )
    from ioprobe.check.rounds import measure_pair
    from ioprobe.probe import protocol

    def progress(done: int, of: int) -> None:
        if not quiet:
            click.echo(f"round {done} of {of}", err=True)

    loads = [
        protocol.Load(
            target=place,
            step_s=None if step_ms is None else step_ms / 1000,
            step_source="" if step_ms is None else f"--step-ms {step_ms:g}",
            stacks_hz=0.0,
        )
        for place in (base, new)
    ]
    return measure_pair(*loads, rounds=rounds, seconds=seconds, hang_s=hang_s, progress=progress)
