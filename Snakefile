"""phaze: from model specs to the accelerator to build and the placement to train with."""

import os
import sys
from pathlib import Path

from snakemake.utils import min_version

# Jobs import phaze from here, also inside a conda environment, which holds only its dependencies.
sys.path.insert(0, str(workflow.basedir))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(workflow.basedir), os.environ.get("PYTHONPATH")]))

from phaze.config import load_settings
from phaze.errors import PhazeError
from phaze.provenance import source_digest

min_version("9.12")


configfile: workflow.source_path("config/config.yaml")


try:
    settings = load_settings(
        config,
        folder=Path(workflow.basedir) / "config",
        source=", ".join(str(path) for path in workflow.configfiles),
    )
except PhazeError as error:
    raise WorkflowError(str(error)) from None

study = settings.study.model_dump(mode="json")


pathvars:
    logs="<results>/logs",
    benchmarks="<results>/benchmarks",


wildcard_constraints:
    scenario="|".join(map(re.escape, settings.scenarios)),
    model="|".join(map(re.escape, settings.study.workloads)),
    tensor=r"\d+",
    microbatch=r"\d+",
    shard="small-buffer|large-buffer|named",


include: "rules/paths.smk"
include: "rules/extract.smk"
include: "rules/estimate.smk"
include: "rules/screen.smk"
include: "rules/schedule.smk"
include: "rules/place.smk"
include: "rules/report.smk"


rule all:
    """Run the whole study: the report, the checks of the results, and the resolved study."""
    default_target: True
    input:
        "<results>/report/report.html",
        "<results>/report/checks.parquet",
