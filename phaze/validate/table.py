"""Predict the runs of a table, and compare them with measured times.

One constant can be fitted to measured times: the sustained fraction of the HBM bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.files import atomic_path
from phaze.base.units import GIB
from phaze.plan.answer.priced import peak_of
from phaze.plan.machines import device_of, grown, load_machine, proven, unfitted
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import COMMUNICATION, Price, price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.plan.terms.memory import InUse, capacity_bytes, status_of
from phaze.runtimes.layout_string import written
from phaze.spec.files import FOLDER
from phaze.spec.memory import MemoryKind
from phaze.spec.recipes import recipe_of
from phaze.spec.systems import load_stack
from phaze.validate.intervals import INTERVAL, UNMEASURED, with_intervals
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.run_kinds import KEYS, PROPERTIES, RunKind

if TYPE_CHECKING:
    import pandas as pd

CHOSEN = ("microbatch_used", "chunks_used", "slowest_s")
"""Columns of the values chosen for a row's unspecified fields, and of the time with the worst choice."""
DIVIDED = "pipeline_layout_used"
"""Column of the layers per stage if a row has no layout and blocks do not divide evenly; else dropped."""
STACK = "stack_used"
"""Column of a row's software stack, by default its system's."""
KIND = "memory_kind_used"
"""Column of a row's kind of memory: given in the row, or the kind that its stack reports."""
PRUDENT = "prudent_s"
"""Column of the conservative time, with no more than the proven overlap; present if requested."""
SHARES = (0.3, 1.0)
"""Minimum and maximum fraction of the HBM bandwidth that a fit tries."""
STEP = 0.01


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Predicted and measured times (R,) of at least one run, with their errors."""

    predicted_s: Floats
    measured_s: Floats

    @cached_property
    def errors(self) -> Floats:
        """Signed errors (R,) as fractions of the measured times; positive if predicted too slow."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def mean_error(self) -> float:
        """Mean of the absolute errors."""
        return float(np.abs(self.errors).mean())

    def __str__(self) -> str:
        ranks, absolute = rank_correlation(self.predicted_s, self.measured_s), np.abs(self.errors)
        return (
            f"{len(absolute)} measured rows: mean absolute error {100 * self.mean_error:.1f} %, worst "
            f"{100 * absolute.max():.1f} %, bias {100 * self.errors.mean():+.1f} %, within 15 % "
            f"{100 * (absolute <= 0.15).mean():.0f} %"
        ) + ("" if np.isnan(ranks) else f", rank correlation {ranks:.3f}")


@dataclass(frozen=True)
class Prediction:
    """Predicted time and utilisation of a run, and the highest memory of any device."""

    time_s: float
    """Seconds per batch."""
    memory_gib: float
    """Predicted memory, of the kind that the row measures."""
    memory_low_gib: float
    """Lower end of the range of `memory_gib`."""
    memory_high_gib: float
    """Upper end of the range of `memory_gib`."""
    device_gib: float
    """Total memory in use on the device."""
    device_low_gib: float
    """Lower end of the range of `device_gib`, a proven minimum."""
    device_high_gib: float
    """Upper end of the range of `device_gib`, with the upper constant of each uncertain part."""
    weights_gib: float
    """Weights and their gradients."""
    optimizer_gib: float
    activation_gib: float
    """Activations in flight, temporary memory of the current microbatch, and framework overhead."""
    recompute_gib: float
    """Part of `activation_gib` that belongs to the microbatch being processed.

    It consists of recomputed activations, keys and values of the whole sequence, gradients of activations,
    and gathered weights.
    """
    fragments_gib: float
    """Expected allocator fragmentation. This field and those below are expected values."""
    workspaces_gib: float
    """Workspaces of the GEMM library."""
    graphs_gib: float
    """Private pool of CUDA graphs."""
    collectives_gib: float
    """NCCL's buffers."""
    context_gib: float
    """CUDA context."""
    model_flops_per_gpu: float
    """Model FLOP/s per device, without recomputation."""
    bubble_share: float
    """Fraction of device time spent waiting for other pipeline stages."""
    exposed_communication_share: float
    """Fraction of device time spent in exposed communication."""
    bound_by: str
    """Bottleneck with the largest share of the device time, and its percentage."""


