"""The tables through which the stages talk: their whole interface.

`stages` states what the stages hand to each other, `results` what looks across models, `base` what a table
is.
"""

from pathlib import Path

import pandas as pd

from phaze.errors import PhazeError
from phaze.tables.base import VERSION, Column, Table, table_name
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
    Memories,
    Proofs,
    Rankings,
    Results,
    Sensitivities,
    Times,
    Variations,
    Visits,
    Walks,
)
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

__all__ = [
    "TABLES",
    "VERSION",
    "Architectures",
    "Areas",
    "Bindings",
    "Breakdowns",
    "Checks",
    "Claims",
    "Column",
    "Commons",
    "Comparisons",
    "Complexities",
    "Edges",
    "Energies",
    "Estimates",
    "Graphs",
    "Layers",
    "Memories",
    "Operators",
    "Parts",
    "Placements",
    "Proofs",
    "Rankings",
    "Results",
    "Schedules",
    "Screens",
    "Sensitivities",
    "Solves",
    "Stages",
    "Table",
    "Times",
    "Variations",
    "Visits",
    "Walks",
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
    Commons,
    Sensitivities,
    Results,
    Comparisons,
    Memories,
    Rankings,
    Breakdowns,
    Bindings,
    Energies,
    Areas,
    Complexities,
    Variations,
    Walks,
    Times,
    Proofs,
    Claims,
    Checks,
)
TABLES: dict[str, type[Table]] = {table.name: table for table in _ALL}
"""Every table by name."""


def read_any(path: str | Path) -> pd.DataFrame:
    """Return the table in a file, whichever it is."""
    name = table_name(path)
    if name not in TABLES:
        raise PhazeError(f"{path}: holds no phaze table")
    return TABLES[name].load(path)
