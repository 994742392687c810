"""Create a custom study, or show a study's progress: finished and stale jobs, time left."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, cast

import typer

from phaze.base.errors import PhazeError
from phaze.base.provenance import phaze_version
from phaze.base.units import GIB
from phaze.commands import completion, options
from phaze.commands.options import JsonOption
from phaze.commands.output import refuse_outputs, write_or_print

if TYPE_CHECKING:
    from phaze.spec.models import AnyModel
    from phaze.spec.plain import Plain
ROOT = Path(__file__).resolve().parents[2]
"""Folder of the Snakefile."""
MISTAKES = re.compile(r"^WorkflowError in .*:\n((?:(?!  File ).*\n?)+)", re.MULTILINE)
"""Pattern of the lines of an error of the Snakefile, which Snakemake prints between its own remarks."""
REASONS = {
    "missing": "not made yet",
    "updated input files": "an input changed",
    "set of input files changed": "other inputs",
    "params changed": "its settings or its code changed",
    "rule implementation changed": "its script or rule changed",
    "ok": "what it depends on is made again",
}
"""Snakemake's reasons for running a job again, in plain words."""
REFERENCE_CHIPS = ("tpu-v4-as-built", "tpu-v4")
"""Accelerators in every study: TPU v4 as built, and the Phaze paper's model of it, which limits the area."""
WIDTHS = (1, 2, 4, 8)
HBM_GIB = (32.0, 80.0, 192.0, 288.0)
"""HBM sizes of which a study tries two: the smallest with which every model fits, and the next one."""
UNSPLIT_SHARE = 0.5
"""Share of the smallest HBM size up to which a model's states need no tensor parallelism."""
POD = "tpu-v4-pod"
"""System of accelerators that no file in config/systems has."""
TEMPLATE = """\
# yaml-language-server: $schema={schema}
# How would {models} be trained on {accelerators}?
#
{save}# Run it in a checkout of phaze:
#   {run}
# and open results/report/report.html. `.venv/bin/phaze status --configfile {file}` shows the progress.
#
# Keys that are absent here have the values of config/config.yaml, the default study;
# config/reference/study.md explains every key. The first line lets editors complete and check keys.

models: [{models}]

workloads:
  # model: a name in config/models, or a path of a spec or of a Hugging Face config.json.
  # sequence: tokens in a sample. tensor: tensor-parallel widths to try.
{workloads}
architectures:
  grid: null  # to search the 29,360 accelerators of the Phaze paper: {{minimum_area_share: 0.3}}
  # tpu-v4-as-built is the chip as built; tpu-v4 is the Phaze paper's model of it, with an eighth of its
  # vector lanes.
  named: [{named}]

training:
  microbatches: [1, 2, 4, 8]
  hbm_gib: {hbm_gib}  # HBM sizes to try on accelerators whose files give none
  recompute: [false, true]

scenarios:
{scenario}

report:
  strategies: {{models: []}}  # no comparison of search strategies
measured: {{sources: []}}  # no comparison of predictions with measured runs
chips: {{models: []}}  # no choice of a chip to build
"""


@dataclass(frozen=True)
class File:
    """Output file of the study, as listed by `snakemake --summary`."""

    rule: str
    log: str
    """Log of the job that wrote the file; '-' if there is none."""
    reason: str
    """Reason to write the file again; empty if it is up to date."""


@dataclass(frozen=True)
class RuleProgress:
    """Progress of one Snakemake rule: finished and remaining jobs."""

    rule: str
    done: int
    left: int
    """Number of jobs still to run."""
    reasons: tuple[str, ...]
    """Reasons to run the remaining jobs."""
    job_s: float | None
    """Mean measured time of the rule's jobs, in seconds; None if none was measured."""


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """Options of `phaze status`: the study, its folder, and the cores that it has."""

    configfile: Path | None = None
    """Configuration file of the study. Default: the default study."""
    directory: Path = Path()
    """Folder in which the study runs."""
    cores: Annotated[int | None, typer.Option(min=1)] = None
    """Cores for the estimate of the remaining time. Default: all of this machine."""
    as_json: JsonOption = False


