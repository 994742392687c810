"""Choose the common architecture among its candidates."""

from phaze import tables
from phaze.base.job import run_script
from phaze.search.common import choose_common
from phaze.spec.settings import ScreenSettings


def main(
    common: list[str],
    placements: list[str],
    architectures: str,
    out: str,
    *,
    weights: dict[str, float],
    screen: ScreenSettings,
) -> None:
    """Rank the candidates by their mean throughput over the models, normalised if the study asks for it."""
    throughputs = tables.Placements.load(*placements, columns=["model", "samples_per_s"])
    best = throughputs.groupby("model")["samples_per_s"].max()
    ranking = choose_common(
        tables.Placements.load(*common),
        tables.Architectures.load(architectures),
        weights,
        mode=screen.common,
        tolerance=screen.tolerance,
        reference={str(model): float(value) for model, value in best.items()},
    )
    tables.Commons.save(ranking, out)


if __name__ == "__main__":
    run_script(main, snakemake)
