"""Training energy per sample of a placement: dynamic energy, links and leakage.

A layer runs forward and backward once per microbatch, and is recomputed if its stage recomputes (all stages
but the last), on every rank of a tensor-parallel layer. Every device of a stage sends the activations at its
end and receives their gradients once per microbatch. The gradients of all weights go around the ring of the d
pipelines once per batch, 2 (d - 1)/d of their bytes on each device. The devices in use leak for the whole
time per batch. Energies have one column per part of the chip, in the order of `ENERGIES`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import UM2_PER_MM2
from phaze.formulas.phaze.chains import Runs
from phaze.layout import Layout
from phaze.spec.architecture import EnergyFigures
from phaze.tables.columns import ENERGIES

LINK = ENERGIES.index("link")


@dataclass(frozen=True)
class Rates:
    """Energy rates of links and leakage."""

    link_j_per_byte: float
    """Energy per byte to another device."""
    leakage_w_per_um2: float
    """Leakage power per square micrometre."""

    @classmethod
    def of(cls, figures: EnergyFigures) -> Rates:
        """Energy rates of a technology."""
        return cls(
            link_j_per_byte=figures.link_j_per_byte,
            leakage_w_per_um2=figures.leakage_w_per_mm2 / UM2_PER_MM2,
        )


@dataclass(frozen=True)
class Batch:
    """Layout with its microbatch size, and the number of samples per batch."""

    layout: Layout
    global_batch: int


@dataclass(frozen=True)
class LayerEnergy:
    """Energy of every kind of layer on one rank for one microbatch, arrays (kinds, parts), in joules."""

    forward_j: Floats
    backward_j: Floats


def slices(runs: Runs, layout: Layout) -> Ints:
    """Number of devices that share the work of one layer, for every kind of layer."""
    return np.where(runs.tensor_parallel, layout.tp, 1)


def dynamic_j(runs: Runs, work: LayerEnergy, layout: Layout, last_start: int, recompute: bool) -> Floats:
    """Dynamic energy of all layers for one microbatch, by part of the chip (parts,), in joules.

    `last_start` is the first layer of the last stage, which does not recompute.
    """
    ranks = slices(runs, layout)
    # Every layer runs forward once; those before the last stage once more if stages recompute.
    once, repeated = (
        np.bincount(runs.layers[:end], minlength=len(ranks)) for end in (None, last_start if recompute else 0)
    )
    forward: Floats = ((once + repeated) * ranks) @ work.forward_j
    return forward + (once * ranks) @ work.backward_j


def sent_bytes(boundary_bytes: Floats, devices: Ints) -> float:
    """Bytes sent between stages per microbatch, given the output sizes of all stages but the last."""
    return 2.0 * float(boundary_bytes @ devices[:-1])


def ring_bytes(gradient_bytes: Floats, devices: Ints, layout: Layout) -> float:
    """Bytes sent per batch to synchronise the gradients of the d pipelines."""
    return 2.0 * (layout.dp - 1) * float(gradient_bytes @ devices)


def sample_j(
    dynamic: Floats, sent: float, ring: float, leaking_um2_s: float, batch: Batch, rates: Rates
) -> Floats:
    """Energy per sample by part (parts + leakage,), in joules.

    `dynamic` and `sent` are per microbatch; `ring`, and the area in use times the time, are per batch.
    """
    parts = dynamic / batch.layout.microbatch
    parts[LINK] += rates.link_j_per_byte * (sent / batch.layout.microbatch + ring / batch.global_batch)
    return np.append(parts, rates.leakage_w_per_um2 * leaking_um2_s / batch.global_batch)
