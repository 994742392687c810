"""The page of the mappings as one HTML page, and as Markdown."""

from __future__ import annotations

import pandas as pd

from phaze.report.document import Answer, Document, Sheet
from phaze.report.maps.checks import check_maps
from phaze.report.maps.inputs import MapInputs, geometric_mean, speed_ups, steps
from phaze.report.maps.sections import sections_of
from phaze.report.report import Report
from phaze.report.verdicts import checks_section
from phaze.tables import Checks, Mappings, SpeedUps, Table

TABLES: dict[str, type[Table]] = {"mappings": Mappings, "speed-ups": SpeedUps, "map-checks": Checks}
"""The tables beside the page, by file name."""
_CHECKS = "What must hold of any mappings, checked on these."


def build_map_report(inputs: MapInputs) -> Report:
    """Return the page of the mappings of a study."""
    gains = SpeedUps.check(speed_ups(steps(inputs.mappings)))
    tables = {"mappings": inputs.mappings, "speed-ups": gains, "map-checks": check_maps(inputs)}
    document = Document(
        title="phaze",
        subtitle="mappings of Parmesan",
        answer=_answer(inputs, gains),
        sections=(*sections_of(inputs), checks_section(tables["map-checks"], "map-checks", _CHECKS)),
        tables=tables,
        page="maps.html",
    )
    return Report(document, TABLES)


def _answer(inputs: MapInputs, gains: pd.DataFrame) -> Answer:
    """Return the first screen: speed-ups by topology, proofs, times."""
    rows = []
    for topology, one in inputs.maps.topologies.items():
        mine = gains[gains["topology"] == topology]
        if len(mine):
            means = (geometric_mean(mine[key]) for key in ("over_consecutive", "over_heuristics"))
            rows.append((one.label, *(f"{mean:.2f}" for mean in means), str(len(mine))))
    header = ("topology", "over CS map", "over CS and p2p map", "cases")
    sheet = Sheet("Speed-up, geometric mean over cases", header, tuple(rows), 1, source="speed-ups")
    searched = inputs.mappings[inputs.mappings["way"].isin(("p2p", "allreduce", "exact"))]
    seconds = inputs.durations.groupby([*gains.columns[:6], "topology", "seed"])["seconds"].sum()
    mean = geometric_mean(gains["over_consecutive"])
    sentence = (
        f"A simulated training step with the mappings found here is {mean:.2f} times as fast as with "
        f"consecutive devices, the geometric mean over {len(gains)} cases."
    )
    facts = (
        (f"{geometric_mean(gains['over_heuristics']):.2f}×", "over the better of CS map and p2p map"),
        (f"{int(searched['proven'].sum())} of {len(searched)}", "searches ended with a proof"),
        (f"{seconds.max():.0f} s", "for the slowest case"),
    )
    return Answer("What does a mapping to the topology gain?", sentence, facts, sheet)
