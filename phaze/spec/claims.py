"""Claims of publications as data: comparisons of columns of result tables with what is printed."""

import ast
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from phaze.spec.noun import Noun

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
