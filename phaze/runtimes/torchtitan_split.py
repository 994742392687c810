"""Write the pipeline split of a planner's plan as changes to a torchtitan configuration.

Plans of planners from the literature have stages of different widths, recompute some of a stage's layers, and
run without flushes. No runtime does any of these. The split of the layers into stages is what remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from phaze.base.errors import PhazeError
from phaze.runtimes.flags import Emitted, comments
from phaze.runtimes.settings import KeyValues
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import (
    MICROBATCH,
    MODULES,
    PP,
    REPLICAS,
    SCHEDULE,
    SCHEDULES,
    SHARDS,
    TP,
    modules,
)
from phaze.spec.plain import Plain
from phaze.spec.planner_rows import PlannerRow


def emit_split(row: PlannerRow, model: str) -> Emitted:
    """Changes to a torchtitan configuration with a planner's stages, and a list of what no runtime can do.

    Raises PhazeError if the planner has no plan, or its plan has a single stage and thus no split.
    """
    if len(row.stages) < 2:
        wrong = "has one stage, and no split to write" if row.stages else f"has no plan: {row.reason}"
        raise PhazeError(f"planner {row.planner} {wrong}", "leave out --planner to write the plan itself")
    differences = tuple(_differences(row))
    runtime = f"torchtitan {TORCHTITAN.version}"
    settings = [f"    config.{name} = {value!r}" for name, value in _settings(row)]
    text = "\n".join(
        [
            *comments(f"{runtime}, {model}, stages of planner {row.planner}", differences=differences),
            "",
            "",
            "def planned(config):",
            '    """A configuration of config_registry with the stages of the planner."""',
            *settings,
            "    return config",
            "",
        ]
    )
    return Emitted(runtime, {"plan.py": text}, differences)


def _widths(row: PlannerRow) -> set[tuple[int, int]]:
    """Distinct widths tp and dp of the stages."""
    return {(stage.tp, stage.dp) for stage in row.stages}


def _settings(row: PlannerRow) -> KeyValues:
    """Yield the settings that torchtitan has for the stages."""
    yield PP, len(row.stages)
    if len(_widths(row)) == 1:
        yield from ((TP, row.stages[0].tp), (REPLICAS, row.stages[0].dp), (SHARDS, 1))
    yield MICROBATCH, row.microbatch or 1
    yield SCHEDULE, SCHEDULES["1f1b"]
    # The embedding and the head are layers of the planners, and stay at the ends of the pipeline.
    blocks = [stage.layers for stage in row.stages]
    blocks[0] -= 1
    blocks[-1] -= 1
    yield MODULES, cast(Plain, modules(blocks))


def _differences(row: PlannerRow) -> Iterator[str]:
    """Yield the parts of the plan that no runtime can run."""
    if len(_widths(row)) > 1:
        widths = ", ".join(f"tp {stage.tp} dp {stage.dp}" for stage in row.stages)
        yield f"no runtime has widths by stage ({widths}): set one tp and one dp for all stages"
    if row.schedule == "2bw":
        yield "no runtime has schedule 2bw (two versions of the weights, no flush): the stages run 1f1b"
    configurations = {
        part.partition(" × ")[2] for s in row.stages for part in (s.configurations or "").split("; ")
    }
    mixed = any("; " in (stage.configurations or "") for stage in row.stages)
    if mixed or len(configurations) > 1:
        listed = " | ".join(stage.configurations or "" for stage in row.stages)
        yield f"no runtime has splits and recomputation by layer ({listed}): set one for all layers"
