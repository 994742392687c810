"""Write the candidates for the common architecture: all that could have the best mean over the models."""

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.designs import with_own_designs
from phaze.cost.space import area_limit_um2
from phaze.search.common import common_candidates
from phaze.spec.architecture import Technology
from phaze.spec.settings import ScreenSettings

COLUMNS = ["model", "architecture", "hbm_gib", "lower_s", "feasible_s"]


def main(
    screens: list[str],
    architectures: list[str],
    out: str,
    *,
    weights: dict[str, float],
    global_batch: int,
    area_limit: float | dict[str, object],
    technology: Technology,
    screen: ScreenSettings,
) -> None:
    """Read all screens one at a time, and write the candidates as a shard, with core designs of its own."""
    chips = tables.Architectures.load(*architectures)
    bounded = common_candidates(
        (tables.Screens.load(path, columns=COLUMNS) for path in screens),
        chips,
        weights,
        mode=screen.common,
        global_batch=global_batch,
        best=screen.best,
        tolerance=screen.tolerance,
        area_limit_um2=area_limit_um2(area_limit, technology),
    )
    candidates = chips[chips["architecture"].isin(bounded["architecture"])]
    tables.Architectures.save(with_own_designs(candidates).assign(shard="common"), out)


if __name__ == "__main__":
    run_script(main, snakemake)
