"""Latency and energy of every distinct work on every core design of a shard, on one core and on all.

A work is a few parts: matrix multiplications one after the other, vector operations that run beside them in a fused work,
or a collective. All cores share the global buffer and HBM, so that the latency is the largest of

    compute        cycles of the arrays, with global-buffer traffic behind them (see `estimate.tensor`)
    vector         cycles of the vector lanes
    hbm            bytes to and from HBM / bandwidth
    network        the ring of a collective, before its reduction on the vector cores (paper, C.2)

What vector parts stream through the global buffer is divided among the matrix multiplications of a fused work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phaze.estimate.designs import Designs, designs_of
from phaze.estimate.energy import Actions, energies
from phaze.estimate.hbm import hbm_words
from phaze.estimate.tensor import Cores, map_shapes
from phaze.estimate.vector import cycle_figures, cycles_per_element, vector_cycles
from phaze.spec.architecture import EnergyFigures, Technology
from phaze.tables import Estimates
from phaze.theory.collectives import reduced_elements, ring_all_reduce_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LIMITS = np.array(["compute", "global_buffer", "vector", "hbm", "network"])


@dataclass(frozen=True)
class Hardware:
    """What the estimates take from the cluster."""

    clock_hz: float
    hbm_bandwidth_bytes_per_s: float
    network_bandwidth_bytes_per_s: float
    bytes_per_element: int


@dataclass(frozen=True)
class Estimate:
    """Works on designs, for a number of cores; arrays (works, designs)."""

    latency_s: Floats
    limit: Ints
    """Index into LIMITS."""
    energy_j: dict[str, Floats]


@dataclass(frozen=True)
class Works:
    """Works of one core type; parts are ordered by work."""

    ids: Ints
    of_part: Ints
    """Index of the work of every part."""
    parts: pd.DataFrame
    cycles: Floats
    """Vector cycles per element of every part."""

    def total(self, values: Floats) -> Floats:
        """Return sums over the parts of every work: (P, ...) to (W, ...)."""
        result = np.zeros((len(self.ids), *values.shape[1:]))
        np.add.at(result, self.of_part, values)
        return result

    def column(self, name: str) -> Floats:
        """Return a column of the parts as floats."""
        return self.parts[name].to_numpy(float)


def estimate_operators(
    parts: pd.DataFrame,
    architectures: pd.DataFrame,
    hardware: Hardware,
    technology: Technology,
    tensor: int,
    vector_cycles_overrides: Mapping[str, float],
) -> pd.DataFrame:
    """Return table estimates for table parts on the designs of table architectures."""
    figures = cycle_figures(technology.vector_cycles, vector_cycles_overrides)
    frames = []
    for core in ("tensor", "vector", "fused", "network"):
        works = _works(parts[parts["core"] == core], figures)
        designs = designs_of(architectures, "vector" if core == "network" else core)
        if len(works.ids) and len(designs.ids):
            frames.append(_frame(core, works, designs, hardware, technology.energy, tensor))
    if not frames:
        return Estimates.empty()
    point = parts.iloc[0][["model", "tensor", "microbatch"]]
    return Estimates.check(pd.concat(frames, ignore_index=True).assign(**point.to_dict()))


def _works(parts: pd.DataFrame, figures: Mapping[tuple[str, str], float]) -> Works:
    ordered = parts.sort_values(["work", "part"], ignore_index=True)
    ids, of_part = np.unique(ordered["work"].to_numpy(np.int64), return_inverse=True)
    return Works(ids, of_part, ordered, cycles_per_element(ordered, figures))


def _frame(
    core: str, works: Works, designs: Designs, hardware: Hardware, figures: EnergyFigures, tensor: int
) -> pd.DataFrame:
    """Return the rows of one core type."""
    if core in ("tensor", "fused"):
        one, every = _matmuls(works, designs, hardware, figures)
    elif core == "vector":
        one = _vectors(works, designs, np.ones_like(designs.cores), hardware, figures)
        every = _vectors(works, designs, designs.cores, hardware, figures)
    else:
        # A collective's reduction always runs on all vector cores.
        one = every = _collectives(works, designs, hardware, figures, tensor)
    works_by_row = np.repeat(works.ids, len(designs.ids))
    return pd.DataFrame(
        {
            "work": works_by_row,
            "design": np.tile(designs.ids, len(works.ids)),
            "latency_s": one.latency_s.ravel(),
            "latency_all_s": every.latency_s.ravel(),
            "limit": LIMITS[one.limit.ravel()],
            "limit_all": LIMITS[every.limit.ravel()],
            **{f"{name}_j": value.ravel() for name, value in one.energy_j.items()},
            **{f"{name}_all_j": value.ravel() for name, value in every.energy_j.items()},
        }
    )


def _matmuls(
    works: Works, designs: Designs, hardware: Hardware, figures: EnergyFigures
) -> tuple[Estimate, Estimate]:
    """Return tensor and fused works on one core and on all cores."""
    is_matmul = (works.parts["kind"] == "matmul").to_numpy()
    matmul_count = works.total(is_matmul.astype(float))
    streamed_words = works.total(works.column("streamed_bytes")) / hardware.bytes_per_element
    of_matmul = works.of_part[is_matmul]
    shapes = works.parts.loc[is_matmul, ["batch", "m", "k", "n"]].to_numpy(np.int64)
    extra = streamed_words[of_matmul] / matmul_count[of_matmul]
    mapped = _map_designs(shapes, extra, designs, hardware.bytes_per_element)
    hbm = _hbm_words(shapes, designs, hardware.bytes_per_element)
    results = []
    for which, cores in enumerate((np.ones_like(designs.cores), designs.cores)):
        sums = np.zeros((4, len(works.ids), len(designs.ids)))
        for field in range(4):
            np.add.at(sums[field], of_matmul, mapped[which, field])
        hbm_bytes = np.zeros(sums.shape[1:])
        np.add.at(hbm_bytes, of_matmul, hbm * hardware.bytes_per_element)
        hbm_bytes += works.total(works.column("streamed_bytes"))[:, None]
        lanes = works.total(vector_cycles(works.column("elements"), works.cycles, designs.lanes * cores))
        macs = np.zeros(len(works.ids))
        np.add.at(macs, of_matmul, shapes.prod(axis=1, dtype=float))
        results.append(
            _estimate(works, designs, hardware, figures, sums, lanes, hbm_bytes, macs, streamed_words)
        )
    return results[0], results[1]


def _estimate(
    works: Works,
    designs: Designs,
    hardware: Hardware,
    figures: EnergyFigures,
    sums: Floats,
    lane_cycles: Floats,
    hbm_bytes: Floats,
    macs: Floats,
    streamed_words: Floats,
) -> Estimate:
    """Return tensor or fused works from their cycles and traffic."""
    core_cycles, array_cycles, glb_words, l2_words = sums
    words = glb_words + streamed_words[:, None]
    array_binds = array_cycles >= words / designs.words_per_cycle
    core_s = core_cycles / hardware.clock_hz
    times = np.stack(
        [
            np.where(array_binds, core_s, 0.0),
            np.where(array_binds, 0.0, core_s),
            lane_cycles / hardware.clock_hz,
            hbm_bytes / hardware.hbm_bandwidth_bytes_per_s,
        ]
    )
    operations = macs + works.total(works.column("elements") * works.cycles)
    size = hardware.bytes_per_element
    actions = Actions(
        operations=np.broadcast_to(operations[:, None], hbm_bytes.shape),
        l2_bytes=l2_words * size + streamed_words[:, None] * size,
        glb_bytes=words * size,
        hbm_bytes=hbm_bytes,
        link_bytes=np.zeros_like(hbm_bytes),
    )
    energy = energies(actions, designs.l2_bytes, designs.glb_bytes, size, figures)
    return Estimate(times.max(axis=0), times.argmax(axis=0), energy)


def _map_designs(shapes: Ints, extra: Floats, designs: Designs, bytes_per_element: int) -> Floats:
    """Return the mappings of shapes on one core and on all cores of every design: (2, 4, shapes, designs)."""
    distinct, back = np.unique(np.column_stack([shapes, extra]), axis=0, return_inverse=True)
    l2_words = designs.l2_bytes // bytes_per_element
    keys = np.column_stack([designs.rows, designs.columns, l2_words, designs.words_per_cycle, designs.cores])
    keys = np.concatenate([keys, np.column_stack([keys[:, :4], np.ones(len(keys))])])
    cores, of_design = np.unique(keys, axis=0, return_inverse=True)
    whole = [cores[:, i].astype(np.int64) for i in (0, 1, 2, 4)]
    found = map_shapes(
        distinct[:, :4].astype(np.int64), distinct[:, 4], Cores(*whole[:3], cores[:, 3], whole[3])
    )
    every, one = of_design.ravel().reshape(2, -1)
    stacked = np.stack(found)[:, back.ravel()]
    return np.stack([stacked[:, :, one], stacked[:, :, every]])


def _hbm_words(shapes: Ints, designs: Designs, bytes_per_element: int) -> Floats:
    """Return the HBM words of shapes on designs: (shapes, designs)."""
    distinct, back = np.unique(shapes, axis=0, return_inverse=True)
    capacities, of_design = np.unique(designs.glb_bytes, return_inverse=True)
    return hbm_words(distinct, capacities // bytes_per_element)[back.ravel()][:, of_design.ravel()]


def _vectors(
    works: Works, designs: Designs, cores: Ints, hardware: Hardware, figures: EnergyFigures
) -> Estimate:
    """Return vector works on so many cores of every design."""
    lanes = works.total(vector_cycles(works.column("elements"), works.cycles, designs.lanes * cores))
    streamed = np.broadcast_to(works.total(works.column("streamed_bytes"))[:, None], lanes.shape)
    buffer_cycles = streamed / hardware.bytes_per_element / designs.words_per_cycle
    idle = np.zeros_like(lanes)
    times = np.stack(
        [
            idle,
            buffer_cycles / hardware.clock_hz,
            lanes / hardware.clock_hz,
            streamed / hardware.hbm_bandwidth_bytes_per_s,
        ]
    )
    operations = np.broadcast_to(works.total(works.column("elements") * works.cycles)[:, None], lanes.shape)
    actions = Actions(operations, l2_bytes=streamed, glb_bytes=streamed, hbm_bytes=streamed, link_bytes=idle)
    energy = energies(actions, designs.l2_bytes, designs.glb_bytes, hardware.bytes_per_element, figures)
    return Estimate(times.max(axis=0), times.argmax(axis=0), energy)


def _collectives(
    works: Works, designs: Designs, hardware: Hardware, figures: EnergyFigures, tensor: int
) -> Estimate:
    """Return all-reduces: the ring, or the HBM traffic behind it, and then the reduction on all vector cores."""
    elements = works.column("elements")
    additions = works.total(
        np.ceil(reduced_elements(elements, tensor)[:, None] / (designs.lanes * designs.cores))
    )
    size = works.total(works.column("network_bytes"))
    streamed = works.total(works.column("streamed_bytes"))
    ring = np.array([ring_all_reduce_s(b, tensor, hardware.network_bandwidth_bytes_per_s) for b in size])
    reduction_s = additions / hardware.clock_hz
    memory_s = streamed / hardware.hbm_bandwidth_bytes_per_s
    shape = additions.shape
    limits = np.stack(
        [reduction_s, np.broadcast_to(memory_s[:, None], shape), np.broadcast_to(ring[:, None], shape)]
    )
    moved = np.broadcast_to(streamed[:, None], shape)
    actions = Actions(
        operations=np.broadcast_to(works.total(reduced_elements(elements, tensor))[:, None], shape),
        l2_bytes=moved,
        glb_bytes=moved,
        hbm_bytes=moved,
        link_bytes=np.broadcast_to((2 * size * (tensor - 1) / tensor)[:, None], shape),
    )
    energy = energies(actions, designs.l2_bytes, designs.glb_bytes, hardware.bytes_per_element, figures)
    latency = np.maximum(ring, memory_s)[:, None] + reduction_s
    return Estimate(latency, limits.argmax(axis=0) + 2, energy)
