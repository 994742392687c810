"""Latency and energy of every unit of work on every core design of a shard, on one core and on all cores.

A work consists of matrix multiplications in sequence, of vector operations that run concurrently with them in
a fused work, or of a collective. All cores share the global buffer and HBM, so the latency is the maximum of

    compute         cycles of the tensor cores (see `cost.mapper.loads`), if arrays take longer than words
    global_buffer   the same, if words take longer than the arrays; words of vector cores / words per cycle
    vector          cycles of the vector lanes
    hbm             bytes to and from HBM / bandwidth
    network         the ring of a collective; its reduction on the vector cores follows

On one core, a fused work runs on a pair of a tensor and a vector core (paper, Section 4). On all cores, it
runs on all of both types: results are passed from core to core. One vector core may serve several tensor
cores, as in a TPU v4, where each vector unit serves four matrix units (Jouppi et al., ISCA 2023, Section 2),
or the reverse. Fused is never slower than unfused: in sequence on all cores, the parts take the sum of the
times of which fused takes the maximum, and they also stream the tensors between them. With `fusion: paired`,
as many tensor cores as vector cores are used, as in the paper, and cores without a partner are idle.

The dynamic energy of a work, by component, is the energy per action times the number of actions in the
mapping with the least latency. Leakage is a property of the whole chip over time and is added where both are
known: leakage_w_per_mm2 · area · time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.units import KIB
from phaze.cost.designs import Designs, designs_of
from phaze.cost.mapper.loads import Hardware, Load, loads_of
from phaze.cost.mapper.works import works_of
from phaze.cost.vector import cycle_figures
from phaze.spec.architecture import EnergyFigures, Technology
from phaze.spec.settings import EstimateSettings

if TYPE_CHECKING:  # a plan of a measured device reads no tables, and loads no pandas
    import pandas as pd

LIMITS = ("compute", "vector", "global_buffer", "hbm", "network")
CORES = ("tensor", "vector", "fused", "network")
REGISTER_WORDS_PER_OPERATION = 4
"""Register words accessed per multiply-accumulate.

It reads the stationary operand, takes over the streaming operand, and reads and writes the sum.
"""


def estimate_operators(
    parts: pd.DataFrame,
    architectures: pd.DataFrame,
    hardware: Hardware,
    technology: Technology,
    settings: EstimateSettings,
) -> pd.DataFrame:
    """Build table `estimates` for table `parts` of one layout on the designs of table `architectures`.

    Raises PhazeError if the settings give cycles of an unknown operation.
    """
    import pandas as pd

    from phaze.tables import Estimates
    from phaze.tables.columns import POINT, layout_of

    figures = cycle_figures(technology.vector_cycles, settings.vector_cycles)
    parts, architectures, hardware = _with_overrides(parts, architectures, hardware, settings)
    frames = []
    for core in CORES:
        works = works_of(parts, core, figures)
        paired = core == "fused" and settings.fusion == "paired"
        designs = designs_of(architectures, "vector" if core == "network" else core, paired=paired)
        if len(works) and len(designs):
            cycles = figures["forward", "add"]
            loads = loads_of(
                *(works, designs, hardware, layout_of(parts), cycles),
                preload=settings.preload,
                folded=settings.array_axes == "several-loops",
            )
            frames.append(_frame(core, works.ids, designs, loads, hardware, technology.energy))
    if not frames:
        return Estimates.empty()
    estimates = pd.concat(frames, ignore_index=True)
    for key in POINT:
        estimates[key] = parts[key].iloc[0]
    return Estimates.check(estimates)


def _with_overrides(
    parts: pd.DataFrame, architectures: pd.DataFrame, hardware: Hardware, settings: EstimateSettings
) -> tuple[pd.DataFrame, pd.DataFrame, Hardware]:
    """Parts, architectures and hardware, with the settings' overrides applied."""
    if not settings.vector_traffic:
        parts = parts.assign(streamed_bytes=0.0)
    if settings.words_per_cycle is not None:
        architectures = architectures.assign(glb_words_per_cycle=settings.words_per_cycle)
    if settings.all_reduce_factor is not None:
        network = replace(hardware.network, all_reduce_factor=settings.all_reduce_factor)
        hardware = replace(hardware, network=network)
    return parts, architectures, hardware


