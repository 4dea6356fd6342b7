"""``ioprobe rule [CODE]``: what a rule sees, why it matters, when it is wrong."""

from __future__ import annotations

import click


@click.command()
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(codes: tuple[str, ...], format_: str) -> None:
    """Explain rules of 'ioprobe check': what each sees, why it matters, when it is wrong, an example.

    CODE is a code, a prefix or a name. Without one, all rules are listed. IO6xx are advice of 'ioprobe analyze', which
    rests on a measurement and is no rule: it is explained in two lines.

    \b
    ioprobe rule
    ioprobe rule IO102
    ioprobe rule IO3
    """
    import json

    from ioprobe.diagnosis.remedy_texts import advice_of
    from ioprobe.diagnosis.rules import RULES, selected_rules
    from ioprobe.report.rules import render_list, render_rule, rules_as_data
    from ioprobe_cli.output import write_stdout

    known = set(RULES)
    advice = [text for code in codes if code.upper() not in known and (text := advice_of(code.upper())) is not None]
    if advice and format_ == "text":
        for text in advice:
            write_stdout(f"{text.code} (advice)\n\n  {text.action}\n  wrong when: {text.wrong_when or '-'}\n")
        codes = tuple(code for code in codes if all(code.upper() != text.code for text in advice))
        if not codes:
            return
    rules = selected_rules(codes, ())
    if format_ == "json":
        write_stdout(json.dumps(rules_as_data(rules), indent=2, ensure_ascii=False) + "\n")
    elif codes:
        write_stdout("\n".join(render_rule(rule) for rule in rules))
    else:
        write_stdout(render_list(rules))
