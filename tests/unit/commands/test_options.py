"""Options shared by several commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.spec.questions import Described


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of several commands."""

    devices: Annotated[int, typer.Option(help="How many.", min=1)] = 8
    as_json: options.JsonOption = False


@dataclass(frozen=True, kw_only=True)
class Own(Shared):
    """Options of one command."""

    model: Annotated[str, typer.Argument(help="Which.")]
    batch: Annotated[int | None, typer.Option(help="Of what size.")] = None


def test_a_verb_gets_what_is_given_and_its_own_options_stand_first() -> None:
    seen: list[Own] = []
    app = typer.Typer()

    @app.command()
    @options.takes(Own)
    def ask(asked: Own) -> None:
        """Print the options."""
        seen.append(asked)

    runner = CliRunner()
    assert runner.invoke(app, ["tiny", "--devices", "4", "--json"]).exit_code == 0
    assert runner.invoke(app, ["tiny"]).exit_code == 0
    assert seen == [Own(model="tiny", devices=4, as_json=True), Own(model="tiny")]
    told = runner.invoke(app, ["--help"]).output
    assert told.index("--batch") < told.index("--devices") < told.index("--json")
    assert runner.invoke(app, ["tiny", "--devices", "0"]).exit_code == 2
    assert runner.invoke(app, []).exit_code == 2


@dataclass(frozen=True, kw_only=True)
class Question:
    """Fields that describe their options."""

    run_s: Annotated[float | None, Described(text="How long.", flags=("--run", "-r"), with_suffix=True)] = (
        None
    )
    parts: Annotated[int, Described(text="How many.", least=2)] = 2
    exactly: Annotated[bool, Described(text="Whether exactly.")] = False


def test_an_option_is_made_from_the_description_of_its_field() -> None:
    seen: list[Question] = []
    app = typer.Typer()
    app.command()(options.takes(Question)(seen.append))
    runner = CliRunner()
    assert runner.invoke(app, ["-r", "4k", "--parts", "3", "--exactly"]).exit_code == 0
    assert seen == [Question(run_s=4000.0, parts=3, exactly=True)]
    assert options.flags(Question) == {"run_s": "--run", "parts": "--parts", "exactly": "--exactly"}
    assert runner.invoke(app, ["--parts", "1"]).exit_code == 2
    assert runner.invoke(app, ["--no-exactly"]).exit_code == 2
    assert "How long." in runner.invoke(app, ["--help"]).output


@pytest.mark.parametrize(("noun", "names"), [(Shared, {"devices": "--devices", "as_json": "--as-json"})])
def test_flags_are_named_by_their_parameters(noun: type, names: dict[str, str]) -> None:
    assert options.flags(noun) == names


def test_samples_that_are_meant_as_tokens_are_refused() -> None:
    samples = options.count("4M")
    with pytest.raises(PhazeError) as error:
        options.batch_samples("plan", samples, None, 8192)
    assert "4,000,000 samples of 8,192 tokens, which are 32,768,000,000" in error.value.wrong
    assert error.value.fix.startswith("pass --batch-tokens 4000000 ")
    assert options.batch_samples("plan", 8192, None, 8192) == 8192
    assert options.batch_samples("plan", None, samples, 8192) == 488
