"""Claims of publications as data, and the evaluator that compares result tables with them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Annotated, Self

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from phaze.base.errors import PhazeError
from phaze.report.document import Cell, Sheet, sheet_of
from phaze.report.words import fill, join
from phaze.spec.noun import Noun
from phaze.tables import Claims

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.boolop,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def _of_columns(text: str) -> str:
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError as error:
        raise ValueError("must be an expression of columns, as `ours <= printed`") from error
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    known = {id(call.func) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "abs"}
    if len(known) < len(calls) or not all(isinstance(node, (*_ALLOWED, ast.Call)) for node in nodes):
        raise ValueError("must be made of columns, numbers, texts, comparisons and abs(…) only")
    return text


def evaluate(expression: str, values: Mapping[str, object]) -> object:
    """Value of an expression that was found to be made of names, numbers and comparisons alone."""
    return eval(_compiled(expression), {"__builtins__": {"abs": abs}}, dict(values))


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


Columns = Annotated[str, AfterValidator(_of_columns)]
"""Arithmetic and comparisons of columns, as pandas' `DataFrame.eval` takes them."""
Number = int | float
Row = dict[str, Number | str]


class PrintedClaim(Noun):
    """A claim with what is printed, what of ours stands beside it, and when it holds.

    Texts are templates: `{ours:times}` is a column of the rows, an aggregate, or what is printed, in a form
    of `phaze.report.words`.
    """

    statement: str
    """What is claimed."""
    source: str
    """Where it is printed."""
    where: Columns | None = None
    """Which rows it is about; all unless given."""
    by: tuple[str, ...] = ()
    """Columns whose every value has a claim of its own; one claim for all rows unless given."""
    printed: Number | str | dict[str, Number] | tuple[Number | str | Row, ...] | None = None
    """A number; numbers by the last column of `by`; rows with values of columns, `printed` among them;
    a list; or the name of what is printed elsewhere in the file."""
    find: str | dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Aggregates by name, each a column and how it is aggregated; or the name of a function of the page, for
    what no aggregate says."""
    every: Columns | None = None
    """What must hold of every row; those of which it does not are named."""
    named: str = ""
    """Column that names them."""
    holds: Columns | None = None
    """When the claim holds, by aggregates and what is printed."""
    published: str
    """Their figure."""
    ours: str
    """Our figure."""

    @model_validator(mode="after")
    def _what_is_compared_is_said(self) -> Self:
        if isinstance(self.printed, dict) and not self.by:
            raise ValueError("printed: numbers by the values of a column need that column last in by")
        if self.every and not self.named:
            raise ValueError("every: needs named, a column that names the rows of which it does not hold")
        return self


class TableClaims(Noun):
    """Claims about one result table, in turn for every part of it."""

    table: str
    """A table of the page."""
    each: tuple[str, ...] = ()
    """Columns whose every value has all of the claims; once unless given."""
    claims: tuple[PrintedClaim, ...] = Field(min_length=1)
    """In their order."""


class Publication(Noun):
    """A publication's results, to show beside ours: nothing is computed from them, nothing tuned to them."""

    title: str
    """Title."""
    citation: str
    """Authors, venue, year."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where figures without a claim are printed, by their kind."""
    claims: tuple[TableClaims, ...] = ()
    """Claims, by what they are about."""
    missing: tuple[str, ...] = ()
    """What is printed and not compared, and why; sentences."""
    notes: tuple[str, ...] = ()
    """What a reader of the comparison should know about the printed figures."""


Values = dict[str, object]
Function = Callable[[pd.DataFrame, object], Mapping[str, object]]
"""What no aggregate says of some rows, beside what is printed of them: values by name."""

AGGREGATES: dict[str, Callable[[pd.Series], object]] = {
    "first": lambda values: values.iloc[0],
    "magnitude": lambda values: values.abs().max(),
    "counts": lambda values: join(f"{value} ({count})" for value, count in values.value_counts().items()),
}
"""Ways to aggregate a column beside those of pandas."""


