"""Parts of a microbatch on a chip: by the tables of a study of accelerators, and by the price of a plan.

`python -m tests.chip_parts` prints the ratios of the price's parts to the study's, for a static schedule and,
with `--kernels`, for one kernel after the other. `--measured` prints the errors of products and attention
against measured kernels instead; with `--serial`, vector cores start after the products of attention.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import cast

import numpy as np
import pandas as pd

from phaze.base.store import Store
from phaze.cost.designs import operator_latencies
from phaze.cost.kernels import KernelTimes, kernels_of, times_on, works_of_kernels
from phaze.cost.mapper.loads import Hardware
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Flat, Kind
from phaze.cost.operators import estimate_operators
from phaze.cost.space import describe_named
from phaze.layout import Axis, Layout
from phaze.plan.layers.costs import operator_times
from phaze.plan.layers.kernels import fused_attention
from phaze.plan.layers.scheduled import LayerSchedules
from phaze.plan.machines import device_of, machine_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import Lowering, ModelTraining
from phaze.schedule.stage import schedule_layers
from phaze.spec.architecture import load_technology
from phaze.spec.config import load_architecture
from phaze.spec.files import FOLDER
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.spec.settings import EstimateSettings, ExtractSettings, ScheduleSettings
from phaze.spec.system import Stack
from phaze.spec.systems import load_cluster, load_stack, sized
from phaze.spec.training_plan import StoredMachine
from phaze.workload.models import chip_workload, extract_workload
from phaze.workload.operators import Operator, Part
from phaze.workload.workload import DIRECTIONS, Direction, Layer

SEQUENCE = 4096
CHIPS = ("tpu-v4", "h100-80gb")
"""Architectures: the one of the Phaze paper, and the template of an H100."""
DENSE, EXPERTS = ("llama-3.1-8b", "llama-3.1-70b"), ("qwen3-30b-a3b", "mixtral-8x7b")
MEASURED = {"h100-80gb": "H100-SXM", "a100-80gb": "A100-SXM4-80GB"}
"""Device of the table of measured products, by chip."""
KERNELS, LARGE_FLOPS = FOLDER / "measured" / "kernels", 5e9
ON_CHIP = ExtractSettings.model_validate({"scores": "on-chip"})


@dataclass(frozen=True)
class Parts:
    """Seconds of a microbatch by part, over both passes of all layers, and bytes."""

    products: float
    attention: float
    vector: float
    collectives: float
    layers: float
    """Makespans of all layers, including collectives."""
    memory: float
    """Bytes of the model state and of the stored activations of one microbatch."""

    def over(self, other: Parts) -> dict[str, float]:
        """Ratio of each part to that of other parts; 1 where both are 0."""
        pairs = {
            field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)
        }
        return {name: 1.0 if first == second else first / second for name, (first, second) in pairs.items()}


def layouts_for(name: str) -> list[Layout]:
    """Twenty layouts of a rank of the model, with every axis that runs inside a layer."""
    pairs = [(tp, b) for tp in (1, 2, 4, 8) for b in (1, 2)]
    layouts = [Layout(tp=tp, microbatch=b, sequence_parallel=tp > 1) for tp, b in pairs]
    contexts = [(1, 2, "all_gather"), (2, 2, "a2a"), (4, 2, "all_gather"), (2, 4, "all_gather")]
    layouts += [Layout(tp=t, cp=c, cp_kind=k, sequence_parallel=t > 1) for t, c, k in contexts]
    if name in DENSE:
        return layouts + [Layout(tp=tp, microbatch=b) for tp in (2, 4, 8) for b in (1, 2)] + [
            Layout(microbatch=4), Layout(tp=4, microbatch=4, sequence_parallel=True)
        ]  # fmt: skip
    widths = [(tp, ep) for tp in (1, 2, 4) for ep in (2, 4)] + [(1, 8), (2, 8)]
    return layouts + [Layout(tp=t, ep=e, dp=e, sequence_parallel=t > 1) for t, e in widths]


def stored_chips(name: str, stack: str = "chip") -> StoredMachine:
    """Chips of an architecture on the network of a TPU v4 pod, as a plan stores them."""
    cluster, device = load_cluster("tpu-v4")
    software = Stack() if stack == "none" else load_stack(stack)
    stored = StoredMachine(cluster=cluster, device=device, stack=software)
    return stored.on_architecture(load_architecture(name), software)


def chip_machine(name: str, stack: str = "chip") -> Machine:
    """64 chips of an architecture on the network of a TPU v4 pod."""
    stored = stored_chips(name, stack)
    return machine_of(sized(stored.cluster, 64, "tpu-v4"), stored.device, stored.stack)


def by_study(model: Model, layout: Layout, machine: Machine) -> Parts:
    """Parts by the stages extract, estimate and schedule of a study of accelerators."""
    technology, chip = load_technology("22nm"), device_of(machine)
    # Studies know one clock; the price's chips sustain a share of it.
    device = chip.model_copy(update={"clock_hz": chip.clock_hz * chip.sustained_clock})
    assert machine.system is not None
    level = machine.system.levels[0]
    network = Flat(level.bandwidth_bytes_per_s, latency_s=level.latency_s)
    hardware = Hardware(device.clock_hz, device.hbm_bandwidth_bytes_per_s, network, layout.bytes_per_element)
    workload = extract_workload(model, SEQUENCE, layout, ON_CHIP)
    tables, chips = workload.tables, describe_named([device], technology.area_um2, "named")
    estimates = estimate_operators(tables["parts"], chips, hardware, technology, EstimateSettings())
    operators, counts = tables["operators"], dict(workload.counts)
    seconds = operator_latencies(operators, estimates, chips)[1][0] * operators["layer"].map(counts)
    chosen = chips[["architecture"]].assign(kept=True)
    settings = ScheduleSettings()
    solves, _ = schedule_layers(operators, tables["edges"], estimates, chips, chosen, settings, Store())
    core, layers = operators["core"].mask(operators["attention"], "attention"), tables["layers"]
    size = parameter_bytes("adam", layout.precision, machine.stack.gradient_bytes)
    nbytes = layers["parameters"] * size.static + layers["activation_bytes"]
    return Parts(
        products=float(seconds[core.isin(["tensor", "fused"])].sum()),
        attention=float(seconds[core == "attention"].sum()),
        vector=float(seconds[core == "vector"].sum()),
        collectives=float(seconds[core == "network"].sum()),
        layers=float((solves["objective_s"] * solves["layer"].map(counts)).sum()),
        memory=float((nbytes * layers["layer"].map(counts)).sum()),
    )


def by_price(model: Model, layout: Layout, machine: Machine) -> Parts:
    """Parts by the layer costs from which plans are priced."""
    rank = replace(layout, dp=layout.fewest_replicas)
    batch = 8 * rank.dp * rank.microbatch
    lowering = Lowering(ModelTraining(model, SEQUENCE, batch, flash_attention=True), machine)
    workload, costs, _ = lowering.layers(rank)
    times = operator_times(machine, layout.bytes_per_element)
    seconds = dict.fromkeys(("products", "attention", "vector", "collectives"), 0.0)
    for layer in workload.layers:
        for direction in DIRECTIONS:
            for name, part_s in _timed(layer, direction, layout, machine, times):
                seconds[name] += workload.counts[layer.name] * part_s
    layers_s = sum(float((costs[name].forward_s + costs[name].backward_s).sum()) for name in workload.order)
    stage = lowering.stage(range(len(workload.order)), rank)
    return Parts(**seconds, layers=layers_s, memory=stage.fixed_bytes + stage.stash_bytes)


def _timed(
    layer: Layer, direction: Direction, layout: Layout, machine: Machine, times: KernelTimes | LayerSchedules
) -> Iterator[tuple[str, float]]:
    """Part and seconds on all cores of every operator of one pass of a layer."""
    operators = layer.pass_of(direction).operators
    if isinstance(times, KernelTimes):
        fused = fused_attention(layer.attention("forward"), layout, machine.stack, times)
        yield "attention", float(getattr(fused, direction).seconds.sum())
        operators = tuple(operator for operator in operators if not operator.attention)
    for operator in operators:
        if isinstance(times, LayerSchedules):
            core_s = times.seconds_on_all((operator,), layout)
        else:
            core_s = float(times.of(kernels_of(operator)).sum()) if kernels_of(operator) else 0.0
        sent = (part for part in operator.parts if part.axis)
        groups = [(cast(Kind, p.kind), p.network_bytes, layout.group(cast(Axis, p.axis))) for p in sent]
        yield _part_of(operator), core_s + sum(machine.network.seconds(*group) for group in groups)


def _part_of(operator: Operator) -> str:
    if operator.attention:
        return "attention"
    return {"vector": "vector", "network": "collectives", "none": "vector"}.get(operator.core, "products")


def ratios(
    chip: str, name: str, layouts: Sequence[Layout], stack: str = "chip"
) -> Iterator[tuple[Layout, dict[str, float]]]:
    """Yield each layout of a model, with the ratio of every part by the price to that by the study."""
    priced, model = chip_machine(chip, stack), load_transformer(name, "parts")
    for layout in layouts:
        yield layout, by_price(model, layout, priced).over(by_study(model, layout, priced))


def product_errors(chip: str, clock: float | None = None) -> pd.Series:
    """Relative errors of bf16 products of at least 5 GFLOP on a measured chip, by public figures alone.

    `clock` is the sustained share of the clock, by default that of the stack. The index is the kernel.
    """
    table = pd.read_csv(KERNELS / "products.csv").query("precision == 'bf16'")
    flops = 2.0 * table["m"] * table["n"] * table["k"]
    rows = table[(table["device"] == MEASURED[chip]) & (flops >= LARGE_FLOPS)]
    sizes = rows[["m", "k", "n"]].itertuples(index=False)
    products = [(Part("matmul", "forward", batch=1, m=m, k=k, n=n),) for m, k, n in sizes]
    machine = chip_machine(chip)
    device = device_of(machine)
    device = device.model_copy(update={"sustained_clock": clock or device.sustained_clock})
    works = works_of_kernels(products, machine.vector_cycles)
    _, (times_s, _) = times_on(works, [device], "tensor", 2, preload=True)
    errors = times_s[:, 0] / (rows["latency_ms"].to_numpy() * 1e-3) - 1
    return pd.Series(errors, index=["product"] * len(rows))


def attention_errors(chip: str, *, serial: bool = False) -> pd.Series:
    """Relative errors of causal attention of at least 5 GFLOP on a measured chip; the index is the kernel.

    If `serial`, vector cores work after the products instead of during them.
    """
    table = pd.read_csv(KERNELS / "attention.csv").query("mask == 'causal' and head_size == value_size")
    flops = 2.0 * table["batch"] * table["sequence"] ** 2 * table["heads"] * table["head_size"]
    of_chip = table["device"].str.split("[- ]").str[0] == MEASURED[chip].split("-")[0]
    machine, model = chip_machine(chip), load_transformer("llama-3.1-8b", "measured")
    schedules = LayerSchedules((device_of(machine),), machine.vector_cycles, 2)
    errors, kernels = [], []
    for row in table[of_chip & (flops >= LARGE_FLOPS)].to_dict("records"):
        heads = {"heads": row["heads"], "key_value_heads": row["kv_heads"], "head_size": row["head_size"]}
        layout = Layout(microbatch=row["batch"])
        block = chip_workload(model.model_copy(update=heads), row["sequence"], layout).layer("block")
        operators = block.attention(row["direction"])
        operators = tuple(alone for one in operators for alone in _in_turn(one)) if serial else operators
        time_s = schedules.seconds_on_all(operators, layout)
        errors.append(time_s / (row["latency_ms"] * 1e-3) - 1)
        kernels.append(f"attention {row['kernel']} {row['direction']} {row['head_size']}")
    return pd.Series(errors, index=kernels)


def _in_turn(operator: Operator) -> list[Operator]:
    """Products of an attention operator, and its vector operations, as operators of their own."""
    products = tuple(part for part in operator.parts if part.kind == "attention")
    others = tuple(part for part in operator.parts if part.kind != "attention")
    return [replace(operator, parts=parts) for parts in (products, others)]


def print_measured(*, serial: bool) -> None:
    """Print rows, median and 90th percentile of the absolute errors, and the median error, by chip."""
    for chip in MEASURED:
        full, attention = product_errors(chip, 1.0), attention_errors(chip, serial=serial)
        cases = {"product, full clock": full, "product": product_errors(chip), "attention": attention}
        cases |= {str(kernel): errors for kernel, errors in attention.groupby(level=0)}
        for name, errors in cases.items():
            median, most = np.quantile(np.abs(errors), (0.5, 0.9))
            sys.stdout.write(
                f"{chip:10} {name:32} {len(errors):4} {median:6.1%} {most:6.1%} {np.median(errors):+6.1%}\n"
            )


def main() -> None:
    """Print the ratios of all cases, or the errors against measured kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="price one kernel after the other")
    parser.add_argument("--measured", action="store_true", help="compare with measured kernels")
    parser.add_argument("--serial", action="store_true", help="vector cores wait for products of attention")
    options = parser.parse_args()
    if options.measured:
        print_measured(serial=options.serial)
        return
    stack = "none" if options.kernels else "chip"
    names = [field.name for field in fields(Parts)]
    sys.stdout.write(f"{'chip':10} {'model':14} {'layout':20} {' '.join(f'{name:>11}' for name in names)}\n")
    for chip, model in product(CHIPS, (*DENSE, *EXPERTS)):
        for layout, over in ratios(chip, model, layouts_for(model), stack):
            columns = " ".join(f"{over[name]:11.3f}" for name in names)
            sys.stdout.write(f"{chip:10} {model:14} {layout.key:20} {columns}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
