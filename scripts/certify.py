"""Certify the best point of a model's search space, and count the reasons that exclude other points."""

from phaze import tables
from phaze.base.job import join_params, logged
from phaze.certify.space import PLACED
from phaze.certify.stage import CertificateTerms, certify_model, read_slices
from phaze.cost.space import area_limit_um2
from phaze.spec.architecture import Technology
from phaze.spec.settings import Training
from phaze.spec.system import Scenario

ESTIMATED = ["work", "design", "latency_s", "latency_all_s"]
SCREENED = ["architecture", "hbm_gib", "recompute", "lower_s", "feasible_s", "kept"]


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    scenario: dict[str, object],
    training: object,
    area_limit: float | dict[str, object],
    technology: dict[str, object],
    overlap_communication: bool,
) -> None:
    """Read the screens of all points and shards one file at a time; write the certificate and the ranges."""
    limit_um2 = area_limit_um2(area_limit, Technology.parse(technology, "technology"))
    screens = (tables.Screens.load(path, columns=SCREENED) for path in files["screens"])
    certificate, ranges = certify_model(
        zip(read_slices(files, ESTIMATED), screens, strict=True),
        tables.Graphs.load(*files["graph"]),
        tables.Architectures.load(*files["architectures"]),
        tables.Placements.load(*files["placements"], columns=PLACED),
        tables.Solves.load(*files["solves"], columns=["status", "gap"]),
        CertificateTerms(
            Scenario.parse(scenario, "scenario"),
            Training.parse(training, "training"),
            limit_um2,
            overlap_communication,
        ),
    )
    tables.Certificates.save(certificate, outputs["certificate"])
    tables.Ranges.save(ranges, outputs["ranges"])


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {name: list(paths) for name, paths in snakemake.input.items() if name != "graph"}
            | {"graph": [snakemake.input.graph]},
            dict(snakemake.output.items()),
            scenario=snakemake.params.scenario,
            training=join_params(snakemake.params)["training"],
            area_limit=snakemake.params.area_limit,
            technology=snakemake.params.technology,
            overlap_communication=snakemake.params.overlap_communication,
        )
