"""Best plans of a model under each interpretation (reading) of a study, which changes some settings."""

import logging
from collections.abc import Mapping, Sequence

import pandas as pd

from phaze.search.cosearch import Problem, Subject, Terms, best_placement, look_up_architectures
from phaze.search.winners import PRICED
from phaze.spec.models import AnyModel, parse_model
from phaze.tables import Readings

log = logging.getLogger(__name__)

Changes = Mapping[str, Mapping[str, object]]
"""Changed settings of a problem, by section and key."""


def change_problem(problem: Problem, changes: Changes) -> Problem:
    """Copy of a problem with some settings changed; changes of the model are ignored."""
    content = problem.model_dump(mode="json", exclude={"evaluations"})
    changed = {part: content[part] | dict(change) for part, change in changes.items() if part != "model"}
    return Problem.parse(content | changed | {"evaluations": problem.evaluations}, "readings")


def change_model(model: AnyModel, changes: Changes) -> AnyModel:
    """Copy of a model with the changed keys of section `model`."""
    return parse_model(model.model_dump(mode="json") | dict(changes.get("model", {})), model.name)


def read_model(
    widths: Sequence[int],
    readings: Mapping[str, tuple[AnyModel, Problem]],
    architectures: pd.DataFrame,
) -> pd.DataFrame:
    """Table `readings` of a model for some TMP widths; identical interpretations are evaluated once.

    `readings` are the model and the problem of every interpretation, `architectures` rows of that table.
    Cached evaluations are reused for each layout, so another microbatch, reading or architecture evaluates
    nothing else again.
    """
    evaluated: list[tuple[tuple[AnyModel, Problem], pd.DataFrame]] = []
    readings_placed = []
    for reading, case in readings.items():
        plans = next((plans for other, plans in evaluated if other == case), None)
        if plans is None:
            log.info("reading %s", reading)
            model, problem = case
            subject = problem.extract_subject(model, widths)
            plans = read_plans(reading, subject, architectures, problem)
            evaluated.append((case, plans))
        readings_placed.append(plans.assign(reading=reading))
    return Readings.check(pd.concat([Readings.empty(), *readings_placed], ignore_index=True))


def read_plans(reading: str, subject: Subject, architectures: pd.DataFrame, terms: Terms) -> pd.DataFrame:
    """Table `readings` of one interpretation: the best plan for every architecture, HBM size and planner.

    `architectures` are rows of table `architectures`. A plan is the best over TMP widths, microbatches and
    recomputation, by the order of `best_placement`.
    """
    placements = look_up_architectures(subject, architectures, terms, ["placements"])["placements"]
    best = [best_placement(rows) for _, rows in placements.groupby(PRICED, sort=True)]
    return Readings.check(pd.DataFrame(best).assign(reading=reading)[list(Readings.fields())])
