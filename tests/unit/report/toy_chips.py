"""Accelerators of the toy study, and invented operator times on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pandas as pd

from phaze.layout import Layout
from phaze.report.inputs import Slicing
from phaze.tables import Architectures, Estimates, Schedules, Solves
from tests.unit.report.toy_models import DIRECTIONS, Op, each_operator

CLOCK, HBM, NETWORK = 1.05e9, 1.2e12, 2.0**32
BASELINE = "tpu-v4"
OWN_GIB = {BASELINE: 32.0}
"""HBM of the chips that have their own."""
COMMON = "2-512-256-256-256-glb4"
LAYERS = ("embedding", "block", "head")


@dataclass(frozen=True)
class Chip:
    """A toy architecture."""

    name: str
    shard: str
    cores: tuple[int, int, int, int, int]
    glb_mib: int

    @property
    def parts_um2(self) -> tuple[float, float, float, float]:
        """Return the areas of tensor cores, vector cores, L2 and global buffer."""
        tc, vc, x, y, lanes = self.cores
        return tc * x * y * 760.0, vc * lanes * 760.0, tc * 4e5 + vc * 6e3, self.glb_mib * 1.4e6

    @property
    def peak(self) -> float:
        """Return matrix multiplication FLOP/s."""
        tc, _, x, y, _ = self.cores
        return 2.0 * tc * x * y * CLOCK


def grid() -> Iterator[Chip]:
    for glb, shard in ((4, "small-buffer"), (32, "large-buffer")):
        for tc, vc, x, y in ((1, 1024, 256, 256), (2, 512, 256, 256), (4, 256, 256, 64), (8, 64, 128, 128)):
            yield Chip(f"{tc}-{vc}-{x}-{y}-{x}-glb{glb}", shard, (tc, vc, x, y, x), glb)


CHIPS = (
    Chip(BASELINE, "named", (8, 2, 128, 128, 128), 128),
    Chip("phaze-common", "named", (2, 512, 256, 256, 256), 32),
    Chip("spotlight-bert-large", "named", (1, 1, 64, 256, 64), 128),
    Chip("spotlight-megatron-bert", "named", (1, 1, 64, 256, 64), 127),
    Chip("spotlight-megatron-gpt3-175b", "named", (1, 1, 4096, 4, 4096), 128),
    *grid(),
)
LIMIT_UM2 = sum(CHIPS[0].parts_um2) * 1.02


@cache
def architectures() -> pd.DataFrame:
    rows = []
    for index, chip in enumerate(c for c in CHIPS if c.shard == "named" or sum(c.parts_um2) <= LIMIT_UM2):
        tc, vc, x, y, lanes = chip.cores
        parts = dict(zip(("tensor_um2", "vector_um2", "l2_um2", "glb_um2"), chip.parts_um2, strict=True))
        rows.append(
            {
                "shard": chip.shard, "architecture": chip.name, "num_tc": tc, "num_vc": vc, "pe_x": x,
                "pe_y": y,
                "pe_vc": lanes, "glb_bytes": chip.glb_mib * 2**20, "glb_words_per_cycle": 4096.0,
                "l2_tc_bytes": 2**20, "l2_vc_bytes": 4096, "clock_hz": 0.0, "hbm_bandwidth_bytes_per_s": 0.0,
                "hbm_gib": OWN_GIB.get(chip.name, 0.0), "area_um2": sum(parts.values()), **parts,
                "other_um2": 0.0,
                "area_interpolated": chip.name.startswith("spotlight"), "named": chip.shard == "named",
                "tensor_design": 3 * index, "vector_design": 3 * index + 1, "fused_design": 3 * index + 2,
            }
        )  # fmt: skip
    return Architectures.check(pd.DataFrame(rows))


def latency_of(op: Op, chip: Chip, cores: int, point: Slicing) -> tuple[float, str]:
    """Return the time of an operator on a number of cores of its type, and what binds."""
    _, core, tensor, vector, size = op
    tc, vc, x, y, lanes = chip.cores
    tensor_cores = {"tensor": min(cores, tc), "fused": min(cores, tc)}.get(core, 1)
    vector_cores = min(cores, vc) if core != "tensor" else 1
    times = {
        "compute": tensor / (2.0 * x * y * tensor_cores * CLOCK * 0.8),
        "vector": vector / (lanes * vector_cores * CLOCK),
        "hbm": size / HBM,
        "global_buffer": size / (2 * 4096 * CLOCK) * (128 / max(x, y)),
        "network": 4 * size * (1 - 1 / Layout.of_key(point.layout).tp) / NETWORK
        if core == "network"
        else 0.0,
    }
    limit = max(times, key=lambda key: times[key])
    return times[limit], limit


def energy_of(op: Op) -> dict[str, float]:
    _, core, tensor, vector, size = op
    return {
        "mac_j": tensor * 0.5e-12 + vector * 0.5e-12, "register_j": tensor * 0.1e-12,
        "l2_j": tensor * 0.05e-12,
        "glb_j": size * 5e-12, "hbm_j": size * 31e-12, "link_j": size * 80e-12 if core == "network" else 0.0,
    }  # fmt: skip


@cache
def estimates(point: Slicing, shard: str) -> pd.DataFrame:
    rows = []
    for work, op in enumerate(op for *_, op in each_operator(point.model, point) if op[1] != "none"):
        for _, row in members(shard).iterrows():
            chip = chip_named(row["architecture"])
            one, limit = latency_of(op, chip, 1, point)
            every, limit_all = latency_of(op, chip, 10**6, point)
            core = "vector" if op[1] == "network" else op[1]
            energy = energy_of(op)
            rows.append(
                {
                    **point._asdict(), "work": work, "design": row[f"{core}_design"], "latency_s": one,
                    "latency_all_s": every, "limit": limit, "limit_all": limit_all, **energy,
                    **{key.replace("_j", "_all_j"): value * 1.1 for key, value in energy.items()},
                    "hbm_bytes": op[-1], "hbm_all_bytes": op[-1],
                }
            )  # fmt: skip
    return Estimates.check(pd.DataFrame(rows))


def members(shard: str) -> pd.DataFrame:
    known = architectures()
    if shard == "common":
        return known[known["architecture"] == COMMON]
    return known[known["shard"] == shard]


def chip_named(name: str) -> Chip:
    return next(chip for chip in CHIPS if chip.name == name)


@cache
def timeline(
    point: Slicing, name: str, layer: str, direction: str
) -> tuple[tuple[int, str, int, float, float], ...]:
    """Return (operator, resource, core, start, end): in sequence, but the three projections side by side."""
    now, rows, together = 0.0, [], 0.0
    for at, way, i, op in each_operator(point.model, point):
        if (at, way) != (layer, direction):
            continue
        chip = chip_named(name)
        if op[0] in ("query", "key", "value") and chip.cores[0] >= 4:
            lane = ("query", "key", "value").index(op[0])
            length = latency_of(op, chip, 1, point)[0]
            rows.append((i, op[1], lane, now, now + length))
            together = max(together, length)
            continue
        now, together = now + together, 0.0
        length = 0.0 if op[1] == "none" else latency_of(op, chip, 10**6, point)[0]
        rows.append((i, op[1], -1, now, now + length))
        now += length
    return tuple(rows)


@cache
def length_s(point: Slicing, name: str, layer: str, direction: str) -> float:
    return max(end for *_, end in timeline(point, name, layer, direction))


@cache
def spent_j(point: Slicing, name: str, layer: str, direction: str) -> dict[str, float]:
    """Return the energy of a layer as scheduled: all cores take a tenth more than one."""
    ops = [op for at, way, _, op in each_operator(point.model, point) if (at, way) == (layer, direction)]
    cores = [core for _, _, core, *_ in timeline(point, name, layer, direction)]
    spent = [
        {part: value * (1.1 if core < 0 else 1.0) for part, value in energy_of(op).items()}
        for op, core in zip(ops, cores, strict=True)
    ]
    return {part: sum(one[part] for one in spent) for part in energy_of(ops[0])}


@cache
def schedules(point: Slicing, shard: str) -> pd.DataFrame:
    rows = [
        {
            **point._asdict(), "architecture": name, "layer": layer, "direction": direction, "operator": i,
            "resource": resource, "core": core, "start_s": start, "end_s": end,
        }
        for name in members(shard)["architecture"]
        for layer in ("embedding", "block", "head")
        for direction in DIRECTIONS
        for i, resource, core, start, end in timeline(point, name, layer, direction)
    ]  # fmt: skip
    return Schedules.check(pd.DataFrame(rows))


def solves(point: Slicing, shard: str) -> pd.DataFrame:
    rows = []
    for name in members(shard)["architecture"]:
        for layer in ("embedding", "block", "head"):
            for direction in DIRECTIONS:
                length = length_s(point, name, layer, direction)
                gap = 0.02 if (name, layer) == ("8-64-128-128-128-glb32", "block") else 0.0
                rows.append(
                    {
                        **point._asdict(), "architecture": name, "layer": layer, "direction": direction,
                        "status": "feasible" if gap else "optimal", "objective_s": length,
                        "bound_s": length * (1 - gap),
                        "gap": gap, "method": "program" if layer == "block" else "bounds",
                        "solver": "highs" if layer == "block" else "none", "version": "1.15",
                        "formulation": "sparse",
                        "operators": 10, "components": 1, "variables": 90, "constraints": 200,
                        "z_needed": layer == "block" and name.startswith("4-"), "all_cores_s": length * 1.1,
                        **spent_j(point, name, layer, direction), "hbm_bytes": 0.0,
                    }
                )  # fmt: skip
    return Solves.check(pd.DataFrame(rows))
