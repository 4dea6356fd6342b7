"""``ioprobe schema WHAT``: JSON Schema of what ioprobe writes and reads."""

from __future__ import annotations

import json

import click

from ioprobe_cli.output import write_stdout


@click.command()
@click.argument("what", type=click.Choice(["run", "report", "check", "compare", "config"]))
def command(what: str) -> None:
    """Print a JSON Schema.

    \b
    run      the run file that every measuring command saves
    report   the object that --format json prints
    check    the object that 'ioprobe check --format json' prints
    compare  the object that 'ioprobe compare --format json' prints
    config   ioprobe.toml
    """
    if what == "run":
        from ioprobe.run import schema
    elif what == "report":
        from ioprobe.diagnosis.types import report_schema as schema
    elif what == "check":
        from ioprobe.diagnosis.check import check_schema as schema
    elif what == "compare":
        from ioprobe.diagnosis.compare import compare_schema as schema
    else:
        from ioprobe.config import config_schema as schema
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema()}
    write_stdout(json.dumps(document, indent=2) + "\n")
