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
    from phaze.base.extras import EXTRAS, missing
    from phaze.base.nearest import nearest
    from phaze.base.printed import LONGEST_REMARK, EscapedStream, short
    from phaze.commands.calibrate import calibrate, measure
    from phaze.commands.chip import chip
    from phaze.commands.emit import compare, emit, read
    from phaze.commands.fields import layout_field
    from phaze.commands.lists import architectures, devices, models, recipes, stacks, systems
    from phaze.commands.map import map_stages
    from phaze.commands.model import model, profile, trace
    from phaze.commands.output import INTERRUPTED
    from phaze.commands.partition import partition
    from phaze.commands.place import place
    from phaze.commands.plan import plan
    from phaze.commands.schemas import schema
    from phaze.commands.simulate import certify, simulate
    from phaze.commands.stages import estimate, export, extract, schedule, space
    from phaze.commands.study import new_study, status
    from phaze.commands.terminal import Verb, Verbs, paragraphs, tell_labelled
    from phaze.commands.tiles import TilesVerb, tiles
    from phaze.commands.validate import validate
except KeyboardInterrupt:  # imports take half a second
    sys.exit(130)

ARGUMENTS = ("Missing argument", "Got unexpected extra argument")
"""Starts of messages on arguments, for which the usage of the command is the fix."""
LIMIT = re.compile(r": Input should be (.*?)(?:, unable to parse .*)?$")
"""Message of pydantic on a value, which lacks the value."""
CHOICE = re.compile("'([^']*)' is not one of (.*)")
"""Pattern of messages on a value that is none of a few."""
LONGEST_PATH = 40
"""Maximum length of a relative path with which an error begins."""

app = typer.Typer(
    name="phaze",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Plan the training of models on clusters, and design accelerators for them.",
    epilog="All commands: phaze -h --all. Options of one: phaze plan -h.",
)
GROUPS = {
    "Train (a model on a cluster)": (
        plan, emit, read, compare, simulate, validate, models, systems,
        model, certify, measure, calibrate, recipes, stacks, schema,
    ),
    "Design (accelerators)": (
        chip, place, estimate, devices, architectures, space, extract, schedule, partition, map_stages,
        tiles, trace, profile,
    ),
    "Study (many accelerators)": (new_study, status, export),
}  # fmt: skip
"""Verbs by the title of their group in the help."""
FIRST_SCREEN = (plan, emit, read, compare, validate, models, systems, chip, place, new_study, status, export)
"""Verbs in the short help."""
NAMES = {
    verb.__name__.removesuffix("_stages").replace("_", "-"): verb
    for verbs in GROUPS.values()
    for verb in verbs
}
"""Verbs by name."""
CLASSES = {tiles: TilesVerb}
"""Classes of the verbs whose options are the fields of a noun."""


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
    _all: Annotated[bool, typer.Option("--all", help="With -h: list all commands.")] = False,
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


Verbs.first_screen = frozenset(name for name, verb in NAMES.items() if verb in FIRST_SCREEN)
for title, verbs in GROUPS.items():
    for name, verb in NAMES.items():
        if verb in verbs:
            app.command(name, cls=CLASSES.get(verb, Verb), help=paragraphs(verb), rich_help_panel=title)(verb)


def main() -> int:
    """Run the command line. User errors are printed as one message, with exit status 1."""
    if sys.stderr is None:
        # Otherwise an output file would get descriptor 2, and what libraries print there.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        return _mistake(PhazeError("cannot print the answer: standard output is closed"))
    output, errors = EscapedStream(sys.stdout), EscapedStream(sys.stderr, LONGEST_REMARK)
    try:
        with redirect_stdout(output), redirect_stderr(errors):  # type: ignore[type-var]
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
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        return _mistake(missing(library))
    except MemoryError as error:
        return _mistake(
            PhazeError("not enough memory on this machine", str(error) or "ask a smaller question")
        )
    except OSError as error:
        if error.filename is not None:
            problem = f"{error.filename}: cannot be read or written: {error.strerror or error}"
            return _mistake(PhazeError(problem, "check the path and its permissions"))
        _print_no_more()
        problem = f"cannot print the answer: {error.strerror or error}"
        return _mistake(PhazeError(problem, "print to a terminal or another disk"))


def _mistake(error: PhazeError) -> int:
    """Print an error message and, on another line, the fix; returns the exit status of user errors."""
    for line in error.wrong.splitlines():
        tell_labelled("error", _message_first(line))
    if error.fix:
        tell_labelled("help", " ".join(error.fix.split()))
    return 1


def _message_first(line: str) -> str:
    """Line of an error, with a long path behind the message instead of before it."""
    path, _, message = line.partition(": ")
    is_long = path.startswith("/") or ("/" in path and " " not in path and len(path) > LONGEST_PATH)
    return f"{message} ({path})" if is_long and message else line


def _misused(error: typer.TyperException) -> int:
    """Print a mistake in the command line itself; returns its exit status."""
    if not sys.argv[1:]:  # help, as a command without arguments prints
        typer.echo(error.format_message(), err=True)
        return error.exit_code
    possible = getattr(error, "possibilities", None) or ()
    # The parser's own text lists all similar options, of which the nearest is enough.
    message = error.message if possible else error.format_message()
    wrong, _, suggested = " ".join(message.split()).partition(" Did you mean ")
    wrong = wrong.replace(": Value error, ", ": ")
    refused: list[dict[str, object]] = getattr(error.__cause__, "errors", list)()  # of pydantic
    if refused and (limit := LIMIT.search(wrong)):
        wrong = f"{wrong[: limit.start()]}: must be {limit[1]}, got {short(refused[0]['input'])}"
    likely = nearest(getattr(error, "option_name", ""), possible)[:1]
    near = suggested.replace("'", "").rstrip("?").split(", ") if suggested else likely
    fix = f"did you mean {' or '.join(near)}?" if near else ""
    context = getattr(error, "ctx", None)
    verb = getattr(context, "info_name", "") or ""
    if wrong.startswith(ARGUMENTS) and context is not None:
        fix = context.get_usage()
    elif (field := layout_field(getattr(error, "option_name", ""))) and verb == "plan":
        fix = f"widths and other fields of the layout are free unless fixed: --fix {field}=VALUE"
    elif choice := CHOICE.search(wrong):
        similar = nearest(choice[1], re.findall("'([^']*)'", choice[2]), 0.4)[:1]
        fix = f"did you mean {similar[0]}?" if similar else ""
    _mistake(PhazeError(wrong, fix))
    return error.exit_code


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
