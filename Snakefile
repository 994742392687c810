"""phaze: from model specifications to the accelerator to build and the placement to train with."""

import sys
from pathlib import Path

from snakemake.utils import min_version, update_config

HOME = Path(workflow.current_basedir.get_path_or_uri(secret_free=True))
"""Folder of this file, also where another workflow uses it as a module."""
sys.path.insert(0, str(HOME))

from phaze.layout import KEY_PATTERN, LAYER_AXES, Layout
from phaze.spec.config import check_config_files, load_settings
from phaze.spec.files import FOLDER, read_mapping
from phaze.base.errors import PhazeError
from phaze.base.fork_server import fork_jobs
from phaze.base.job import let_jobs_import, split_params
from phaze.base.occupancy import begin_run, cancel_timers, clear_dead_lock, keep_study
from phaze.base.provenance import source_digest
from phaze.spec.measured import PublishedRuns
from phaze.spec.chip_study import search_name
from phaze.spec.systems import STACKS, chip_path, load_stack

min_version("9.12")
let_jobs_import(HOME)
CONFIG = HOME / "config" if HOME.is_dir() else FOLDER
"""Folder of models, systems and devices: the installed one if Snakemake fetches the workflow from a repository."""

try:
    if workflow.is_main_process:
        check_config_files([CONFIG / "config.yaml"])
except PhazeError as error:
    raise WorkflowError(str(error)) from None


DEFAULTS = workflow.source_path("config/config.yaml")


configfile: DEFAULTS


try:
    # A module with a configuration of its own: defaults complete it, and its keys keep their order.
    if DEFAULTS not in workflow.configfiles:
        given, config = config, {}
        for part in (given, read_mapping(CONFIG / "config.yaml"), given):
            update_config(config, part)
    source = ", ".join(map(str, check_config_files(workflow.configfiles))) or "config/config.yaml"
    settings = load_settings(config, folder=CONFIG, source=source)
    keep_study(repr(settings), begins=workflow.is_main_process, source=source)
    if workflow.is_main_process and clear_dead_lock():
        logger.warning("the last run in this folder was killed: its lock is removed")
except PhazeError as error:
    raise WorkflowError(str(error)) from None

study = settings.study.model_dump(mode="json")


report: "rules/captions/workflow.rst"


pathvars:
    logs="<results>/logs",


wildcard_constraints:
    scenario="|".join(map(re.escape, settings.scenarios)),
    model="|".join(map(re.escape, settings.study.workloads)),
    layout=KEY_PATTERN,
    shard="|".join(map(re.escape, {*settings.shards, *settings.front_shards})) or "none",
    input="|".join(map(re.escape, settings.study.plans.inputs)) or "none",
    tiled="|".join(map(re.escape, settings.study.tiled.cases)) or "none",
    case="|".join(map(re.escape, settings.study.plans.cases)) or "none",
    point="[a-z0-9.-]+",
    graph="|".join(map(re.escape, settings.study.maps.graphs)) or "none",
    topology="|".join(map(re.escape, settings.study.maps.topologies)) or "none",
    stages="[a-z0-9.-]+",
    question="|".join(map(re.escape, settings.study.layouts.points)) or "none",
    search="|".join(map(re.escape, settings.study.chips.points)) or "none",
    network="|".join(map(re.escape, settings.study.chips.scenarios)) or "none",
    chip="[a-z0-9][a-z0-9.-]*",


onstart:
    if workflow.is_main_process:
        try:
            begin_run(Path(workflow.pathvars.apply("<results>")))
            if reason := fork_jobs(Path(".snakemake")):
                logger.info(f"jobs start one by one, not as forks of a server: {reason}")
        except PhazeError as error:
            raise WorkflowError(str(error)) from None


onsuccess:
    cancel_timers()


onerror:
    cancel_timers()


include: "rules/paths.smk"
include: "rules/extract.smk"
include: "rules/estimate.smk"
include: "rules/screen.smk"
include: "rules/schedule.smk"
include: "rules/place.smk"
include: "rules/certify.smk"
include: "rules/read.smk"
include: "rules/simulate.smk"
include: "rules/cases.smk"
include: "rules/tiled.smk"
include: "rules/maps.smk"
include: "rules/measured.smk"
include: "rules/layouts.smk"
include: "rules/chips.smk"
include: "rules/report.smk"
include: "rules/papers.smk"


rule all:
    """Run the whole study: its report pages, with the checks of the results."""
    default_target: True
    input:
        PAGES,
        CHECKS,
