"""Tables exchanged by the stages of a study; they are the only interface between stages.

`stages` has the tables passed between stages, `searches` the search of the space, `certificates` the proof of
the best point. `plans` has the plans of several
planners, their simulation, and their mapping onto networks. `readings` has results under other settings,
`cases` planning cases outside the study, `tiled` simulations on tiled accelerators, and `mappings` mapped
stages. `measured` compares predictions with published runs, `results` compares models, and `base` defines a
table. `layouts` has training plans over all layouts of a runtime. It is imported only where it is used: its
columns are fields of nouns whose import would take a tenth of the start of every other job.
"""

from phaze.tables.base import (
    TABLES,
    VERSION,
    Column,
    Table,
    are_among,
    content_digest,
    places_among,
    table_name,
)
from phaze.tables.cases import (
    OWN_WAYS,
    FiguresRead,
    MappedDevices,
    Mappings,
    SearchGaps,
    SpeedUps,
    TiledBesides,
    TiledJobs,
    TiledLinks,
    TiledNetworks,
    TiledReadings,
    TiledRuns,
)
from phaze.tables.measured import (
    ALL_MEASURED,
    ALL_SOURCES,
    FittedConstants,
    GroupRegrets,
    MeasuredRuns,
    SourceScores,
    ToolErrors,
)
from phaze.tables.plans import (
    Cases,
    Curves,
    Pipelines,
    ReadingFigures,
    Readings,
    ReadingScores,
    Simulations,
)
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
    Gains,
    Memories,
    Proofs,
    Rankings,
    Results,
    Sensitivities,
    Times,
    Variations,
)
from phaze.tables.searches import (
    CAUSES,
    COMMON,
    MILESTONES,
    SCOPES,
    Audits,
    Certificates,
    Ranges,
    Searches,
    Trials,
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
