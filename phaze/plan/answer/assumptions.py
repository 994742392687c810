"""Assumptions behind an answer, one sentence each, and the versions of the software it depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from phaze.base.provenance import library_version, phaze_version, source_digest
from phaze.base.units import GIB, percent
from phaze.cost.network.network import Levels
from phaze.cost.size import slowest
from phaze.layout import Compute, Layout
from phaze.plan.answer.priced import MeasuredInterval
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import VOCABULARY_MULTIPLE
from phaze.plan.question import PlanQuestion
from phaze.plan.terms.memory import capacity_bytes
from phaze.spec.system import Stack

HIDDEN = {
    "dp": "data-parallel collectives",
    "tp": "tensor-parallel collectives",
    "pp": "messages between stages",
    "ep": "token dispatches",
}
"""Descriptions of the kinds of communication that can overlap with compute."""

DISPATCH = {
    "rows": "a row for every expert of a token sent to it",
    "tokens": "tokens sent once to each rank with experts of theirs",
}
"""Descriptions of the methods of token dispatch."""

OPTIMISTIC = "Optimistic"
"""First word of the reason of a step time that is a lower limit."""


def assumptions(question: PlanQuestion, layout: Layout) -> Iterator[str]:
    """Yield the assumptions behind all plans for a planning request, of which one has `layout`."""
    machine, runtime = question.machine, question.runtime
    device = device_of(machine)
    yield f"layouts that {runtime.name} {runtime.version} runs"
    yield f"{_products(question.task.compute)} with {layout.optimizer} in mixed precision, flash attention"
    yield (
        f"{device.name} with {percent(device.sustained_clock, 0)} of its clock and "
        f"{percent(device.sustained_hbm, 0)} of its HBM bandwidth sustained, "
        f"{capacity_bytes(device) / GIB:.4g} of {device.hbm_gib:g} GiB left by the driver"
    )
    if machine.devices > 1 and device.spread:
        longer = float(slowest(machine.devices, device.spread)) - 1
        slowed = f"kernels {percent(longer)} longer than on one device"
        yield f"{slowed}: the slowest of {machine.devices:,} decides"
    if rank := question.task.model.lora:
        kernels = "kernels of their own that no measured run has"
        yield f"all frozen but adapters of rank {rank} beside every matrix of a block, {kernels}"
    if question.task.experts:
        yield f"load of experts: {question.task.load}"
    yield _stack(machine.stack, question.task.experts > 0)
    yield f"vocabulary padded to a multiple of {VOCABULARY_MULTIPLE} tp"
    groups = "the links of the network"
    if isinstance(machine.network, Levels):
        tiers = " and ".join(f"{tier.devices:,}" for tier in machine.network.tiers)
        groups = f"groups of {tiers} devices"
    yield f"ranks numbered tp-cp-dp-pp, tp fastest, over {groups}; no contention of others"
    yield "every step alike: no input stalls, evaluation, checkpoints, failures"


def uncalibrated(machine: Machine, interval: MeasuredInterval) -> str:
    """Reason why a step time has no interval: the device or the features that no measured run has."""
    device = device_of(machine)
    features = [name for name in interval.unmeasured if not name.startswith("device ")]
    if features == list(interval.unmeasured):
        missing = f"no measured run has {', '.join(features)}" if features else "no measured run is like it"
        return f"No 80 % interval: {missing}."
    reason = f"{OPTIMISTIC}: no run like this was measured on {device.name}"
    if features:
        reason += f", or with {', '.join(features)} on other devices"
    if device.assumed_from is not None:
        reason += f". Everything that its file does not say is copied from {device.assumed_from}"
    return f"{reason}."


def above_measured(machine: Machine, compute: Compute, mfu: float, interval: MeasuredInterval) -> str | None:
    """Sentence on a predicted utilisation that no measured run of the device and precision reached.

    None if one did, if the precision was not measured on the device, or for a system with the user's own
    runs, whose utilisations are not known.
    """
    best = max(interval.mfus, default=mfu)
    if mfu <= best or machine.calibrated:
        return None
    runs = f"the best of {len(interval.mfus):,} measured is {percent(best)}"
    return f"No {compute} run on {device_of(machine).name} reached {percent(mfu)} MFU: {runs}."


def _products(compute: Compute) -> str:
    """Description of the GEMM precision."""
    if compute == "bf16":
        return compute
    return f"products of blocks' weights in {compute}, inputs kept for them alike, all else in bf16,"


def _stack(stack: Stack, experts: bool) -> str:
    sent = f"{DISPATCH[stack.dispatch]}; " * experts
    kinds = [name for name in stack.overlap if name in HIDDEN and (experts or name != "ep")]
    hidden = ", ".join(HIDDEN[name] for name in kinds) or "no communication"
    return (
        f"stack {stack.name}: gradients of {stack.gradient_bytes} bytes; {hidden} overlapped with "
        f"compute; {sent}{stack.reserved_gib:g} GiB of buffers of the framework"
    )


def versions(question: PlanQuestion) -> dict[str, str]:
    """Versions, by name, of the software that an answer depends on.

    `prices` is a digest of the pricing code and of the system: plans with the same digest have the same
    prices.
    """
    runtime = question.runtime
    software = {"phaze": phaze_version(), "prices": _prices(question.machine), runtime.name: runtime.version}
    return software | {name: library_version(name) for name in ("highspy", "numba", "numpy")}


def _prices(machine: Machine) -> str:
    """Digest of the pricing code and of a machine."""
    code_and_machine = f"{source_digest('phaze.plan.answer.priced')} {machine!r}"
    return hashlib.sha256(code_and_machine.encode()).hexdigest()[:16]