@options.takes(StatusOptions)
def status(request: StatusOptions) -> None:
    """Show the progress of a study.

    For each stage: finished jobs, stale jobs with reasons, and the time left. Works while the study runs. The
    time left is estimated from the times of finished jobs.
    """
    stages = study_status(request.directory, request.configfile)
    work_s, shared = seconds_left(stages), request.cores or os.cpu_count() or 1
    if request.as_json:
        rows = [asdict(stage) for stage in stages]
        typer.echo(json.dumps({"stages": rows, "work_left_s": work_s, "cores": shared}, indent=2))
        return
    for stage in stages:
        why = f"   {stage.left} to run: {', '.join(stage.reasons)}" if stage.left else ""
        typer.echo(f"{stage.rule:24} {stage.done:5} of {stage.done + stage.left:5} done{why}")
    typer.echo(_summary(stages, work_s, shared))


def _summary(stages: list[RuleProgress], left_s: float | None, cores: int) -> str:
    jobs = sum(stage.left for stage in stages)
    if not jobs:
        return "complete: no jobs left"
    if left_s is None:
        return f"{jobs} jobs left; no finished job yet to estimate their time from"
    return f"{jobs} jobs left: {in_words(left_s)} of work, about {in_words(left_s / cores)} on {cores} cores"


def in_words(seconds: float) -> str:
    """Format a duration."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def study_status(folder: Path, configfile: Path | None) -> list[RuleProgress]:
    """Progress of every rule of a study that runs in a folder, in workflow order.

    Raises PhazeError with Snakemake's message if the study cannot be planned.
    """
    from phaze.spec.config import check_config_files

    if not (ROOT / "Snakefile").is_file():
        raise PhazeError(
            "status: phaze is installed without its workflow",
            "run .venv/bin/phaze status in a checkout, after `make setup`",
        )
    check_config_files([] if configfile is None else [configfile])
    files = read_summary(_snakemake(folder, configfile, "--summary"))
    jobs_left = read_counts(_snakemake(folder, configfile, "--dry-run", "--quiet", "rules"))
    return stages_of(files, jobs_left, folder)


def _snakemake(folder: Path, configfile: Path | None, *arguments: str) -> str:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), *arguments]
    if configfile is not None:
        command += ["--configfile", str(configfile)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # Snakemake names the file by its resolved path; the user knows the path as given.
        message = done.stderr.replace(f"{configfile and configfile.resolve()}", f"{configfile}")
        mistakes = MISTAKES.search(message)
        raise PhazeError(mistakes[1].strip() if mistakes else f"cannot plan the study:\n{message.strip()}")
    # The job statistics of a dry run may be on either stream.
    return done.stdout + done.stderr if "--dry-run" in arguments else done.stdout


def read_summary(text: str) -> list[File]:
    """Parse the files listed by `snakemake --summary`."""
    return [
        File(
            row["rule"],
            row["log-file(s)"],
            "" if row["plan"] == "no update" else REASONS.get(row["status"], row["status"]),
        )
        for row in csv.DictReader(text.splitlines(), delimiter="\t")
    ]


def read_counts(text: str) -> dict[str, int]:
    """Parse the number of jobs per rule from a dry run; empty if no job is left."""
    _, _, table = text.partition("Job stats:\n")
    lines = (line.split() for line in table.partition("\n\n")[0].splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def stages_of(files: list[File], jobs_left: dict[str, int], folder: Path) -> list[RuleProgress]:
    """Finished and remaining jobs of every rule, in workflow order."""
    order = {rule: i for i, rule in enumerate(_rules())}
    rules = sorted({file.rule for file in files}, key=lambda rule: (order.get(rule, len(order)), rule))
    groups = {rule: [file for file in files if file.rule == rule] for rule in rules}
    return [_stage(group, jobs_left.get(rule, 0), folder) for rule, group in groups.items()]


def _rules() -> list[str]:
    snakefile = (ROOT / "Snakefile").read_text(encoding="utf-8")
    included = re.findall(r'^include: "(.+)"$', snakefile, re.MULTILINE)
    texts = ((ROOT / path).read_text(encoding="utf-8") for path in included)
    return [rule for text in texts for rule in re.findall(r"^rule (\w+):$", text, re.MULTILINE)]


def _stage(files: list[File], jobs_left: int, folder: Path) -> RuleProgress:
    from phaze.base.job import benchmark_of

    stale = {file.log for file in files if file.reason}
    # Files of one job share its log, so logs count jobs.
    jobs = {file.log: benchmark_of(folder / file.log) for file in files}
    measured = [seconds for path in jobs.values() if (seconds := _seconds(path)) is not None]
    return RuleProgress(
        rule=files[0].rule,
        done=len(jobs.keys() - stale),
        left=jobs_left,
        reasons=tuple(reason for reason in REASONS.values() if any(file.reason == reason for file in files)),
        job_s=mean(measured) if measured else None,
    )


def _seconds(benchmark: Path) -> float | None:
    """Time of a job as it recorded it, in seconds; None if it was not recorded."""
    try:
        with benchmark.open(encoding="utf-8") as file:
            return float(next(csv.DictReader(file, delimiter="\t"))["s"])
    except (OSError, ValueError, KeyError, StopIteration):
        return None


def seconds_left(stages: list[RuleProgress]) -> float | None:
    """Estimated work left, in seconds; rules that never ran get the mean job time. None if no job ran."""
    measured_s = [stage.job_s for stage in stages if stage.job_s is not None]
    if not measured_s:
        return None
    return sum(stage.left * (mean(measured_s) if stage.job_s is None else stage.job_s) for stage in stages)


@dataclass(frozen=True, kw_only=True)
class NewStudyOptions:
    """Options of `phaze new-study`: models, accelerators, batch, and the file to write."""

    model: Annotated[list[str], typer.Option("--model", "-m", autocompletion=completion.models)]
    """Model: a name in config/models, or the path of a spec or of a Hugging Face config.json; several are
    separated by commas."""
    architecture: Annotated[
        list[str] | None, typer.Option("--architecture", "-a", autocompletion=completion.chips)
    ] = None
    """Accelerator: a name in config/architectures or config/devices, or a path; several are separated by
    commas. The first one's system is the cluster. TPU v4 is always compared."""
    sequence: options.SequenceOption = None
    global_batch: Annotated[
        int, typer.Option("--global-batch", "--gbs", parser=options.count, metavar="N")
    ] = 4096
    """Samples in a global batch."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the study (.yaml)."""


