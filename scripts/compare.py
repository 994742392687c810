"""Compare search strategies on the same exact throughputs."""

from collections.abc import Iterator

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.search.cosearch import Problem
from phaze.search.strategies import compare_strategies
from phaze.search.throughputs import restrict_search
from phaze.spec.settings import Training


def main(
    files: dict[str, list[str]],
    screens: list[str],
    architectures: list[str],
    out: str,
    *,
    model: str,
    problem: Problem,
    area_band_um2: float,
) -> None:
    """Search the grid with every strategy, and write the architectures each evaluates, in order."""
    subject = problem.read_subject(files)
    chips = tables.Architectures.searched(tables.Architectures.load(*architectures))
    bounds = tables.Screens.load(*screens)
    bounds = bounds[tables.are_among(bounds["architecture"], pd.Index(chips["architecture"]))]
    trials = []
    for scope, training in scopes(problem.training):
        times = restrict_search(subject, problem, bounds, training)
        trials.append(
            compare_strategies(
                chips,
                times.bounds,
                times,
                model=model,
                scope=scope,
                area_band_um2=area_band_um2,
            )
        )
    tables.Trials.save(pd.concat(trials, ignore_index=True), out)


def scopes(training: Training) -> Iterator[tuple[str, Training]]:
    """Yield the training spaces to search, by name: the whole space, and those of Figures 9 and 8."""
    yield "whole", training
    least = training.model_copy(update={"microbatches": (min(training.microbatches),)})
    yield "least-microbatch", least
    memory = {"hbm_gib": (max(training.hbm_gib),), "recompute": (max(training.recompute),)}
    yield "recomputing", least.model_copy(update=memory)


if __name__ == "__main__":
    run_script(main, snakemake)
