"""The ``ioprobe`` command: finds the command's file, maps every ending to a documented exit code."""

from __future__ import annotations

import errno
import importlib
import pkgutil
import sys
from typing import Any, NoReturn

import click

from ioprobe import __version__
from ioprobe.errors import IoprobeError
from ioprobe_cli import commands
from ioprobe_cli.endings import endings_interrupt
from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_NO_VERDICT
from ioprobe_cli.output import kept_runs, one_line, remove_empty_folders

EPILOG = """Exit codes: 0 passed; 1 a budget or a rule failed; 2 no verdict (usage, unreadable input, the code under
test broke, 'check' or 'compare' undecided, crash); 130 interrupted (Ctrl-C, SIGTERM, SIGHUP). 'run' ends with the exit
code of its command.
"""


_POSIX_ONLY = {"fcntl", "resource", "termios", "pwd"}
_ELSEWHERE = "measure on Linux, or on macOS; 'report', 'predict', 'plan' and 'compare' of saved runs work here, too"


class ReaderGone(Exception):
    """What reads our output ended before it had all of it, as ``head`` does."""


class Commands(click.Group):
    """Loads a command's module only when it is called, so that ``--help`` stays fast."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with code 1, which is a verdict
            raise ReaderGone from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("-", "_")
        if name not in {m.name for m in pkgutil.iter_modules(commands.__path__)}:
            return None
        module = importlib.import_module(f"ioprobe_cli.commands.{name}")
        command: click.Command = module.command
        for param in command.params:
            if isinstance(param, click.Option):
                _heed_environment(param, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near and "did you mean" not in error.message.lower():
                raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One-line helps live here so that listing them imports no command module.
        rows = [(name, SUMMARIES.get(name, "")) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _heed_environment(option: click.Option, command: str) -> None:
    """Let an option be given as IOPROBE_COMMAND_OPTION, after its spelling: click goes by its parameter's name."""
    spelled = max(option.opts, key=len).lstrip("-")
    name = f"IOPROBE_{command}_{spelled}".replace("-", "_").upper()
    known = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    if name not in known:
        option.envvar = [*known, name]


SUMMARIES = {
    "analyze": "The main job: ladder, verdict, verified advice.",
    "attach": "A verdict for a job that already runs, through py-spy.",
    "check": "CI: rules over loader configs, budgets, baselines.",
    "compare": "Two runs, with statistics and an exit code.",
    "doctor": "What this host has, and what would spoil a measurement here.",
    "loader": "The loader alone: samples/s and its stages.",
    "plan": "Storage, cores, hosts and money for N accelerators.",
    "predict": "What-if from a saved run; nothing is executed.",
    "profile": "A py-spy, Kineto or Nsight Systems recording made elsewhere.",
    "report": "Render a saved run again: terminal, html, md, json.",
    "rule": "Explain a rule of 'check'.",
    "run": "Your own training script, unchanged, under a probe.",
    "schema": "JSON Schema of the run file, the report or the config.",
    "step": "The training step alone, on a resident batch.",
    "storage": "Storage alone: IOPS, bandwidth, latency.",
    "synth": "Write a sharded dataset, deterministic from a seed.",
    "tune": "Find num_workers and prefetch_factor, and verify them.",
}


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "auto_envvar_prefix": "IOPROBE"},
    epilog=EPILOG,
)
# IOPROBE_VERSION is a name that images use for what they install: it must not turn every command into this one.
@click.version_option(__version__, prog_name="ioprobe", allow_from_autoenv=False)
def cli() -> None:
    """Do the accelerators wait for data, which stage is to blame, what to change, and what will it gain?"""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every ending has one of the documented codes."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code (0, 1, 2 or 130)."""
    with endings_interrupt():
        try:
            return _run(argv)
        except KeyboardInterrupt:  # while an ending was being reported
            return EXIT_INTERRUPTED
        finally:
            remove_empty_folders()


def _run(argv: list[str] | None) -> int:
    try:
        result: Any = cli.main(args=argv, prog_name="ioprobe", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except IoprobeError as error:
        _complain(error.message, error.hint)
        return EXIT_NO_VERDICT
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, click.Abort):
        kept = "".join(f" What was measured is kept in '{path}'." for path in kept_runs())
        click.echo(one_line(f"Interrupted.{kept}"), err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show(file=sys.stderr)
        return EXIT_NO_VERDICT
    except (ReaderGone, BrokenPipeError):
        _drop_stdout()
        return EXIT_NO_VERDICT
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _internal(error)
        _drop_stdout()
        _complain(f"cannot write '{error.filename or 'stdout'}': {error.strerror}", "")
        return EXIT_NO_VERDICT
    except ModuleNotFoundError as error:
        if error.name not in _POSIX_ONLY:
            return _internal(error)
        _complain(f"this command does not run on {sys.platform}: Python has no module '{error.name}' there", _ELSEWHERE)
        return EXIT_NO_VERDICT
    except Exception as error:
        return _internal(error)


def _drop_stdout() -> None:
    """Point stdout elsewhere, so that what it still holds cannot fail again when the interpreter ends."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _internal(error: Exception) -> int:
    """Report a bug of ours with what is needed to mend it."""
    import traceback

    _complain(f"internal error: {type(error).__name__}: {error}", "please report this with the lines above")
    traceback.print_exception(error, file=sys.stderr)
    return EXIT_NO_VERDICT


def _complain(message: str, hint: str) -> None:
    import os
    import re

    from ioprobe.secrets import hide, redact_url

    # What was given as a path may be a URL after all, and pathlib makes one slash of two.
    message = re.sub(r"(\w+):/+([^\s']*[@?][^\s']*)", lambda m: redact_url(f"{m[1]}://{m[2]}"), message)
    click.echo(f"Error: {one_line(hide(message, os.environ))}", err=True)
    if hint:
        click.echo(f"Hint: {one_line(hint)}", err=True)