ADDED = (
    "time_s", PRUDENT, *(field.name for field in fields(Prediction)[1:]), *INTERVAL, UNMEASURED, *CHOSEN,
    DIVIDED, STACK, KIND, "status",
)  # fmt: skip
"""Columns that predictions add to a table."""


def predict(run: Run, machine: Machine, kind: MemoryKind | None = None) -> Prediction:
    """Predict the time, memory and bottleneck of a run; PhazeError if the run is invalid.

    Memory is of the given kind, by default the kind that the stack reports.
    """
    estimate = _priced(run, machine)
    memory, shares = estimate.memory, estimate.shares
    most = max(shares, key=lambda name: shares[name])
    return Prediction(
        time_s=estimate.time_s,
        **_ranges(memory.in_use, kind or machine.stack.reports),
        weights_gib=memory.weight_bytes / GIB,
        optimizer_gib=memory.optimizer_bytes / GIB,
        activation_gib=memory.activation_bytes / GIB,
        recompute_gib=memory.recompute_bytes / GIB,
        model_flops_per_gpu=run.model_flops / estimate.time_s / run.gpus,
        bubble_share=shares["pipeline bubble"],
        exposed_communication_share=sum(shares[name] for name in COMMUNICATION),
        bound_by=f"{most} ({100 * shares[most]:.0f} %)",
    )


def _priced(run: Run, machine: Machine) -> Price:
    """Price of a run on a machine with the run's number of devices."""
    # Tables may have runs on more devices than the system's file describes.
    machine = grown(machine, run.gpus).of_size(run.gpus)
    return price(plan_of_run(run, machine), machine)


def _ranges(in_use: InUse, kind: MemoryKind) -> dict[str, float]:
    """Predicted memory and the ends of its range, in GiB, by field of `Prediction`."""
    fields: dict[str, float] = {}
    for name, memory_kind in (("memory", kind), ("device", "device")):
        low, expected, high = in_use.of(memory_kind).gib
        fields |= {f"{name}_gib": expected, f"{name}_low_gib": low, f"{name}_high_gib": high}
    return fields | {f"{part}_gib": nbytes / GIB for part, nbytes in in_use.beside.items()}


def rank_correlation(values: Floats, other: Floats) -> float:
    """Spearman's rank correlation; tied values get their mean rank."""
    import pandas as pd

    # Pearson's correlation of the centred ranks, which is Spearman's also with ties.
    ranks = (pd.Series(column).rank().to_numpy() for column in (values, other))
    a, b = (of_values - (len(values) + 1) / 2 for of_values in ranks)
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else float("nan")


def predict_table(path: Path, machine: Machine | None) -> tuple[pd.DataFrame, Accuracy | None]:
    """Add predictions to a table of runs; also return the accuracy if `measured_s` is given.

    The status of an invalid row gives the reason, and the other rows are still predicted. Raises PhazeError
    if the file is not a table of runs.
    """
    import pandas as pd

    table, rows = read_rows(path)
    clash = [name for name in ADDED if name in table.columns]
    if clash:
        raise PhazeError(
            f"{path}: columns {', '.join(clash)} are reserved for predictions; rename or remove them"
        )
    predictions = with_intervals(predict_rows(rows, machine, prudent=True)).rename(columns={"stack": STACK})[
        list(ADDED)
    ]
    if not predictions[DIVIDED].astype(object).fillna("").any():
        predictions = predictions.drop(columns=DIVIDED)
    out = pd.concat([table, predictions], axis=1)
    measured, predicted = measured_of(rows, "measured_s"), out["time_s"].to_numpy(float)
    both = np.isfinite(measured) & np.isfinite(predicted)
    return out, Accuracy(predicted[both], measured[both]) if both.any() else None


