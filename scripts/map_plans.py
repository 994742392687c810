"""Map the best plans of a model to the devices of networks."""

from phaze import tables
from phaze.base.job import run_script
from phaze.base.store import Store
from phaze.map.study import MapQuestion, map_plans
from phaze.spec.settings import PlanMapSettings


def main(
    plans: str,
    plan_stages: str,
    outputs: dict[str, str],
    *,
    networks: dict[str, dict[str, object]],
    devices: int,
    search: PlanMapSettings,
    store: Store,
) -> None:
    """Read plans and their stages, map them to the networks, and write the devices and simulated times."""
    question = MapQuestion.of(networks, devices, search)
    maps, places = map_plans(tables.Plans.load(plans), tables.PlanStages.load(plan_stages), question, store)
    tables.PlanMaps.save(maps, outputs["plan_maps"])
    tables.PlanDevices.save(places, outputs["plan_devices"])


if __name__ == "__main__":
    run_script(main, snakemake)
