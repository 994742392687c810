"""Place a model under varied bandwidths, on its best, the common and the baseline architecture."""

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.search.cosearch import Problem, vary_cluster
from phaze.search.winners import Outcome, choose_winner


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    problem: Problem,
    variations: dict[str, dict[str, float]],
    area_limit: float | dict[str, object],
    tolerance: float,
    baseline: str | None,
) -> None:
    """Evaluate the chosen architectures under every variation of the cluster."""
    architectures = tables.Architectures.load(*files["architectures"])
    commons = tables.Commons.load(*files["commons"])
    cluster = Outcome(
        problem.scenario,
        area_limit_um2(area_limit, problem.technology),
        architectures,
        tables.Placements.load(*files["placements"]),
    )
    winner = choose_winner(cluster, tolerance)
    names = {baseline, *commons.loc[commons["chosen"], "architecture"]}
    names |= set() if winner is None else {winner["architecture"]}
    chosen = architectures[architectures["architecture"].isin(names)]
    sensitivities = vary_cluster(problem.read_subject(files), chosen, problem, variations)
    tables.Sensitivities.save(sensitivities, out)


if __name__ == "__main__":
    run_script(main, snakemake)