@options.takes(NewStudyOptions)
def new_study(request: NewStudyOptions) -> None:
    """Write a study of some models on some accelerators.

    The file runs with `snakemake --configfile` and explains its keys.
    """
    out = request.out
    models = [str(options.known_model(name)) for name in _names(request.model)]
    chips = [options.known_chip(name) for name in _names(request.architecture or ())]
    refuse_outputs(out, reads=[*models, *chips])
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise PhazeError(f"new-study: -o {out}: must end in .yaml")
    if out is not None and out.exists():
        raise PhazeError(f"{out}: exists, and may have been edited", "name another file, or remove it")
    text = _text(models, chips, request.sequence, request.global_batch, out)
    _check(text, out)
    write_or_print(text, out)
    if out is not None:
        accelerators = ", ".join(dict.fromkeys((*chips, *REFERENCE_CHIPS)))
        run = _run_command(out)
        typer.echo(f"{out}: a study of {', '.join(models)} on {accelerators}; run it with\n  {run}")


def _names(texts: Sequence[str]) -> list[str]:
    """Distinct names of an option that can be repeated, each a list separated by commas."""
    return [*dict.fromkeys(name.strip() for text in texts for name in text.split(","))]


def _run_command(file: Path | str) -> str:
    """Command that runs a study, in a checkout or with an installed package, which has no workflow."""
    run = f"snakemake --cores 4 --configfile {file}"
    if (ROOT / "Snakefile").is_file():
        return f".venv/bin/{run}"
    return f"{run} --snakefile CHECKOUT/Snakefile  # CHECKOUT: a checkout of phaze {phaze_version()}"


def _text(
    models: Sequence[str], chips: Sequence[str], sequence: int | None, batch: int, out: Path | None
) -> str:
    """Study as YAML; PhazeError for a model that no study can place."""
    from phaze.spec.files import FOLDER
    from phaze.spec.models import load_model_named

    loaded = {name: load_model_named(name) for name in models}
    needs = [_needs(model, sequence) for model in loaded.values()]
    workloads = "".join(
        f"  {model.name}: {{model: {source}, sequence: {need.sequence}, tensor: {list(need.widths)}}}\n"
        for (source, model), need in zip(loaded.items(), needs, strict=True)
    )
    # Sizes are shared by all workloads, so the largest need decides.
    first = max(HBM_GIB.index(need.hbm_gib) for need in needs)
    return TEMPLATE.format(
        schema=os.path.relpath(FOLDER / "schema.json", Path() if out is None else out.parent),
        models=", ".join(model.name for model in loaded.values()),
        accelerators=" and ".join(chips or REFERENCE_CHIPS[:1]),
        file=out or "my.yaml",
        run=_run_command(out or "my.yaml"),
        save="" if out else "# Save this as my.yaml.\n",
        workloads=workloads,
        hbm_gib=[int(size) for size in HBM_GIB[first : first + 2]],
        named=", ".join(dict.fromkeys((*chips, *REFERENCE_CHIPS))),
        scenario=_scenario(chips, batch),
    )