def predict_rows(
    rows: Sequence[RunRow], machine: Machine | None, folder: Path = FOLDER, *, prudent: bool = False
) -> pd.DataFrame:
    """Predict rows, without intervals, and add the columns that determine which runs are similar.

    `machine` is used for rows that name no system. Prudent times need a second pricing and are NaN unless
    requested.
    """
    import pandas as pd

    machines = cache(partial(_machine_of, machine, folder))
    predictions = [_predict(row, machines, prudent=prudent) for row in rows]
    columns = [*(name for name in ADDED if name not in (*INTERVAL, UNMEASURED, STACK)), *PROPERTIES]
    kinds: dict[str, Literal["Int64", "float", "object"]] = dict.fromkeys((DIVIDED, KIND, *KEYS), "object")
    kinds |= {"mfu": "float", PRUDENT: "float"}
    kinds |= dict.fromkeys(CHOSEN[:2], "Int64")
    fits = pd.Series([row.get("calibrated") for row in predictions], dtype="object")
    return pd.DataFrame(predictions, columns=columns).astype(kinds).assign(calibrated=fits)


def settled(rows: Iterable[RunRow], predicted: pd.DataFrame) -> Iterator[RunRow]:
    """Yield the rows with unspecified microbatch sizes and chunk counts replaced by the chosen values."""
    used = predicted[list(CHOSEN[:2])].to_numpy()
    for row, chosen in zip(rows, used, strict=True):
        yield _with_choice(row, *chosen)


def settled_row(row: RunRow, machine: Machine) -> RunRow:
    """Row with its unspecified microbatch size and chunk count replaced by the fastest that fit."""
    predicted = _predict(row, lambda *_: machine, prudent=False)
    return _with_choice(row, *(predicted.get(name) for name in CHOSEN[:2]))


def _with_choice(row: RunRow, microbatch: object, chunks: object) -> RunRow:
    runs = tuple(run for run in row.runs if (run.layout.microbatch, run.layout.vp) == (microbatch, chunks))
    return replace(row, runs=runs)


def write_table(table: pd.DataFrame, out: Path) -> None:
    """Write a table as CSV, atomically."""
    with atomic_path(out) as temporary:
        table.to_csv(temporary, index=False)


def _machine_of(default: Machine | None, folder: Path, system: str, stack: str) -> Machine:
    """Machine for the system and software stack named in a row; by default the given machine."""
    if system:
        return load_machine(system, folder, stack or None)
    if default is None:
        raise PhazeError("system must be given, in the row or with --system")
    if stack in ("", default.stack.name):  # has constants fitted to the system, unlike its file
        return default
    cluster = default.system and unfitted(default.system)
    return replace(default, stack=load_stack(stack, folder), system=cluster)


def _with_recipe(machine: Machine, row: RunRow) -> tuple[Machine, RunRow, str]:
    """Machine whose stack has the recipe settings of the release that a row names, and a note on the recipe.

    The overlap of the row is added to that of the recipe; `none` leaves none. Without a recipe the stack is
    as it is.
    """
    if not row.release:
        return machine, row, ""
    run = row.runs[0]
    if run.spec is None:
        raise PhazeError("release: needs model, as recipes exist for named models only")
    device, stack = device_of(machine).name, machine.stack
    recipe = recipe_of(stack.name, row.release, run.spec, device, run.layout.compute, run.gpus)
    if recipe is None:
        return machine, row, f"; no recipe for this model, device and precision: stack {stack.name} as it is"
    stack = recipe.applied(stack)
    if run.overlap:
        stack = stack.model_copy(update={"overlap": tuple(dict.fromkeys((*stack.overlap, *run.overlap)))})
        row = replace(row, runs=tuple(replace(run, overlap=None) for run in row.runs))
    return replace(machine, stack=stack), row, f"; recipe of {recipe.release} for {recipe.gpus} devices"


