"""Architectures of a shard: grid points that the area rules allow, and the named ones (paper, Table 1).

Areas are additive over components (paper, Appendix C.1). Technologies of published dies add interconnect, HBM
interface, link PHYs and the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import get_args

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.base.units import KIB, MIB, UM2_PER_MM2
from phaze.cost.designs import design_ids
from phaze.spec.architecture import (
    GRID_SIZES,
    Architecture,
    AreaFigures,
    AreaPart,
    Grid,
    Technology,
    tensor_l2_kib,
    vector_l2_kib,
    words_per_cycle,
)
from phaze.tables import Architectures

SIZES = [
    "num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "glb_words_per_cycle", "l2_tc_kib", "l2_vc_kib",
]  # fmt: skip
OPTIONAL = ["clock_hz", "hbm_bandwidth_bytes_per_s", "hbm_gib"]
"""Columns of a chip that may leave a property to the study or its system, which is 0 in the table."""
PERIPHERY = ["fp8_units", "gpu_lanes", "glb_cache", "hbm_stacks", "link_bandwidth_bytes_per_s"]
"""Properties of a chip that affect its area only; 0 where it has none."""
PARTS: tuple[AreaPart, ...] = get_args(AreaPart)
OTHERS = [f"{part}_um2" for part in PARTS[4:]]
"""Parts outside cores and buffers, together column `other_um2`."""
COMPONENTS = ["tensor_um2", "vector_um2", "l2_um2", "glb_um2", "other_um2"]
NOTHING_SHARED: Mapping[str, float] = MappingProxyType({})
AT_THE_LIMIT = 1e-12
"""Relative tolerance of the area limit, for rounding of sums taken in different orders."""
ROUNDED = 0.005
"""Relative rounding of printed HBM capacities and bandwidths."""


@dataclass(frozen=True)
class AreaRange:
    """Area in mm²: by the technology's figures, and the least and most that their sources support."""

    low: float
    best: float
    high: float


def area_by_part(architecture: Architecture, figures: AreaFigures) -> dict[AreaPart, AreaRange]:
    """Area of every part of one architecture; a specified area is divided in proportion to the figures."""
    frame = describe([architecture], figures)
    spans = {part: figures.spans.get(part, (1.0, 1.0)) for part in PARTS}
    if architecture.gpu_lanes:
        spans["vector"] = figures.spans.get("gpu_vector", (1.0, 1.0))
    sizes = {part: float(frame[f"{part}_um2"].iloc[0]) / UM2_PER_MM2 for part in PARTS}
    return {
        part: AreaRange(spans[part][0] * size, size, spans[part][1] * size) for part, size in sizes.items()
    }


def area_range(parts: Iterable[AreaRange]) -> AreaRange:
    """Area of parts together, for independent errors of the parts: their deviations add in quadrature."""
    low, best, high = np.array([[part.low, part.best, part.high] for part in parts]).T
    total = best.sum()
    return AreaRange(
        float(total - np.linalg.norm(best - low)), float(total), float(total + np.linalg.norm(high - best))
    )


def area_um2(architecture: Architecture, figures: AreaFigures) -> float:
    """Area of one architecture in um2: as specified, or computed from the area figures."""
    return float(describe([architecture], figures)["area_um2"].iloc[0])


def area_limit_um2(limit: float | dict[str, object], technology: Technology) -> float:
    """Area limit in um2, given in mm2 or as the area of an architecture."""
    if isinstance(limit, dict):
        return area_um2(Architecture.parse(limit, "area_limit"), technology.area_um2)
    return limit * UM2_PER_MM2


def enumerate_grid(
    grid: Grid,
    figures: AreaFigures,
    area_limit_um2: float,
    shard: str,
    named: Sequence[Architecture] = (),
    shared: Mapping[str, float] = NOTHING_SHARED,
) -> pd.DataFrame:
    """Build table `architectures`: the grid points within the area limit, and the named architectures.

    All grid points have the fields `shared`, such as hbm_gib and link_bandwidth_bytes_per_s, in their area.
    Raises PhazeError if a named one has the name of an architecture of the grid, and for FP8 units that the
    technology lacks.
    """
    frame = _with_areas(_combinations(grid).assign(**shared), figures)
    allowed = frame[within_limit(frame, grid.minimum_area_share, area_limit_um2)]
    searched = allowed.assign(architecture=_names(allowed), named=False)
    for name in searched["architecture"][searched["architecture"].isin([a.name for a in named])]:
        raise PhazeError(
            f"architectures.named: {name} is the name of an architecture of the grid", "rename it"
        )
    return _as_table(pd.concat([searched, _describe_named(named, figures)]) if named else searched, shard)


