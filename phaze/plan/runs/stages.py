"""The stages of a run: what each holds, what it costs, and the pipeline of them.

Ranks are numbered as in Megatron-LM: tensor parallel ones beside each other, then data parallel ones, then
stages. An activation goes to the next stage in t shares and is gathered there (Narayanan et al., SC 2021,
Section 4.1); so long neither stage does anything else. Of the simulated pipeline these choices are

    recompute   full: every block from its input, one after the other; selective: the attention core;
                embedding and head are not recomputed
    gradients   added up in memory after every microbatch; synchronised after the last one, or during its
                backward pass (overlap_dp); 2 (d − 1)/d of them per direction, on each level of the network
                what the level inside leaves (the planners count 4 (d − 1)/d); those of the two copies of the
                word embedding then meet
    update      `UPDATE_BYTES` a parameter from and to HBM
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.base.arrays import Floats
from phaze.cost.memory import ParameterBytes, parameter_bytes, state_bytes, update_bytes
from phaze.layout import Group
from phaze.pipeline.pipeline import Pipeline, StageCost, with_gathers
from phaze.plan.runs.layers import HBM, NETWORK, LayerCost, layer_costs
from phaze.plan.runs.machine import Machine
from phaze.plan.runs.run import Run

CONVERSION_BYTES = 34
"""Bytes a parameter that Megatron-LM's update in mixed precision moves beside the optimizer's own: gradients
to single precision (2 + 4), unscaled and checked (4 + 4), their norm (4), clipped (4 + 4), gradients zeroed
(2), and 6 that the optimizer reads as single-precision gradients and weights for the next batch."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of a run."""

    parameters: int
    """On one slice."""
    passes_s: Floats
    """Forward pass, recomputation and backward pass of a microbatch by what binds, (limits,)."""
    cost: StageCost


def stages_of(run: Run, machine: Machine) -> tuple[Stage, ...]:
    """Return the stages of all chunks in the order of the data flow."""
    layers = layer_costs(run, machine)
    send_s = _send_s(run, machine, layers["block"])
    return tuple(_stage(run, machine, layers, q, send_s) for q in range(run.stages))


def pipeline_of(run: Run, stages: tuple[Stage, ...]) -> Pipeline:
    """Return the pipeline that a batch goes through, on all replicas."""
    return Pipeline(
        stages=tuple(stage.cost for stage in stages),
        microbatches=run.microbatches * run.dp,
        schedule=run.schedule,
        chunks=run.chunks,
        data=(run.dp,) * run.pp,
        tensor=(run.tp,) * run.pp,
        transfers="occupying",
        overlap_sync=run.overlap_dp,
    )


def _stage(run: Run, machine: Machine, layers: dict[str, LayerCost], q: int, send_s: float) -> Stage:
    blocks = run.layers_of[q]
    block, ends = layers["block"], _ends(run, layers, q)
    parameters = blocks * block.kernels.parameters + sum(end.kernels.parameters for end in ends)
    forward = blocks * block.forward_s + sum(end.forward_s for end in ends)
    again = {"none": 0.0 * block.core_s, "selective": block.core_s, "full": block.forward_s}[run.recompute]
    backward = blocks * block.backward_s + sum(end.backward_s for end in ends)
    _add_gradients(backward, run, machine, parameters)
    kept, work = kept_bytes(run, block)
    cost = StageCost(
        forward_s=float(forward.sum()),
        backward_s=float(backward.sum()),
        recompute_s=float(blocks * again.sum()),
        send_activation_s=send_s,
        send_gradient_s=send_s,
        sync_s=_sync_s(run, machine, parameters) + (_tie_s(run, machine) if ends else 0.0),
        update_s=_update_s(run, machine, parameters),
        gather_s=_gather_s(run, machine, parameters) if run.zero in (1, 2) else 0.0,
        operators=max(blocks, 1),
        stash_bytes=blocks * kept + sum(end.kernels.stashed_bytes for end in ends),
        work_bytes=work,
        fixed_bytes=state_bytes(parameters, run.optimizer, run.precision, run.zero, run.dp),
    )
    if run.zero == 3:
        cost = with_gathers(cost, _gather_s(run, machine, parameters))
    return Stage(parameters, forward + blocks * again + backward, cost)


def _ends(run: Run, layers: dict[str, LayerCost], q: int) -> list[LayerCost]:
    """Return what the first and the last stage have beside blocks."""
    return [layers["embedding"]] * (q == 0) + [layers["head"]] * (q == run.stages - 1)


def kept_bytes(run: Run, block: LayerCost) -> tuple[int, int]:
    """Return what a block keeps of a microbatch, and what a stage needs to recompute one block."""
    kernels = block.kernels
    if run.recompute == "full":
        return kernels.input_bytes, kernels.stashed_bytes
    if run.recompute == "selective":
        return kernels.stashed_bytes - kernels.core_bytes, kernels.core_bytes
    return kernels.stashed_bytes, 0


def _sizes(run: Run) -> ParameterBytes:
    return parameter_bytes(run.optimizer, run.precision)


def _add_gradients(backward: Floats, run: Run, machine: Machine, parameters: int) -> None:
    """Add up the gradients of a microbatch, three passes over them, and from ZeRO 2 on share them."""
    nbytes = _sizes(run).gradients * parameters
    if run.microbatches > 1:
        backward[HBM] += 3 * nbytes / machine.hbm_bytes_per_s
    if run.zero >= 2:
        backward[NETWORK] += machine.network.seconds("reduce_scatter", nbytes, Group(run.dp, run.tp))


def _sync_s(run: Run, machine: Machine, parameters: int) -> float:
    """Return the time to synchronise gradients once per batch."""
    nbytes = _sizes(run).gradients * parameters
    if run.zero >= 2:
        return 0.0
    return machine.network.seconds(
        "reduce_scatter" if run.zero else "all_reduce", nbytes, Group(run.dp, run.tp)
    )


def _gather_s(run: Run, machine: Machine, parameters: int) -> float:
    """Return the time to gather weights of which each replica holds a share."""
    return machine.network.seconds("all_gather", _sizes(run).weights * parameters, Group(run.dp, run.tp))


def _tie_s(run: Run, machine: Machine) -> float:
    """Return the time in which first and last stage add the gradients of the word embedding."""
    if run.pp == 1:
        return 0.0
    rows = run.model.vocabulary // run.tp
    pair = Group(2, (run.pp - 1) * run.tp * run.dp)
    return machine.network.seconds("all_reduce", _sizes(run).gradients * rows * run.hidden, pair)


def _update_s(run: Run, machine: Machine, parameters: int) -> float:
    """Return the time of the optimizer, which loads and stores full-precision weights (PALM, IV.A)."""
    nbytes = update_bytes(parameters, run.optimizer, run.precision, run.zero, run.dp)
    if run.precision == "mixed":
        nbytes += CONVERSION_BYTES * parameters / (run.dp if run.zero else 1)
    return nbytes / machine.hbm_bytes_per_s


def _send_s(run: Run, machine: Machine, block: LayerCost) -> float:
    """Return the time of an activation, or its gradient, from a stage to the next."""
    if run.pp == 1:
        return 0.0
    cut = run.sequence_parallel and run.tp > 1
    whole = block.kernels.output_bytes * (run.tp if cut else 1)
    send_s = machine.network.seconds("send", whole / run.tp, Group(run.pp, run.tp * run.dp))
    return send_s + (0.0 if cut else machine.network.seconds("all_gather", whole, Group(run.tp, 1)))