def _predict(row: RunRow, machine_of: Callable[[str, str], Machine], *, prudent: bool) -> dict[str, object]:
    """Predicted columns of a row, for the fastest choice of its unspecified fields that fits."""
    if not row.runs:
        return {"status": f"invalid: {row.problem}"}
    try:
        machine, row, recipe_note = _with_recipe(machine_of(row.system, row.stack), row)
        kind = cast(MemoryKind, row.memory_kind or machine.stack.reports)
        predictions = _predict_choices(row.runs, machine, kind)
    except PhazeError as error:
        return {"status": f"invalid: {error}"}
    device = device_of(machine)
    limit = capacity_bytes(device) / GIB
    # Least excess over the memory first, then the time: without a choice that fits, the nearest is shown.
    run, best = min(predictions, key=lambda pair: (max(pair[1].device_gib - limit, 0.0), pair[1].time_s))
    slowest_s = max(other.time_s for _, other in predictions)
    chosen = dict(zip(CHOSEN, (run.layout.microbatch, run.layout.vp, slowest_s), strict=True))
    split, years = run.split_by(machine.stack), machine.stack.years_outside(row.date)
    divided = {DIVIDED: "" if run.division or (split is run and run.even) else written(split.stages)}
    mfu = best.model_flops_per_gpu / peak_of(machine, run.layout.compute)
    return {
        **asdict(best),
        **({PRUDENT: _prudent_s(run, machine, best.time_s)} if prudent else {}),
        **chosen,
        **divided,
        KIND: kind,
        "status": status_of(best.device_low_gib, best.device_high_gib, device)
        + _flash_note(run, machine)
        + recipe_note
        + _age_note(row, machine),
        **vars(replace(RunKind.of(machine, run.layout, run.schedule, run.model, mfu), years=years)),
    }


def _prudent_s(run: Run, machine: Machine, time_s: float) -> float:
    """Conservative time of a run, with proven overlap only, in seconds; `time_s` is its expected time."""
    layout = run.layout
    ranks = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep, "pp": layout.pp, "dp": layout.dp * layout.cp}
    if all(ranks[kind] == 1 for kind in run.stack_of(machine).unproven):
        return time_s
    return _priced(run, proven(machine)).time_s


def _predict_choices(
    runs: tuple[Run, ...], machine: Machine, kind: MemoryKind
) -> list[tuple[Run, Prediction]]:
    """Predict the valid choices of a row; the PhazeError of the first choice if none is valid."""
    predictions, errors = [], []
    for run in runs:
        try:
            predictions.append((run, predict(run, machine, kind)))
        except PhazeError as error:
            errors.append(error)
    if not predictions:
        raise errors[0]
    return predictions


def _flash_note(run: Run, machine: Machine) -> str:
    """Note that flash attention is assumed; empty if it is not."""
    assumed = run.flash_attention is None and run.flash_on(machine)
    why = "a model is named" if run.spec else f"the stack {machine.stack.name} has it"
    return f"; flash_attention true because {why}" if assumed else ""


def _age_note(row: RunRow, machine: Machine) -> str:
    """Note that a row's software is of another date than its stack; empty if it is not."""
    if not machine.stack.years_outside(row.date):
        return ""
    first, last = machine.stack.dates or ("", "")
    return f"; stack {machine.stack.name} describes software of {first} to {last}, not of {row.date}"


def measured_of(rows: Iterable[RunRow], name: str) -> Floats:
    """Values of a measured column, (R,); NaN for rows without a value."""
    return np.array([np.nan if getattr(row, name) is None else getattr(row, name) for row in rows], float)


def with_sustained_hbm(machine: Machine, share: float) -> Machine:
    """Machine whose kernels reach the given fraction of the HBM bandwidth."""
    return machine.with_device(device_of(machine).model_copy(update={"sustained_hbm": share}))


def log_errors(rows: Sequence[RunRow], machine: Machine) -> Floats:
    """Logarithms of predicted over measured times of rows, (R,); every row needs `measured_s`."""
    predicted = predict_rows(rows, machine)["time_s"].to_numpy(float)
    return np.log(predicted / np.array([row.measured_s for row in rows], np.float64))


def fitted_sustained_hbm(rows: Sequence[RunRow], machine: Machine) -> float:
    """Fraction of the HBM bandwidth that minimises the squared `log_errors`, to a hundredth."""
    from scipy.optimize import minimize_scalar

    fit = minimize_scalar(
        lambda share: float(np.square(log_errors(rows, with_sustained_hbm(machine, share))).sum()),
        bounds=SHARES,
        method="bounded",
        options={"xatol": STEP / 2},
    )
    return round(float(fit.x) / STEP) * STEP
