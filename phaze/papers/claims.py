"""Evaluation of the claims of publications on result tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.pages.document import Sheet, sheet_of
from phaze.pages.words import fill, join
from phaze.papers.publications import Publication, PublishedClaim, TableClaims, evaluate
from phaze.tables import Claims

Values = dict[str, object]
Function = Callable[[pd.DataFrame, object], Mapping[str, object]]
"""Function of rows and their published figure that computes named values no aggregation can express."""

AGGREGATES: dict[str, Callable[[pd.Series], object]] = {
    "first": lambda values: values.iloc[0],
    "magnitude": lambda values: values.abs().max(),
    "counts": lambda values: join(f"{value} ({count})" for value, count in values.value_counts().items()),
}
"""Aggregations in addition to pandas' own."""


def check_claims(
    publication: Publication | None,
    tables: Mapping[str, pd.DataFrame],
    functions: Mapping[str, Function] | None = None,
) -> pd.DataFrame:
    """Check a publication's claims: table `claims`, in the paper's order; empty without a publication."""
    if publication is None:
        return Claims.empty()
    claims: list[Values] = []
    for group in publication.claims:
        if group.table not in tables:
            raise PhazeError(
                f"{publication.title}: claims: there is no table {group.table!r}; there are {sorted(tables)}"
            )
        claims += claims_on(publication, group, tables[group.table], functions or {})
    rows = [{"claim": number, **claim} for number, claim in enumerate(claims)]
    return Claims.check(pd.DataFrame(rows)) if rows else Claims.empty()


def claims_on(
    publication: Publication, group: TableClaims, rows: pd.DataFrame, functions: Mapping[str, Function]
) -> Iterator[Values]:
    """Yield the claims of a group, checked on the given rows of its table; nothing if there are no rows."""
    if rows.empty:
        return
    for part in _split(rows, group.each):
        for claim in group.claims:
            try:
                selected = part if claim.where is None else part.query(claim.where)
                for subset in _split(selected, claim.by):
                    if len(subset):
                        yield from _claims_of(publication, claim, subset, functions)
            except (KeyError, AttributeError, NameError) as error:
                # Of pandas: unknown columns are KeyError or NameError, unknown aggregations AttributeError.
                raise PhazeError(
                    f"{publication.title}: claims: {claim.statement!r}: {error}; table {group.table} has "
                    f"columns {', '.join(map(str, rows.columns))}"
                ) from error


def _split(rows: pd.DataFrame, columns: tuple[str, ...]) -> list[pd.DataFrame]:
    """Parts of a table with equal values in the columns, in their order; the whole table without columns."""
    return [part for _, part in rows.groupby(list(columns), sort=False)] if columns else [rows]


def _claims_of(
    publication: Publication, claim: PublishedClaim, rows: pd.DataFrame, functions: Mapping[str, Function]
) -> Iterator[Values]:
    """Yield one claim, checked on one group of rows; nothing if no figure is published for the group."""
    # Texts may insert any column of the rows: that of the first row stands for the group.
    values: Values = {str(key): value for key, value in rows.iloc[:1].to_dict("records")[0].items()}
    if claim.printed is not None:
        printed = _printed(publication, claim, values)
        if printed is None:
            return
        values |= printed
    if isinstance(claim.find, str):
        values |= functions[claim.find](rows, values.get("printed"))
    else:
        for name, (column, how) in claim.find.items():
            values[name] = rows[column].agg(AGGREGATES.get(how, how))
    # A deviation in per cent needs two numbers, and a published one that is not 0.
    theirs, ours = values.get("printed"), values.get("ours")
    if theirs and isinstance(theirs, (int, float)) and isinstance(ours, (int, float)):
        values["off"] = 100 * (ours / theirs - 1)
    holds = claim.holds is None or bool(evaluate(claim.holds, values))
    broken = rows.iloc[:0]
    if claim.every is not None:
        printed_column = {} if claim.printed is None else {"printed": values["printed"]}
        row_holds = rows.assign(**printed_column).eval(claim.every)  # type: ignore[arg-type]
        broken = rows[~np.asarray(row_holds, dtype=bool)]
    shown = pd.Series(values, dtype=object)
    exceptions = f"; not {join(broken[claim.named])}" if len(broken) else ""
    yield {
        "statement": fill(claim.statement, shown),
        "source": claim.source,
        "published": fill(claim.published, shown),
        "ours": fill(claim.ours, shown) + exceptions,
        "holds": holds and broken.empty,
    }


def _printed(publication: Publication, claim: PublishedClaim, values: Values) -> Values | None:
    """Published figure to compare with these values, with its other columns; None if there is none."""
    printed: object = claim.printed
    if isinstance(printed, str):
        printed = getattr(publication, printed)
    if isinstance(printed, Mapping):
        figure = printed.get(values[claim.by[-1]])
        return None if figure is None else {"printed": figure}
    if isinstance(printed, tuple) and all(isinstance(row, Mapping) for row in printed):
        # A published row also has what the group lacks, such as `printed` itself: that matches anything.
        same = (
            row
            for row in printed
            if all(values.get(key, expected) == expected for key, expected in row.items())
        )
        return next(map(dict, same), None)
    return {"printed": printed}


def claims_sheet(claims: pd.DataFrame, source: str) -> Sheet:
    """Report table of the paper's claims and our figures, with failed claims highlighted."""
    columns = {
        "": "{verdict}", "claim": "{statement}", "paper": "{published}", "ours": "{ours}",
        "printed in": "{source}",
    }  # fmt: skip
    shown = claims.assign(verdict=claims["holds"].map({True: "holds", False: "differs"}))
    return sheet_of("Claims of the paper, checked here", shown, columns, 5, ~claims["holds"], source)
