"""Best plans of a model under each interpretation (reading) of a study, which changes some settings."""

import logging
from collections.abc import Mapping, Sequence

import pandas as pd

from phaze.search.cosearch import Problem, Subject, Terms, best_placement, look_up_architectures
from phaze.spec.models import AnyModel
from phaze.tables import Readings

log = logging.getLogger(__name__)

PLAN = ["model", "architecture", "hbm_gib", "planner"]
"""Columns that identify a plan under an interpretation."""
Changes = Mapping[str, Mapping[str, object]]
"""Changed settings of a problem, by section and key."""


def change_problem(problem: Problem, changes: Changes) -> Problem:
    """Copy of a problem with some settings changed."""
    content = problem.model_dump(mode="json", exclude={"evaluations"})
    changed = content | {part: content[part] | dict(change) for part, change in changes.items()}
    return Problem.parse(changed | {"evaluations": problem.evaluations}, "readings")


def read_model(
    model: AnyModel,
    widths: Sequence[int],
    readings: Mapping[str, Problem],
    architectures: pd.DataFrame,
) -> pd.DataFrame:
    """Table `readings` of a model for some TMP widths; identical interpretations are evaluated once.

    `architectures` are rows of that table. Cached evaluations are reused for each layout, so another
    microbatch, reading or architecture evaluates nothing else again.
    """
    problems: list[tuple[Problem, pd.DataFrame]] = []
    readings_placed = []
    for reading, problem in readings.items():
        plans = next((plans for other, plans in problems if other == problem), None)
        if plans is None:
            log.info("reading %s", reading)
            subject = problem.extract_subject(model, widths)
            plans = read_plans(reading, subject, architectures, problem)
            problems.append((problem, plans))
        readings_placed.append(plans.assign(reading=reading))
    return Readings.check(pd.concat([Readings.empty(), *readings_placed], ignore_index=True))


def read_plans(reading: str, subject: Subject, architectures: pd.DataFrame, terms: Terms) -> pd.DataFrame:
    """Table `readings` of one interpretation: the best plan for every architecture, HBM size and planner.

    `architectures` are rows of table `architectures`. A plan is the best over TMP widths, microbatches and
    recomputation, by the order of `best_placement`.
    """
    placements = look_up_architectures(subject, architectures, terms, ["placements"])["placements"]
    best = [best_placement(rows) for _, rows in placements.groupby(PLAN, sort=True)]
    return Readings.check(pd.DataFrame(best).assign(reading=reading)[list(Readings.fields())])
