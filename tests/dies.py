"""Areas of published dies next to those of the technologies.

`python -m tests.dies` prints the area of every part and die: predicted, its range, published, and the error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from phaze.cost.space import AreaRange, area_by_part, area_range
from phaze.spec.architecture import Architecture, AreaPart, load_technology

CORES: tuple[AreaPart, ...] = ("tensor", "vector", "l2")
"""Parts that die photographs show as one, the cores."""


@dataclass(frozen=True)
class Die:
    """Published die: whole chip as built, including cores and HBM sites that products leave unused."""

    chip: Architecture
    technology: str
    total_mm2: float
    parts_mm2: dict[tuple[AreaPart, ...], float]
    """Published areas; a key is the parts that the source shows as one."""
    used: frozenset[tuple[AreaPart, ...]]
    """Parts from which figures of the technology were taken, so that they test nothing."""


def _chip(**fields: object) -> Architecture:
    return Architecture.parse(fields, "die")


GA100 = Die(
    # Full GA100 (NVIDIA A100 whitepaper V1.0, 2020): 12 NVLinks. Parts: LLMCompass, ISCA 2024.
    _chip(
        name="ga100", num_tc=128, pe_x=32, pe_y=32, num_vc=128, pe_vc=64, l2_tc_kib=192, l2_vc_kib=256,
        glb_mib=48, gpu_lanes=True, glb_cache=True,
        glb_words_per_cycle=2560, hbm_stacks=6, link_bandwidth_bytes_per_s=3e11,
    ),
    "7nm",
    826.0,
    {
        CORES: 476.25, ("interconnect",): 76.44, ("glb",): 119.31, ("hbm_phy",): 58.0,
        ("hbm_control",): 31.77, ("link",): 20.95, ("rest",): 40.0,
    },
    frozenset({CORES, ("glb",), ("rest",)}),
)  # fmt: skip
TPU_V4I = Die(
    # Jouppi et al., ISCA 2021: four matrix units, 16 MiB of vector memory, 614 GB/s, two links, 100 GB/s.
    # The bandwidth of the common memory is not published: that of tpu-v4.
    _chip(
        name="tpu-v4i", num_tc=4, pe_x=128, pe_y=128, num_vc=1, pe_vc=1024, l2_tc_kib=4096, l2_vc_kib=4,
        glb_mib=128, glb_words_per_cycle=4096, hbm_gib=8, hbm_stacks=2, link_bandwidth_bytes_per_s=1e11,
    ),
    "7nm",
    400.0,
    {("tensor",): 56.0, ("glb",): 112.0},
    frozenset({("tensor",), ("glb",)}),
)  # fmt: skip
GH100 = Die(
    # Full GH100 (NVIDIA H100 whitepaper V1.04, 2023): 60 MiB, 18 NVLinks, TSMC 4N.
    _chip(
        name="gh100", num_tc=144, pe_x=64, pe_y=32, num_vc=144, pe_vc=128, l2_tc_kib=256, l2_vc_kib=256,
        glb_mib=60, gpu_lanes=True, glb_cache=True,
        glb_words_per_cycle=2560, hbm_stacks=6, link_bandwidth_bytes_per_s=4.5e11,
        fp8_units=True,
    ),
    "5nm",
    814.0,
    {},
    frozenset(),
)  # fmt: skip
MI210 = Die(
    # An Aldebaran die (AMD CDNA 2 white paper, 2021): 112 compute units, 8 links, TSMC N6. Parts: LLMCompass.
    _chip(
        name="mi210", num_tc=112, pe_x=32, pe_y=16, num_vc=112, pe_vc=64, l2_tc_kib=64, l2_vc_kib=512,
        glb_mib=8, gpu_lanes=True, glb_cache=True,
        glb_words_per_cycle=2048, hbm_stacks=4, link_bandwidth_bytes_per_s=4e11,
    ),
    "7nm",
    724.0,
    {
        CORES: 446.22, ("interconnect",): 33.0, ("glb",): 25.2, ("hbm_phy",): 83.26,
        ("hbm_control",): 40.83, ("link",): 87.52, ("rest",): 4.0,
    },
    frozenset({("glb",)}),
)  # fmt: skip
DIES = (GA100, TPU_V4I, GH100, MI210)


def predicted(die: Die) -> dict[tuple[AreaPart, ...], AreaRange]:
    """Area of each published group of parts of a die; the empty key is the whole die."""
    figures = load_technology(die.technology).area_um2
    parts = area_by_part(die.chip, figures)
    groups = {group: area_range(parts[part] for part in group) for group in die.parts_mm2}
    return {**groups, (): area_range(parts.values())}


def main() -> None:
    """Print a line per part and die."""
    for die in DIES:
        for group, area in predicted(die).items():
            built = die.parts_mm2[group] if group else die.total_mm2
            names = "+".join(group) or "die"
            note = " (rests on it)" if group in die.used else ""
            sys.stdout.write(
                f"{die.chip.name:8} {names:20} {area.best:6.1f} ({area.low:.1f} to {area.high:.1f}) mm2, "
                f"published {built:.1f}, {area.best / built - 1:+.1%}{note}\n"
            )


if __name__ == "__main__":
    main()
