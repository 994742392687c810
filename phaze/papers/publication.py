"""Publications as data: published results and claims, which Snakemake reads before any job is planned.

Claims are evaluated by `papers.claims`, with what a report needs; this module imports none of it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from phaze.spec.derived import DerivedNoun
from phaze.spec.noun import Noun
from phaze.spec.rows import ClaimTexts

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
    """Evaluate an expression that was validated as `Columns`, with names bound to the given values."""
    return eval(expression, {"__builtins__": {"abs": abs}}, dict(values))


Columns = Annotated[str, AfterValidator(_of_columns)]
"""Expression of columns with arithmetic and comparisons, in the syntax of pandas' `DataFrame.eval`."""
Number = int | float
Row = dict[str, Number | str]


class PublishedClaim(DerivedNoun, ClaimTexts):
    """Claim of a publication: the published figure, our figure, and the condition for the claim to hold.

    Texts are templates. `{ours:times}` inserts a column of the rows, an aggregate, or a printed value, in a
    format of `phaze.report.words`.
    """

    where: Columns | None = None
    """Filter of the rows; default: all."""
    by: tuple[str, ...] = ()
    """Columns to group by, with one claim per group; default: one claim for all rows."""
    printed: Number | str | dict[str, Number] | tuple[Number | str | Row, ...] | None = None
    """Published figure or figures, in one of five forms.

    A number; numbers by value of the last column of `by`; rows of column values including `printed`; a list;
    or the name of another field of the publication.
    """
    find: str | dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Aggregates by name, each a column and an aggregation; or the name of one of the page's functions."""
    every: Columns | None = None
    """Condition on every row; rows that violate it are listed."""
    named: str = ""
    """Column with the names of the rows that violate `every`."""
    holds: Columns | None = None
    """Condition for the claim to hold, on aggregates and published figures."""

    @model_validator(mode="after")
    def _what_is_compared_is_said(self) -> Self:
        if isinstance(self.printed, dict) and not self.by:
            raise ValueError("printed: numbers by the values of a column need that column last in by")
        if self.every and not self.named:
            raise ValueError("every: needs named, a column that names the rows of which it does not hold")
        return self


class TableClaims(Noun):
    """Claims about one result table, checked on each of its parts."""

    table: str
    """Name of a table of the page."""
    each: tuple[str, ...] = ()
    """Columns that split the table into parts; default: one part."""
    claims: tuple[PublishedClaim, ...] = Field(min_length=1)
    """Claims in the order of the page."""


class Publication(Noun):
    """Results of a publication, used only for comparison: no result is computed from or tuned to them."""

    title: str
    """Title of the publication."""
    citation: str
    """Authors, venue, year."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Place in the publication of figures without a claim, by kind of figure."""
    claims: tuple[TableClaims, ...] = ()
    """Claims by result table."""
    missing: tuple[str, ...] = ()
    """Published results that are not compared, as sentences that give the reason."""
    notes: tuple[str, ...] = ()
    """Remarks on the published figures, as sentences."""
