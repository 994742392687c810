"""Audit the certificate of a plan with random plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import telling


def certify(
    file: Annotated[Path, typer.Argument(help="Plan written by `phaze plan -o PLAN.json`.")],
    draws: Annotated[int, typer.Option(help="Number of random plans to price.", min=1, max=100_000)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random plans.", min=0, max=2**62)] = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Audit a plan's certificate with random plans.

    Random layouts and pipeline splits are priced without the search. A plan that fits and is faster than the
    certificate's lower bound is a counterexample: exit status 1.
    """
    from phaze.certify.plans import certify_plan
    from phaze.plan.layouts.replay import ReplayedPlan
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    with telling("certify"):
        plan = read_as(TrainingPlan, file)
        replayed = ReplayedPlan.of(plan, str(file))
        if not replayed.same:
            raise PhazeError(
                f"{file}: {replayed.figures}; its certificate holds for other prices: run `phaze plan` again"
            )
        found = certify_plan(plan, draws, seed)
    if not found.counterexamples or as_json:
        typer.echo(json.dumps(found.as_row(), indent=1) if as_json else found.in_words())
    if found.counterexamples:
        raise PhazeError(
            f"{file}: certificate.bound_s: {len(found.counterexamples)} of {draws} plans are faster than "
            f"{found.bound_s:.6g} s, the fastest {found.counterexamples[0]}"
        )
