"""The page of tiled accelerators: figures, tables, claims and checks as one HTML page, and as Markdown."""

from __future__ import annotations

import pandas as pd

from phaze.report.claims import claims_sheet
from phaze.report.document import Answer, Document
from phaze.report.report import Report
from phaze.report.tiled.checks import check_tiled
from phaze.report.tiled.claims import check_claims
from phaze.report.tiled.inputs import TiledInputs
from phaze.report.tiled.sections import notes, sections_of
from phaze.report.verdicts import checks_section
from phaze.tables import Checks, Claims, Table, TiledBesides, TiledJobs, TiledLinks, TiledNetworks, TiledRuns

TABLES: dict[str, type[Table]] = {
    "tiled_runs": TiledRuns,
    "tiled_jobs": TiledJobs,
    "tiled_links": TiledLinks,
    "tiled_networks": TiledNetworks,
    "tiled_besides": TiledBesides,
    "tiled-claims": Claims,
    "tiled-checks": Checks,
}
"""The tables beside the page, by file name."""
_CHECKS = "What must hold of any simulation, checked on these; `snakemake check` fails if one does not."


def build_tiled_report(inputs: TiledInputs) -> Report:
    """Return the page of the tiled accelerators of a study."""
    claims, checks = check_claims(inputs), check_tiled(inputs)
    tables = {
        "tiled_runs": inputs.runs,
        "tiled_jobs": inputs.jobs,
        "tiled_links": inputs.links,
        "tiled_networks": inputs.networks,
        "tiled_besides": inputs.besides,
        "tiled-claims": claims,
        "tiled-checks": checks,
    }
    document = Document(
        title="phaze",
        subtitle="tiled accelerators",
        answer=_answer(inputs, claims, checks),
        sections=(*sections_of(inputs), checks_section(checks, "tiled-checks", _CHECKS), notes(inputs)),
        tables=tables,
        page="tiled.html",
    )
    return Report(document, TABLES)


def _answer(inputs: TiledInputs, claims: pd.DataFrame, checks: pd.DataFrame) -> Answer:
    """Return the first screen: which of the claims hold."""
    held = int(claims["holds"].sum())
    title = "its publication" if inputs.published is None else f"“{inputs.published.title}”"
    sentence = (
        f"{held} of {len(claims)} claims of {title} hold for these simulations, nothing of which is tuned to "
        f"them; {int(checks['passed'].sum())} of {len(checks)} checks of the simulations themselves pass."
    )
    facts = (
        (f"{held} of {len(claims)}", "claims of the paper that hold here"),
        (f"{len(inputs.runs):,}", "batches simulated with contention"),
        (f"{len(inputs.networks):,}", "cases of the network alone"),
    )
    sheet = claims_sheet(claims, "tiled-claims")
    return Answer("Do PALM's case studies come out as printed?", sentence, facts, sheet)
