"""Write the page that compares a study's results with the papers, with its tables."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.pages.page import write_report
from phaze.papers.page import Paper, build_page
from phaze.papers.palm.build import palm_paper
from phaze.papers.palm.readings import TiledInputs
from phaze.papers.parmesan import MapInputs, parmesan_paper
from phaze.papers.phaze.beside import Beside
from phaze.papers.phaze.build import phaze_paper
from phaze.papers.piper import PlanInputs, piper_paper
from phaze.papers.publications import KINDS, Published
from phaze.report.inputs import DetailFiles, Inputs
from phaze.search.winners import Outcome
from phaze.spec.architecture import Technology
from phaze.spec.noun import Noun
from phaze.spec.study import Study
from phaze.spec.system import Scenario

CASES: dict[str, tuple[Callable[..., object], Callable[..., Paper]]] = {
    "plans": (PlanInputs, piper_paper),
    "maps": (MapInputs, parmesan_paper),
    "tiled": (TiledInputs, palm_paper),
}
"""Class of inputs, and function that builds the paper's section, for each part of a study with cases."""
BESIDE = ("results", "memories", "breakdowns", "complexities", "walks")
Plain = dict[str, object]


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    study: Study,
    published: dict[str, Plain],
    models: Plain | None,
    flops: float,
) -> None:
    """Load the tables of every part of the study, and write the page."""
    folder, papers = Path(outputs["page"]).parent, []
    parts: dict[str, dict[str, list[str]]] = {}
    for key, paths in files.items():
        part, _, table = key.partition("__")
        parts.setdefault(part, {})[table] = paths
    if models is not None:
        loaded = load(parts["report"])
        printed = Published.parse(published["report"], "published")
        papers.append(phaze_paper(beside_of(study, printed, loaded, folder.parent, models)))
    for part, (inputs, paper) in CASES.items():
        if part in parts:
            named = published.get(part)
            of: Noun | None = None if named is None else KINDS[part].parse(named, "published")
            extra = {"flops": flops} if part == "tiled" else {}
            papers.append(
                paper(inputs(study=getattr(study, part), published=of, **load(parts[part]), **extra))
            )
    write_report(build_page(papers), folder)


def load(files: dict[str, list[str]]) -> dict[str, pd.DataFrame]:
    """Load tables by name; tables without a file are omitted."""
    return {name: tables.TABLES[name].load(*paths) for name, paths in files.items() if paths}


def beside_of(
    study: Study, published: Published, loaded: dict[str, pd.DataFrame], results: Path, models: Plain
) -> Beside:
    """Collect the inputs for the comparison of a study's models with Phaze's paper."""
    name, scenario = str(models["name"]), Scenario.parse(models["scenario"], "scenario")
    figures = Technology.parse(models["technology"], "technology")
    cluster = Outcome(
        scenario,
        area_limit_um2(models["area_limit"], figures),  # type: ignore[arg-type]
        loaded["architectures"],
        loaded["placements"],
    )
    inputs = Inputs(
        study=study,
        clusters={name: cluster},
        graphs=loaded["graphs"],
        solves=tables.Solves.empty(),
        details=DetailFiles.under(results, name, str(models["estimates"])),
        energy=figures.energy,
        readings=loaded.get("readings", tables.Readings.empty()),
    )
    return Beside(inputs, published, **{table: loaded[table] for table in BESIDE})


if __name__ == "__main__":
    run_script(main, snakemake, logs_params=False)