def enumerate_smaller(
    grid: Grid, figures: AreaFigures, area_limit_um2: float, smaller_um2: Sequence[float], shard: str
) -> pd.DataFrame:
    """Architectures within one of the smaller area limits that the main limit's area rules exclude."""
    frame = _with_areas(_combinations(grid), figures)
    spaces = [within_limit(frame, grid.minimum_area_share, limit) for limit in (area_limit_um2, *smaller_um2)]
    allowed = frame[np.any(spaces[1:], axis=0) & ~spaces[0]]
    return _as_table(allowed.assign(architecture=_names(allowed), named=False), shard)


def within_limit(
    architectures: pd.DataFrame, minimum_area_share: float | None, area_limit_um2: float
) -> Bools:
    """Mask of the grid's architectures that the area rules allow under an area limit.

    The authors exclude architectures with an area below 30 % of the limit, unless they have a single tensor
    core or a single vector core.
    """
    area = architectures["area_um2"].to_numpy(np.float64)
    small = area < (minimum_area_share or 0.0) * area_limit_um2
    exempt = (architectures["num_tc"] == 1) | (architectures["num_vc"] == 1)
    return (area <= area_limit_um2 * (1.0 + AT_THE_LIMIT)) & (~small | exempt.to_numpy())


def describe_named(architectures: Sequence[Architecture], figures: AreaFigures, shard: str) -> pd.DataFrame:
    """Table `architectures` of the named architectures; no area rule applies."""
    return _as_table(_describe_named(architectures, figures), shard)


def read_architectures(
    paths: Sequence[str], chip: object, figures: AreaFigures, columns: list[str]
) -> pd.DataFrame:
    """Columns of a shard's architectures: from its file or, without one, of the specification `chip`."""
    if paths:
        return Architectures.load(*paths, columns=columns)
    return describe_named([Architecture.parse(chip, "architecture")], figures, "named")[columns]


def _describe_named(architectures: Sequence[Architecture], figures: AreaFigures) -> pd.DataFrame:
    frame = describe(architectures, figures)
    return frame.assign(architecture=[a.name for a in architectures], named=True)


def describe(architectures: Sequence[Architecture], figures: AreaFigures) -> pd.DataFrame:
    """Sizes and areas of individual architectures.

    A specified total area is divided among the components in proportion to the figures.
    """
    derived = ("lanes", "bandwidth", "tensor_l2_kib", "vector_l2_kib")
    attributes = dict(zip(("pe_vc", "glb_words_per_cycle", "l2_tc_kib", "l2_vc_kib"), derived, strict=True))
    rows = [[getattr(a, attributes.get(name, name)) for name in SIZES] for a in architectures]
    properties = {
        name: [float(getattr(a, name) or 0.0) for a in architectures] for name in (*OPTIONAL, *PERIPHERY)
    }
    frame = _with_areas(pd.DataFrame(rows, columns=SIZES).assign(**properties), figures)
    stated_um2 = np.array([np.nan if a.area_mm2 is None else a.area_mm2 * UM2_PER_MM2 for a in architectures])
    scale = np.where(np.isnan(stated_um2), 1.0, stated_um2 / frame["area_um2"])
    scaled = {name: frame[name] * scale for name in (*COMPONENTS, *OTHERS)}
    area = frame["area_um2"].where(np.isnan(stated_um2), stated_um2)
    # A stated area is not interpolated, whatever its components are.
    between = frame["area_interpolated"] & np.isnan(stated_um2)
    return frame.assign(**scaled, area_um2=area, area_interpolated=between)


