"""Claims of a publication: each beside what is found here, as a table and as shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from phaze.report.document import Sheet
from phaze.tables import Claims


@dataclass(frozen=True)
class Claim:
    """A row of table claims."""

    statement: str
    source: str
    published: str
    ours: str
    holds: bool


def tabulate(found: Iterable[Claim]) -> pd.DataFrame:
    """Return table claims, in the order in which they are found."""
    rows = [{"claim": i, **vars(claim)} for i, claim in enumerate(found)]
    return Claims.check(pd.DataFrame(rows)) if rows else Claims.empty()


def claims_sheet(claims: pd.DataFrame, source: str) -> Sheet:
    """Return the claims beside ours, from the result table of that name; those that do not hold stand out."""
    cells = [
        (
            "holds" if row["holds"] else "differs",
            row["statement"],
            row["published"],
            row["ours"],
            row["source"],
        )
        for _, row in claims.iterrows()
    ]
    marked = frozenset(i for i, holds in enumerate(claims["holds"]) if not holds)
    header = ("", "claim", "paper", "ours", "printed in")
    return Sheet("Claims of the paper, checked here", header, tuple(cells), 5, marked, source)