def check_claims(
    publication: Publication | None,
    tables: Mapping[str, pd.DataFrame],
    functions: Mapping[str, Function] | None = None,
) -> pd.DataFrame:
    """Table claims, in the order of the publication; empty without one."""
    if publication is None:
        return Claims.empty()
    found: list[Values] = []
    for group in publication.claims:
        if group.table not in tables:
            raise PhazeError(
                f"{publication.title}: claims: there is no table {group.table!r}; there are {sorted(tables)}"
            )
        found += claims_on(publication, group, tables[group.table], functions or {})
    rows = [{"claim": number, **claim} for number, claim in enumerate(found)]
    return Claims.check(pd.DataFrame(rows)) if rows else Claims.empty()


def claims_on(
    publication: Publication, group: TableClaims, rows: pd.DataFrame, functions: Mapping[str, Function]
) -> Iterator[Values]:
    """The claims about a table, on some of its rows; none about rows that are not there."""
    if rows.empty:
        return
    parts = [part for _, part in rows.groupby(list(group.each), sort=False)] if group.each else [rows]
    for part in parts:
        for claim in group.claims:
            try:
                some = part if claim.where is None else part.query(claim.where)
                groups = [one for _, one in some.groupby(list(claim.by), sort=False)] if claim.by else [some]
                for one in groups:
                    if len(one):
                        yield from _claims_of(publication, claim, one, functions)
            except (KeyError, AttributeError, NameError) as error:
                raise PhazeError(
                    f"{publication.title}: claims: {claim.statement!r}: {error}; table {group.table} has "
                    f"columns {', '.join(map(str, rows.columns))}"
                ) from error


def _claims_of(
    publication: Publication, claim: PrintedClaim, rows: pd.DataFrame, functions: Mapping[str, Function]
) -> Iterator[Values]:
    """The claim about all of some rows, none if nothing is printed of them."""
    values: Values = dict(
        zip(map(str, rows.columns), next(rows.itertuples(index=False, name=None)), strict=True)
    )
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
    theirs, ours = values.get("printed"), values.get("ours")
    if theirs and isinstance(theirs, (int, float)) and isinstance(ours, (int, float)):
        values["off"] = 100 * (ours / theirs - 1)
    holds = claim.holds is None or bool(evaluate(claim.holds, values))
    broken = rows.iloc[:0]
    if claim.every is not None:
        given = {} if claim.printed is None else {"printed": values["printed"]}
        fine = rows.assign(**given).eval(claim.every)  # type: ignore[arg-type]
        broken = rows[~np.asarray(fine, dtype=bool)]
    shown = pd.Series(values, dtype=object)
    but = f"; not {join(broken[claim.named])}" if len(broken) else ""
    yield {
        "statement": fill(claim.statement, shown),
        "source": claim.source,
        "published": fill(claim.published, shown),
        "ours": fill(claim.ours, shown) + but,
        "holds": holds and broken.empty,
    }


def _printed(publication: Publication, claim: PrintedClaim, values: Values) -> Values | None:
    """What is printed of rows with some values: `printed`, and what stands in a row with it."""
    printed: object = claim.printed
    if isinstance(printed, str):
        printed = getattr(publication, printed)
        printed = dict(printed) if isinstance(printed, Noun) else printed
    if isinstance(printed, Mapping):
        own = printed.get(values[claim.by[-1]])
        return None if own is None else {"printed": own}
    if isinstance(printed, tuple) and all(isinstance(row, Mapping) for row in printed):
        same = (row for row in printed if all(values.get(key, of) == of for key, of in row.items()))
        return next(map(dict, same), None)
    return {"printed": printed}


def claims_sheet(claims: pd.DataFrame, source: str) -> Sheet:
    """The claims beside ours, from the result table of that name; those that do not hold stand out."""
    columns: dict[str, Cell] = {
        "": lambda row: "holds" if row["holds"] else "differs", "claim": "{statement}",
        "paper": "{published}", "ours": "{ours}", "printed in": "{source}",
    }  # fmt: skip
    return sheet_of("Claims of the paper, checked here", claims, columns, 5, ~claims["holds"], source)