@dataclass(frozen=True)
class Needs:
    """Tokens of a sample, tensor-parallel widths and HBM size with which a study can place a model."""

    sequence: int
    widths: tuple[int, ...]
    hbm_gib: float


def _needs(model: AnyModel, sequence: int | None) -> Needs:
    """Widths and the smallest of `HBM_GIB` with which a model fits, or the largest one."""
    from phaze.cost.memory import parameter_bytes
    from phaze.formulas.flushing import Setting
    from phaze.formulas.phaze.chains import Runs, read_runs
    from phaze.formulas.phaze.flush import Placement, place_chain
    from phaze.layout import Layout, layouts_of
    from phaze.search.cosearch import extract_subject
    from phaze.spec.settings import ExtractSettings, Training
    from phaze.spec.system import Scenario

    model.check_chain("new-study")
    tokens = model.usual_sequence if sequence is None else sequence
    model.check_sequence(tokens, "new-study")
    training = Training(optimizer="adam", precision="mixed")
    bytes_per_parameter = parameter_bytes(training.optimizer, training.precision)

    def runs_of(width: int) -> Runs:
        (point,) = extract_subject(model, tokens, layouts_of((width,), (1,)), ExtractSettings()).points
        return read_runs(point.tables["layers"], point.graph, bytes_per_parameter)[0]

    runs = {1: runs_of(1)}
    # Small models fit without tensor parallelism, whose layouts would only lengthen the study.
    if runs[1].static_bytes @ runs[1].totals > UNSPLIT_SHARE * HBM_GIB[0] * GIB:
        runs |= {width: runs_of(width) for width in WIDTHS[1:] if model.divides(width)}
    for hbm_gib in HBM_GIB:
        for width, chain in runs.items():
            layout = Layout(tp=width)
            setting = Setting.of(Scenario(), training, layout, hbm_gib, recompute=True)
            # Whether it fits depends on bytes only, so no time needs to be estimated.
            if isinstance(place_chain(chain.untimed(), layout, setting), Placement):
                return Needs(tokens, tuple(runs), hbm_gib)
    return Needs(tokens, tuple(runs), HBM_GIB[-1])


def _scenario(chips: Sequence[str], batch: int) -> str:
    """Scenario as YAML: the system of the first accelerator that one in config/systems has, or a TPU v4 pod.

    Named accelerators run at their own clock and HBM bandwidth; those of the pod are for architectures.
    """
    from phaze.spec.systems import flat_scenario, load_cluster, load_device_as_architecture, system_of_device

    devices = (load_device_as_architecture(chip) for chip in chips if chip not in REFERENCE_CHIPS)
    named = (system_of_device(device.name) for device in devices if device is not None)
    system = next(filter(None, named), POD)
    if system == POD:
        return f"  {POD}: {{system: {POD}, global_batch: {batch}}}"
    cluster, pod = load_cluster(system)[0], flat_scenario(POD)
    return (
        f"  {POD}: null  # that of the default study\n"
        f"  {system}:\n"
        f"    system: {system}\n"
        f"    devices: {min(pod.devices, cluster.devices)}\n"
        "    # Between any two devices: a study has a flat network.\n"
        f"    network_bandwidth_bytes_per_s: {cluster.levels[-1].bandwidth_bytes_per_s:.4e}\n"
        "    # Of architectures whose files give none.\n"
        f"    clock_hz: {pod.clock_hz:.4e}\n"
        f"    hbm_bandwidth_bytes_per_s: {pod.hbm_bandwidth_bytes_per_s:.4e}\n"
        f"    global_batch: {batch}"
    )


def _check(text: str, out: Path | None) -> None:
    """Raise PhazeError if the study cannot be run."""
    from phaze.spec.config import load_settings
    from phaze.spec.files import FOLDER
    from phaze.spec.plain import read_yaml
    from phaze.spec.strict_yaml import load

    merged = _merged(read_yaml(FOLDER / "config.yaml"), cast("Plain", load(text)))
    assert isinstance(merged, dict)
    load_settings(dict(merged), folder=FOLDER, source=str(out or "study"))


def _merged(base: Plain, override: Plain) -> Plain:
    """Merge two configurations as Snakemake does: mappings key by key, while other values are replaced."""
    if not isinstance(base, dict) or not isinstance(override, dict):
        return override
    return {**base, **{key: _merged(base.get(key), value) for key, value in override.items()}}
