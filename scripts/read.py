"""Place a model under every interpretation of a paper, on named architectures and the study's best."""

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.search.cosearch import Problem
from phaze.search.readings import Changes, change_model, change_problem, read_model
from phaze.search.winners import Outcome, choose_winner
from phaze.spec.models import parse_model


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    wildcards: dict[str, str],
    model: dict[str, object],
    widths: list[int],
    problem: Problem,
    readings: dict[str, Changes],
    named: list[str],
    area_limit: float | dict[str, object],
    tolerance: float,
) -> None:
    """Evaluate the architectures under every interpretation, with all TMP widths and microbatches."""
    architectures = tables.Architectures.load(*files["architectures"])
    chips = architectures[architectures["named"] & architectures["architecture"].isin(named)]
    if files["placements"]:
        chips = pd.concat([chips, winners(files, architectures, problem, area_limit, tolerance)])
    spec = parse_model(model | {"name": wildcards["model"]}, wildcards["model"])
    plans = read_model(
        widths,
        {
            name: (change_model(spec, changes), change_problem(problem, changes))
            for name, changes in readings.items()
        },
        chips,
    )
    tables.Readings.save(plans, out)


def winners(
    files: dict[str, list[str]],
    architectures: pd.DataFrame,
    problem: Problem,
    area_limit: float | dict[str, object],
    tolerance: float,
) -> pd.DataFrame:
    """Return the best and the common architecture of the study, unless they are named ones."""
    commons = tables.Commons.load(*files["commons"])
    limit_um2 = area_limit_um2(area_limit, problem.technology)
    placements = tables.Placements.load(*files["placements"])
    winner = choose_winner(Outcome(problem.scenario, limit_um2, architectures, placements), tolerance)
    names = set(commons.loc[commons["chosen"], "architecture"])
    names |= set() if winner is None else {winner["architecture"]}
    chosen: pd.DataFrame = architectures[architectures["architecture"].isin(names) & ~architectures["named"]]
    return chosen


if __name__ == "__main__":
    run_script(main, snakemake)
