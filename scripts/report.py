"""Write the report of a study."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.formulas.priced import PlacementPricing
from phaze.pages.page import write_report
from phaze.report.build import build_report
from phaze.report.inputs import DetailFiles, Inputs, read_times
from phaze.report.priced import placement_picture
from phaze.search.winners import Outcome
from phaze.spec.architecture import Technology
from phaze.spec.models import parse_model
from phaze.spec.study import Study
from phaze.spec.system import Scenario, Stack

STAGES = {
    "extract": "operators",
    "estimate": "estimates",
    "screen": "screens",
    "schedule": "solves",
    "place": "placements",
}
"""Folder with the benchmark files of each stage."""
LOADED = ("fronts", "trials", "sensitivities", "simulations", "audits")
"""Tables of the first scenario, with one file per model."""


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    study: Study,
    scenarios: dict[str, dict[str, object]],
    area_limits: dict[str, float | dict[str, object]],
    estimates: dict[str, str],
    technology: Technology,
    parameters: dict[str, int],
    models: dict[str, dict[str, object]],
    stack: Stack,
    families: dict[str, dict[str, str]],
) -> None:
    """Read a study's files, and write the report into the folder `report` next to them."""
    results, scenario = Path(outputs["page"]).parent.parent, next(iter(scenarios))
    paths = [Path(path) for named in files.values() for path in named]
    main_files = Files(results, paths, scenario)
    clusters = {
        name: read_cluster(
            Files(results, paths, name),
            Scenario.parse(value, name),
            area_limit_um2(area_limits[name], technology),
        )
        for name, value in scenarios.items()
    }
    cluster = clusters[scenario]
    pricings = {
        name: PlacementPricing.of(
            parse_model(spec, name),
            study.workloads[name].sequence,
            cluster.scenario,
            study.training,
            stack,
            technology,
        )
        for name, spec in models.items()
    }
    inputs = Inputs(
        study=study,
        clusters=clusters,
        graphs=tables.Graphs.load(*main_files.of("graphs", scenario=False)),
        solves=tables.Solves.load(*main_files.of("solves")),
        details=DetailFiles.under(results, scenario, estimates[scenario]),
        energy=technology.energy,
        parameters=parameters,
        **{name: tables.TABLES[name].load(*main_files.of(name)) for name in LOADED},
        families=families,
        readings=tables.Readings.load(*main_files.of("readings", scenario=False)),
        source_scores=tables.SourceScores.load(*(p for p in paths if p.stem == "source_scores")),
        certificates=tables.Certificates.load(results / "certificates" / f"{scenario}.parquet"),
        pictures=partial(placement_picture, pricings, cluster.architectures),
        times=read_times(benchmarks(results, study.models)),
    )
    write_report(build_report(inputs), results / "report")


@dataclass(frozen=True)
class Files:
    """Result files of a study by table; other files in the same folders are ignored."""

    results: Path
    paths: list[Path]
    scenario: str

    def of(self, table: str, *, scenario: bool = True, common: bool = False) -> list[Path]:
        """Files of a table; with `common`, only the files of candidates for the common architecture."""
        folder = self.results / table / self.scenario if scenario else self.results / table
        return [p for p in self.paths if p.is_relative_to(folder) and (p.stem == "common") == common]


def read_cluster(files: Files, scenario: Scenario, limit_um2: float) -> Outcome:
    """Load the result tables of one scenario."""
    commons = tables.Commons.load(files.results / "commons" / f"{files.scenario}.parquet")
    chosen = commons[commons["chosen"]]
    return Outcome(
        scenario,
        limit_um2,
        tables.Architectures.load(*files.of("architectures")),
        tables.Placements.load(*files.of("placements")),
        tables.Placements.load(*files.of("placements", common=True)),
        None if chosen.empty else (str(chosen["architecture"].iloc[0]), float(chosen["hbm_gib"].iloc[0])),
    )


def benchmarks(results: Path, models: tuple[str, ...]) -> dict[tuple[str, str], list[Path]]:
    """Benchmark files of Snakemake, by stage and model."""
    return {
        (stage, model): [
            p for p in sorted((results / "benchmarks" / table).rglob("*.tsv")) if model in p.parts
        ]
        for stage, table in STAGES.items()
        for model in models
    }


if __name__ == "__main__":
    run_script(main, snakemake, logs_params=False)
