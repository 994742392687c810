"""Section of the Parmesan paper: tables, figures, pictures, and checks of mappings."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.map.speed_ups import speed_ups, steps
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.parmesan.inputs import MapInputs
from phaze.papers.parmesan.readings import about, groups, nearest, read_figures
from phaze.papers.parmesan.sections import sections_of
from phaze.papers.scores import geometric_mean
from phaze.report.case_checks import MAP_CHECKS
from phaze.spec.map_study import MapCase
from phaze.tables import FiguresRead, Mappings, SpeedUps


def parmesan_paper(inputs: MapInputs) -> Paper:
    """Parmesan's section, comparing the paper with the mappings of a study."""
    gains, figures = SpeedUps.check(speed_ups(steps(inputs.mappings))), read_figures(inputs)
    checks, table = checked("map-checks", MAP_CHECKS, inputs)
    return paper_of(
        "parmesan",
        inputs.published,
        answer_of(inputs, gains, figures),
        (*part(sections_of(inputs, figures)), *checks),
        {
            "mappings": (Mappings, inputs.mappings),
            "speed-ups": (SpeedUps, gains),
            "figures-read": (FiguresRead, figures),
            **table,
        },
    )


def answer_of(inputs: MapInputs, gains: pd.DataFrame, figures: pd.DataFrame) -> str:
    """Summary: speed-up by mapping, and the readings closest to the printed figures."""
    printed = figures[figures["printed"] > 0]
    for name, case in inputs.of("topologies"):
        mine = printed[printed["case"] == name]
        if case.readings and len(mine):
            return " ".join(_beside(inputs, case, mine))
    return (
        "A simulated training step with the mappings found here is "
        f"{geometric_mean(gains['over_consecutive']):.2f} times as fast as with consecutive devices, the "
        f"geometric mean over {len(gains)} cases."
    )


def _beside(inputs: MapInputs, case: MapCase, mine: pd.DataFrame) -> Iterator[str]:
    over = mine[mine["figure"] == "over-consecutive"]
    first, graph = next(iter(case.readings)), inputs.study.graphs[case.graphs[0]].label
    gained, near = [], []
    for group, topologies in groups(inputs, case).items():
        means = about(over, first, topologies)[["ours", "printed"]].agg(geometric_mean)
        gained.append(f"{means['ours']:.2f} times as fast on {group} (printed {means['printed']:.2f})")
        key, factor = nearest(mine, case.plain_readings, topologies)
        near.append(f"{factor:.2f} on {group} (“{case.readings[key].label}”)")
    yield (
        f"In simulation, mapping the stages of {graph} to the topology instead of to consecutive devices "
        f"makes a training step {' and '.join(gained)}, geometric means over shapes."
    )
    yield (
        f"Of {len(case.plain_readings)} readings of what the paper leaves open, the nearest to its printed "
        f"figures is off by a factor of {' and '.join(near)}. All times are simulated from estimates of the "
        "paper's devices; none is measured."
    )
