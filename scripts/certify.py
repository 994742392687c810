"""Certify the best point of a model's search space, and count the reasons that exclude other points."""

from phaze import tables
from phaze.base.job import run_script
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
    scenario: Scenario,
    training: Training,
    area_limit: float | dict[str, object],
    technology: Technology,
    overlap_communication: bool,
) -> None:
    """Read the screens of all points and shards one file at a time; write the certificate and the ranges."""
    limit_um2 = area_limit_um2(area_limit, technology)
    screens = (tables.Screens.load(path, columns=SCREENED) for path in files["screens"])
    certificate, ranges = certify_model(
        zip(read_slices(files, ESTIMATED), screens, strict=True),
        tables.Graphs.load(*files["graph"]),
        tables.Architectures.load(*files["architectures"]),
        tables.Placements.load(*files["placements"], columns=PLACED),
        tables.Solves.load(*files["solves"], columns=["status", "gap"]),
        CertificateTerms(scenario, training, limit_um2, overlap_communication),
    )
    tables.Certificates.save(certificate, outputs["certificate"])
    tables.Ranges.save(ranges, outputs["ranges"])


if __name__ == "__main__":
    run_script(main, snakemake)