def _combinations(grid: Grid) -> pd.DataFrame:
    axes = np.meshgrid(grid.num_tc, grid.num_vc, grid.pe_x, grid.pe_y, grid.glb_mib, indexing="ij")
    tc, vc, x, y, glb = (axis.ravel() for axis in axes)
    words, l2_tc = _per_core(words_per_cycle, tc, x, y), _per_core(tensor_l2_kib, x, y)
    columns = (tc, vc, x, y, x, glb, words, l2_tc, _per_core(vector_l2_kib, x))
    return pd.DataFrame(dict(zip(SIZES, columns, strict=True)))


def _per_core(rule: Callable[..., float], *sizes: Ints) -> Floats:
    """Evaluate a sizing rule on arrays of sizes; each distinct combination is computed once."""
    # Sizing rules are Python functions; a grid has far fewer distinct sizes than points.
    distinct, place = np.unique(np.column_stack(sizes), axis=0, return_inverse=True)
    return np.array([rule(*map(int, row)) for row in distinct], dtype=float)[place.ravel()]


def _with_areas(sizes: pd.DataFrame, figures: AreaFigures) -> pd.DataFrame:
    """Add areas to sizes: num_tc (macs · mac_tc + L2) + num_vc (lanes · mac_vc + L2) + glb + others."""
    num_tc, num_vc, x, y, lanes, glb_mib, _, l2_tc_kib, l2_vc_kib = (
        sizes[name].to_numpy(float) for name in SIZES
    )
    l2_tc, between_tc = buffer_area_um2(l2_tc_kib, figures.l2)
    l2_vc, between_vc = buffer_area_um2(l2_vc_kib, figures.l2)
    glb, between_glb = _glb_area_um2(sizes, figures)
    others, gpu_lane = _others_um2(sizes, figures), figures.gpu_lane or figures.mac_vc
    areas = {
        "tensor_um2": num_tc * (x * y) * _mac_um2(sizes, figures),
        "vector_um2": num_vc * lanes * np.where(_property(sizes, "gpu_lanes") > 0, gpu_lane, figures.mac_vc),
        "l2_um2": num_tc * l2_tc + num_vc * l2_vc,
        "glb_um2": glb,
        "other_um2": sum(others.values()),
    }
    return sizes.assign(
        glb_bytes=np.rint(glb_mib * MIB),
        l2_tc_bytes=np.rint(l2_tc_kib * KIB),
        l2_vc_bytes=np.rint(l2_vc_kib * KIB),
        area_um2=sum(areas[name] for name in COMPONENTS),
        **areas,
        **others,
        area_interpolated=between_tc | between_vc | between_glb,
    )


def _property(sizes: pd.DataFrame, name: str) -> Floats:
    """Column of a property of chips, 0 where they have none."""
    return sizes[name].to_numpy(float) if name in sizes else np.zeros(len(sizes))


def _mac_um2(sizes: pd.DataFrame, figures: AreaFigures) -> Floats:
    """Area of a unit of each chip's tensor cores in um2, with its two FP8 units where the chip has them."""
    fp8 = _property(sizes, "fp8_units") > 0
    if fp8.any() and figures.mac_fp8 is None:
        raise PhazeError(
            "fp8_units: the technology has no area for FP8 units (area_um2.mac_fp8)",
            "leave fp8_units out, or take a technology that has them: 7nm or 5nm",
        )
    return np.where(fp8, figures.mac_tc + 2.0 * (figures.mac_fp8 or 0.0), figures.mac_tc)


def _glb_area_um2(sizes: pd.DataFrame, figures: AreaFigures) -> tuple[Floats, Bools]:
    """Area of each chip's global buffer in um2, and whether it is interpolated."""
    glb_mib = sizes["glb_mib"].to_numpy(float)
    glb, between = buffer_area_um2(glb_mib, figures.glb)
    if figures.glb_cache is None:
        return glb, between
    is_cache = _property(sizes, "glb_cache") > 0
    cache, between_caches = buffer_area_um2(glb_mib, figures.glb_cache)
    return np.where(is_cache, cache, glb), np.where(is_cache, between_caches, between)


