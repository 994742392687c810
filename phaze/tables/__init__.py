"""The tables through which the stages talk: their whole interface.

`stages` states what the stages hand to each other, `searches` how the space is searched, `certificates` what
proves the best, `plans` what several planners make of it, `simulations` what replaying the plans shows,
`plan_maps` where they lie on networks, `readings` what other settings give, `cases` what is planned apart
from them, `tiled` what is simulated on tiles, `mappings` what is mapped, `results` what looks across models,
`base` what a table is.
"""

from pathlib import Path

import pandas as pd

from phaze.errors import PhazeError
from phaze.tables.base import VERSION, Column, Table, are_among, places_among, table_name
from phaze.tables.cases import Cases, Curves, Durations, Pipelines
from phaze.tables.certificates import CAUSES, COMMON, Audits, Certificates, Ranges
from phaze.tables.mappings import (
    OWN_WAYS,
    WAYS,
    GapDurations,
    MapDurations,
    MappedDevices,
    Mappings,
    PartitionDurations,
    SearchGaps,
    SpeedUps,
)
from phaze.tables.plan_maps import BY_HAND, MAP_WAYS, PlanDevices, PlanMaps
from phaze.tables.plans import PLANNERS, Plans, PlanStages
from phaze.tables.readings import Readings
from phaze.tables.results import (
    Areas,
    Bindings,
    Breakdowns,
    Checks,
    Claims,
    Commons,
    Comparisons,
    Complexities,
    Energies,
    Fronts,
    Memories,
    Proofs,
    Rankings,
    Results,
    Sensitivities,
    Times,
    Variations,
)
from phaze.tables.searches import MILESTONES, SCOPES, Searches, Trials, Visits, Walks
from phaze.tables.simulations import PARTS, Simulations, SimulationStages
from phaze.tables.stages import (
    Architectures,
    Edges,
    Estimates,
    Graphs,
    Layers,
    Operators,
    Parts,
    Placements,
    Schedules,
    Screens,
    Solves,
    Stages,
)
from phaze.tables.tiled import TiledBesides, TiledJobs, TiledLinks, TiledNetworks, TiledRuns

__all__ = [
    "BY_HAND",
    "CAUSES",
    "COMMON",
    "MAP_WAYS",
    "MILESTONES",
    "OWN_WAYS",
    "PARTS",
    "PLANNERS",
    "SCOPES",
    "TABLES",
    "VERSION",
    "WAYS",
    "Architectures",
    "Areas",
    "Audits",
    "Bindings",
    "Breakdowns",
    "Cases",
    "Certificates",
    "Checks",
    "Claims",
    "Column",
    "Commons",
    "Comparisons",
    "Complexities",
    "Curves",
    "Durations",
    "Edges",
    "Energies",
    "Estimates",
    "Fronts",
    "GapDurations",
    "Graphs",
    "Layers",
    "MapDurations",
    "MappedDevices",
    "Mappings",
    "Memories",
    "Operators",
    "PartitionDurations",
    "Parts",
    "Pipelines",
    "Placements",
    "PlanDevices",
    "PlanMaps",
    "PlanStages",
    "Plans",
    "Proofs",
    "Ranges",
    "Rankings",
    "Readings",
    "Results",
    "Schedules",
    "Screens",
    "SearchGaps",
    "Searches",
    "Sensitivities",
    "SimulationStages",
    "Simulations",
    "Solves",
    "SpeedUps",
    "Stages",
    "Table",
    "TiledBesides",
    "TiledJobs",
    "TiledLinks",
    "TiledNetworks",
    "TiledRuns",
    "Times",
    "Trials",
    "Variations",
    "Visits",
    "Walks",
    "are_among",
    "places_among",
    "read_any",
]

_ALL = (
    Operators,
    Parts,
    Edges,
    Layers,
    Graphs,
    Architectures,
    Estimates,
    Screens,
    Solves,
    Schedules,
    Placements,
    Stages,
    Visits,
    Trials,
    Commons,
    Sensitivities,
    Readings,
    Plans,
    PlanStages,
    Simulations,
    SimulationStages,
    PlanMaps,
    PlanDevices,
    Certificates,
    Ranges,
    Audits,
    Results,
    Comparisons,
    Memories,
    Rankings,
    Breakdowns,
    Bindings,
    Energies,
    Fronts,
    Areas,
    Complexities,
    Variations,
    Walks,
    Searches,
    Times,
    Proofs,
    Claims,
    Checks,
    Cases,
    Pipelines,
    Curves,
    Durations,
    TiledRuns,
    TiledJobs,
    TiledLinks,
    TiledNetworks,
    Mappings,
    MappedDevices,
    MapDurations,
    PartitionDurations,
    SearchGaps,
    GapDurations,
    SpeedUps,
    TiledBesides,
)
TABLES: dict[str, type[Table]] = {table.name: table for table in _ALL}
"""Every table by name."""


def read_any(path: str | Path) -> pd.DataFrame:
    """Return the table in a file, whichever it is."""
    name = table_name(path)
    if name not in TABLES:
        raise PhazeError(f"{path}: holds no phaze table")
    return TABLES[name].load(path)
