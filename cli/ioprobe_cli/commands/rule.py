"""``ioprobe rule [CODE]``: what a rule sees, why it matters, when it is wrong."""

from __future__ import annotations

import click


@click.command()
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(codes: tuple[str, ...], format_: str) -> None:
    """Explain rules of 'ioprobe check': what each sees, why it matters, when it is wrong, an example.

    CODE is a code, a prefix or a name. Without one, all rules are listed.

    \b
    ioprobe rule
    ioprobe rule IO102
    ioprobe rule IO3
    """
    import json

    from ioprobe.diagnosis.rules import selected_rules
    from ioprobe.report.rules import render_list, render_rule, rules_as_data
    from ioprobe_cli.output import write_stdout

    rules = selected_rules(codes, ())
    if format_ == "json":
        write_stdout(json.dumps(rules_as_data(rules), indent=2, ensure_ascii=False) + "\n")
    elif codes:
        write_stdout("\n".join(render_rule(rule) for rule in rules))
    else:
        write_stdout(render_list(rules))
