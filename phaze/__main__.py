"""The `phaze` command line answers single questions; Snakemake runs whole studies.

Each stage of a study is a command. Every command prints a table for readers, or JSON with `--json`.
"""

import os
import re
import sys

try:
    from contextlib import redirect_stderr, redirect_stdout
    from pathlib import Path
    from typing import Annotated

    import typer

    from phaze.base.errors import PhazeError
    from phaze.base.nearest import nearest
    from phaze.base.printed import LONGEST_REMARK, EscapedStream, shortened
    from phaze.commands.calibrate import calibrate, measure
    from phaze.commands.emit import compare, emit, read
    from phaze.commands.lists import devices, models, recipes, stacks, systems
    from phaze.commands.map import map_stages
    from phaze.commands.model import model, trace
    from phaze.commands.partition import partition
    from phaze.commands.place import place
    from phaze.commands.plan import plan
    from phaze.commands.simulate import certify, simulate
    from phaze.commands.stages import estimate, export, extract, schedule, space
    from phaze.commands.study import new_study, status
    from phaze.commands.terminal import Verb, Verbs, paragraphs
    from phaze.commands.validate import validate
except KeyboardInterrupt:  # imports take half a second
    sys.exit(130)

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""

app = typer.Typer(
    name="phaze",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Plan the training of models on clusters, and design accelerators for them.",
)
GROUPS = {
    "Ask (how to train a model)": (plan, model, certify, simulate),
    "Run (flags, your runs, your cluster)": (emit, read, compare, validate, measure, calibrate),
    "Design (accelerators)": (place, space, extract, estimate, schedule, partition, map_stages, trace),
    "Studies (many accelerators)": (new_study, status, export),
    "Look (what phaze knows)": (models, systems, devices, stacks, recipes),
}
"""Verbs by the title of their group in the help."""
NAMES = {
    verb.__name__.removesuffix("_stages").replace("_", "-"): verb
    for verbs in GROUPS.values()
    for verb in verbs
}
"""Verbs by name."""


def _told(version: bool) -> None:  # parameter name required by Typer
    if version:
        from phaze.base.provenance import phaze_version

        typer.echo(f"phaze {phaze_version()}")
        raise typer.Exit


@app.callback()
def _begin(
    config: Annotated[
        Path | None,
        typer.Option(
            help="Folder with models, systems and devices, laid out like phaze's own config. Default: "
            "PHAZE_CONFIG, else phaze's own."
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_told, is_eager=True)
    ] = False,
) -> None:
    """Set the configuration folder before anything reads it."""
    variable = "PHAZE_CONFIG"
    named = os.environ.get(variable) if config is None else str(config)
    if not named:
        return
    if not (Path(named) / "systems").is_dir():
        who = variable if config is None else "--config"
        raise PhazeError(f"{who} {named}: must be a folder that contains systems, models and devices")
    os.environ[variable] = named


for title, verbs in GROUPS.items():
    for name, verb in NAMES.items():
        if verb in verbs:
            app.command(name, cls=Verb, help=paragraphs(verb), rich_help_panel=title)(verb)


def main() -> int:
    """Run the command line. User errors are printed as one message, with exit status 1."""
    said, told = EscapedStream(sys.stdout), EscapedStream(sys.stderr, LONGEST_REMARK)
    try:
        with redirect_stdout(said), redirect_stderr(told):  # type: ignore[type-var]
            return _status()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _print_the_rest()


def _status() -> int:
    """Exit status of the command."""
    try:
        return app(standalone_mode=False) or 0
    except PhazeError as error:
        return _mistake(error)
    except typer.TyperException as error:
        return _misused(error)
    except typer.Abort:
        return INTERRUPTED
    except MemoryError as error:
        return _mistake(
            PhazeError("not enough memory on this machine", str(error) or "ask a smaller question")
        )
    except OSError as error:
        if error.filename is not None:
            said = f"{error.filename}: cannot be read or written: {error.strerror or error}"
            return _mistake(PhazeError(said, "check the path and its permissions"))
        _print_no_more()
        said = f"cannot print the answer: {error.strerror or error}"
        return _mistake(PhazeError(said, "print to a terminal or another disk"))


def _mistake(error: PhazeError) -> int:
    """Print an error message and, on another line, the fix; returns the exit status of user errors."""
    wrong = "\n".join(f"error: {line}" for line in error.wrong.splitlines())
    typer.echo(shortened(f"{wrong}\nhelp: {' '.join(error.fix.split()) or _where_to_read()}"), err=True)
    return 1


def _misused(error: typer.TyperException) -> int:
    """Print a mistake in the command line itself; returns its exit status."""
    if not sys.argv[1:]:  # help, as a command without arguments prints
        typer.echo(error.format_message(), err=True)
        return error.exit_code
    wrong, _, suggested = " ".join(error.format_message().split()).partition(" Did you mean ")
    wrong = re.sub(r" \(Possible options: .*\)$", "", wrong).replace(": Value error, ", ": ")
    likely = nearest(wrong.rpartition(" ")[2], getattr(error, "possibilities", None) or ())[:1]
    near = suggested.replace("'", "").rstrip("?").split(", ") if suggested else likely
    _mistake(PhazeError(wrong, f"did you mean {' or '.join(near)}?" if near else ""))
    return error.exit_code


def _where_to_read() -> str:
    """Pointer to the help of the verb on the command line."""
    verb = next((word for word in sys.argv[1:] if word in {*NAMES}), "")
    return f"see `phaze {verb} -h`" if verb else "see `phaze -h`"


def _print_the_rest() -> None:
    """Flush standard output; a broken pipe is ignored."""
    try:
        sys.stdout.flush()
    except OSError:
        _print_no_more()


def _print_no_more() -> None:
    """Discard buffered standard output, which Python would otherwise try to write again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
