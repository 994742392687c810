"""Map the best plans of a model to the devices of networks."""

from phaze import tables
from phaze.job import logged
from phaze.mapped.maps import Effort
from phaze.mapped.study import Asked, map_plans
from phaze.simulate.plan import Bandwidths
from phaze.spec.network import Matrix
from phaze.spec.system import Cluster

Plain = dict[str, object]


def main(
    plans: str,
    plan_stages: str,
    outputs: dict[str, str],
    *,
    networks: dict[str, Plain],
    devices: int,
    bandwidths: Bandwidths,
    planners: tuple[str, ...],
    effort: Effort,
) -> None:
    """Read plans and their stages, write where they lie on the networks and how long they take there."""
    systems = {
        name: (Cluster if "device" in one else Matrix).parse(one, name) for name, one in networks.items()
    }
    asked = Asked(planners, systems, devices, bandwidths, effort)
    maps, places = map_plans(tables.Plans.load(plans), tables.PlanStages.load(plan_stages), asked)
    tables.PlanMaps.save(maps, outputs["plan_maps"])
    tables.PlanDevices.save(places, outputs["plan_devices"])


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.input.plans,
            snakemake.input.plan_stages,
            dict(snakemake.output.items()),
            networks=snakemake.params.networks,
            devices=snakemake.params.devices,
            bandwidths=Bandwidths(*snakemake.params.bandwidths),
            planners=tuple(snakemake.params.search["planners"]),
            effort=Effort(snakemake.params.search["steps"], snakemake.params.search["seed"]),
        )