def _others_um2(sizes: pd.DataFrame, figures: AreaFigures) -> dict[str, Floats]:
    """Areas in um2 of the parts outside cores and buffers, by column."""
    bytes_per_cycle = 2.0 * sizes["glb_words_per_cycle"].to_numpy(float)
    stacks = _hbm_stacks(sizes, figures)
    hbm = figures.hbm
    return {
        "interconnect_um2": figures.interconnect * bytes_per_cycle,
        "hbm_phy_um2": stacks * (hbm.phy if hbm else 0.0),
        "hbm_control_um2": stacks * (hbm.control if hbm else 0.0),
        "link_um2": figures.link * _property(sizes, "link_bandwidth_bytes_per_s"),
        "rest_um2": np.full(len(sizes), figures.rest),
    }


def _hbm_stacks(sizes: pd.DataFrame, figures: AreaFigures) -> Floats:
    """HBM stacks of each chip: as specified, or the fewest that provide its capacity and bandwidth."""
    if figures.hbm is None:
        return np.zeros(len(sizes))
    capacity = _property(sizes, "hbm_gib") / figures.hbm.gib
    bandwidth = _property(sizes, "hbm_bandwidth_bytes_per_s") / figures.hbm.bytes_per_s
    # Data sheets print rounded capacities and bandwidths: half a percent more needs no further stack.
    needed = np.ceil(np.maximum(capacity, bandwidth) / (1.0 + ROUNDED))
    specified = _property(sizes, "hbm_stacks")
    return np.where(specified > 0, specified, needed)


def buffer_area_um2(capacity: Floats, figures: dict[float, float]) -> tuple[Floats, Bools]:
    """Area of buffers in um2, and a mask of the buffers whose area is interpolated.

    Between published capacities, log area is linear in log capacity. Beyond them it is extrapolated with the
    slope at the end.
    """
    sizes = np.array(sorted(figures))
    areas = np.array([figures[size] for size in sorted(figures)])
    # Clipped to the segments, so that capacities beyond the ends continue the first or last slope.
    place = np.clip(np.searchsorted(sizes, capacity), 1, len(sizes) - 1)
    x, y = np.log(sizes), np.log(areas)
    slope = (y[place] - y[place - 1]) / (x[place] - x[place - 1])
    between = np.exp(y[place - 1] + slope * (np.log(capacity) - x[place - 1]))
    index = np.searchsorted(sizes, capacity).clip(max=len(sizes) - 1)
    # A published capacity keeps its exact area: exp(log(a)) may differ from a in the last digit.
    published = sizes[index] == capacity
    return np.where(published, areas[index], between), ~published


def _names(frame: pd.DataFrame) -> list[str]:
    columns = (frame[name] for name in GRID_SIZES)
    return [f"tc{tc}-vc{vc}-{x}x{y}-glb{glb:g}" for tc, vc, x, y, glb in zip(*columns, strict=True)]


def as_architectures(rows: pd.DataFrame, shared: Mapping[str, float] = NOTHING_SHARED) -> list[Architecture]:
    """Architectures from rows of table `architectures`; figures that the system provides are omitted.

    All have the fields `shared` of their grid as well.
    """
    sizes = rows.rename(columns={"architecture": "name"}).assign(
        glb_mib=rows["glb_bytes"] / MIB,
        l2_tc_kib=rows["l2_tc_bytes"] / KIB,
        l2_vc_kib=rows["l2_vc_bytes"] / KIB,
        area_mm2=rows["area_um2"] / UM2_PER_MM2,
    )
    fields = [name for name in Architecture.model_fields if name in sizes]
    return [
        Architecture.parse(
            {name: row[name] for name in fields if name not in OPTIONAL or row[name]} | dict(shared), "grid"
        )
        for row in sizes.to_dict("records")
    ]


def _as_table(frame: pd.DataFrame, shard: str) -> pd.DataFrame:
    """Table `architectures`, with ids of the distinct tensor, vector and fused core designs."""
    properties = {name: frame[name].fillna(0.0) if name in frame else 0.0 for name in OPTIONAL}
    frame = frame.assign(shard=shard, **properties)
    frame = frame.assign(**design_ids(frame))
    return Architectures.check(frame[list(Architectures.fields())])