def _frame(
    core: str,
    works: Ints,
    designs: Designs,
    loads: tuple[Load, Load],
    hardware: Hardware,
    figures: EnergyFigures,
) -> pd.DataFrame:
    """Rows of table `estimates` for one core type, on one core and on all cores."""
    import pandas as pd

    limits = pd.array(LIMITS, dtype="str")
    columns: dict[str, NDArray[np.generic] | pd.api.extensions.ExtensionArray] = {
        "work": np.repeat(works, len(designs)),
        "design": np.tile(designs.ids, len(works)),
    }
    for suffix, load in zip(("", "_all"), loads, strict=True):
        latency, limit = latencies_of(core, load, designs, hardware)
        energy = energies_of(load, designs, hardware.bytes_per_element, figures)
        columns[f"latency{suffix}_s"] = latency.ravel()
        columns[f"limit{suffix}"] = limits.take(limit.ravel())
        columns |= {f"{name}{suffix}_j": part.ravel() for name, part in energy.items()}
        columns[f"hbm{suffix}_bytes"] = np.broadcast_to(load.hbm_bytes, latency.shape).ravel()
    return pd.DataFrame(columns)


def latencies_of(core: str, load: Load, designs: Designs, hardware: Hardware) -> tuple[Floats, Ints]:
    """Latencies in seconds and their bottlenecks (indices in `LIMITS`), arrays (W, D)."""
    words_cycles = load.glb_words / designs.words_per_cycle
    array_binds = load.array_cycles >= words_cycles
    # The array's own time is listed as compute; cores that wait for words are bound by the buffer.
    waiting = np.maximum(np.where(array_binds, 0.0, load.core_cycles), words_cycles)
    clock_hz = np.where(designs.clock_hz > 0, designs.clock_hz, hardware.clock_hz)
    own_bytes_per_s = designs.hbm_bandwidth_bytes_per_s
    hbm_bytes_per_s = np.where(own_bytes_per_s > 0, own_bytes_per_s, hardware.hbm_bandwidth_bytes_per_s)
    times = np.stack(
        np.broadcast_arrays(
            np.where(array_binds, load.core_cycles, 0.0) / clock_hz,
            load.lane_cycles / clock_hz,
            waiting / clock_hz,
            load.hbm_bytes / hbm_bytes_per_s,
            load.network_s,
        )
    )
    limit = times.argmax(axis=0)
    if core != "network":
        return times.max(axis=0), limit
    # A collective reduces what it has received, so that the reduction follows the transfer.
    _, reduction, *transfer = times
    return np.max(transfer, axis=0) + reduction, limit


def energies_of(
    load: Load, designs: Designs, bytes_per_element: int, figures: EnergyFigures
) -> dict[str, Floats]:
    """Energy in J by component, arrays (W, D).

    A word that crosses an edge is written on one side and read on the other. It therefore counts in the L2
    buffer both towards the array or lanes and towards the global buffer, and in the global buffer both
    towards L2 and towards HBM.
    """
    size = bytes_per_element
    l2_tc = sram_j_per_byte(designs.l2_tc_bytes, figures.sram_j_per_byte)
    l2_vc = sram_j_per_byte(designs.l2_vc_bytes, figures.sram_j_per_byte)
    glb = sram_j_per_byte(designs.glb_bytes, figures.sram_j_per_byte)
    # Streamed words pass the L2 buffers of vector cores, not of tensor cores.
    l2_tc_words = load.array_words + load.glb_words - load.streamed_words
    registers = REGISTER_WORDS_PER_OPERATION * size * figures.register_j_per_byte
    parts = {
        "mac": load.operations * figures.mac_j,
        "register": load.operations * registers,
        "l2": size * (l2_tc_words * l2_tc + 2.0 * load.streamed_words * l2_vc),
        "glb": (size * load.glb_words + load.hbm_bytes) * glb,
        "hbm": load.hbm_bytes * figures.hbm_j_per_byte,
        "link": load.link_bytes * figures.link_j_per_byte,
    }
    shape = (len(load.operations), len(designs))
    return {name: np.broadcast_to(part, shape) for name, part in parts.items()}


def sram_j_per_byte(capacity_bytes: Ints, figures: Mapping[float, float]) -> Floats:
    """SRAM access energy per byte, interpolated log-log between the given capacities, constant beyond them.

    A buffer larger than the largest figure consists of banks of that size.
    """
    sizes = np.array(sorted(figures))
    values = np.array([figures[size] for size in sorted(figures)])
    j_per_byte: Floats = np.exp(np.interp(np.log(capacity_bytes / KIB), np.log(sizes), np.log(values)))
    return j_per_byte
