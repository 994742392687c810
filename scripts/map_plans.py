"""Map the best plans of a model to the devices of networks."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.base.store import Store
from phaze.map.study import MapQuestion, map_plans
from phaze.spec.settings import PlanMapSettings


def main(plans: str, plan_stages: str, outputs: dict[str, str], *, asked: MapQuestion, store: Store) -> None:
    """Read plans and their stages, map them to the networks, and write the devices and simulated times."""
    maps, places = map_plans(tables.Plans.load(plans), tables.PlanStages.load(plan_stages), asked, store)
    tables.PlanMaps.save(maps, outputs["plan_maps"])
    tables.PlanDevices.save(places, outputs["plan_devices"])


if __name__ == "__main__":
    with (
        logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]),
        Store(Path(snakemake.params.store), snakemake.params.code) as store,
    ):
        main(
            snakemake.input.plans,
            snakemake.input.plan_stages,
            dict(snakemake.output.items()),
            asked=MapQuestion.of(
                snakemake.params.networks,
                snakemake.params.devices,
                PlanMapSettings.parse(snakemake.params.search, "report.maps"),
            ),
            store=store,
        )
