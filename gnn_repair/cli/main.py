"""The ``gnn-repair`` command and how it fails."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
import warnings
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gnn_repair import __version__
from gnn_repair.cli import check, data, demo, diagnose, doctor, report, study
from gnn_repair.errors import GnnRepairError, InputError, ResourceError

COMMANDS: dict[str, Any] = {
    "demo": demo.demo,
    "diagnose": diagnose.diagnose,
    "report": report.report,
    "view": report.view,
    "study": study.app,
    "data": data.app,
    "check": check.check,
    "doctor": doctor.doctor,
}
"""In the order in which the help lists them: what a user needs first comes first."""
MOVED = {"bench": "make bench", "selftest": "make campaign"}
"""Commands of version 0.2 that only developers ran, and where they went."""


class _InOrder(TyperGroup):
    """Lists groups of commands among the others, where Typer puts them last; says what ended it."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(COMMANDS)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # which is Pydantic's
            raise
        except KeyboardInterrupt as error:
            _say("stopped by Ctrl-C")
            raise typer.Exit(130) from error


app = typer.Typer(
    name="gnn-repair",
    cls=_InOrder,
    help="Find out why a trained graph neural network is wrong about a node, and repair it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _item in COMMANDS.items():
    if isinstance(_item, typer.Typer):
        app.add_typer(_item, name=_name)
    else:
        app.command(name=_name)(_item)


def _flowed(text: str) -> str:
    """Paragraphs as one line each, which the help wraps to the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


for _app in (app, study.app, data.app):
    for _command in _app.registered_commands:
        assert _command.callback is not None
        _command.help = _flowed(_command.callback.__doc__ or "")


def _moved(context: typer.Context) -> None:
    name = str(context.info_name)
    raise InputError(f"{name} left the installed package; run '{MOVED[name]}' in its source folder")


for _name in MOVED:
    _anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(_name, hidden=True, add_help_option=False, context_settings=_anything)(_moved)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"gnn-repair {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Find out why a trained graph neural network is wrong about a node, and repair it."""


def main() -> None:
    """Run the command; an expected error is one sentence on stderr and exit code 2."""
    # Python looks through every object for garbage once more as it ends: half a second, with torch.
    atexit.register(gc.freeze)
    # Without the place in the source that gave it.
    warnings.formatwarning = lambda said, *where, **line: f"gnn-repair: warning: {said}\n"
    # A terminal without × and –, or a path that is no text, must not end a command.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # PyTorch announces on every first use that its sparse tensors are in beta.
    warnings.filterwarnings("ignore", message="Sparse ", category=UserWarning)
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sentence, code = _verdict(error)
        _say(sentence)
        sys.exit(code)


def _verdict(error: Exception) -> tuple[str, int]:
    """What to print and the exit code: 2 for what was typed, 1 for what the world did."""
    if isinstance(error, GnnRepairError):
        return str(error), 1 if isinstance(error, ResourceError) else 2
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "a path holds an empty character; type it anew", 2
    if isinstance(error, BrokenPipeError):
        return "nobody reads the output any more", 1
    if isinstance(error, MemoryError):
        return "out of memory; choose fewer splits or a smaller graph", 1
    if isinstance(error, ImportError) and not str(error.name).startswith("gnn_repair"):
        return f"a package cannot be imported ({error}); see gnn-repair doctor, install it anew", 1
    if isinstance(error, OSError) and error.strerror:
        about = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{about}; check the disk and permissions, then run again", 1
    first = (str(error).splitlines() or [""])[0][:300]
    return (
        f"unexpected {type(error).__name__}: {first}; this is a fault of gnn-repair, run again "
        "with --debug after 'gnn-repair' to see where",
        1,
    )


def _say(sentence: str) -> None:
    """One line on stderr, whatever the terminal's encoding and even where nobody reads it."""
    with contextlib.suppress(OSError):
        typer.echo(f"gnn-repair: {' '.join(sentence.splitlines())}", err=True)
