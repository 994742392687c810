"""Choose the common architecture among its candidates."""

from phaze import tables
from phaze.base.job import logged
from phaze.search.common import choose_common
from phaze.spec.settings import ScreenSettings


def main(
    common: list[str],
    placements: list[str],
    architectures: str,
    out: str,
    *,
    weights: dict[str, float],
    settings: dict[str, object],
) -> None:
    """Rank the candidates by their mean throughput over the models, normalised if the study asks for it."""
    screen = ScreenSettings.parse(settings, "screen")
    everything = tables.Placements.load(*placements, columns=["model", "samples_per_s"])
    best = everything.groupby("model")["samples_per_s"].max()
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
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            list(snakemake.input.common),
            list(snakemake.input.placements),
            snakemake.input.architectures,
            snakemake.output[0],
            weights=snakemake.params.weights,
            settings=snakemake.params.screen,
        )
