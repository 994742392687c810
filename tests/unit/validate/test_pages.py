"""Tables of errors on the pages: their figures follow from config/errors.csv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from phaze.spec.files import FOLDER
from phaze.spec.measured import PublishedRuns
from phaze.validate.intervals import ERRORS

HEAD = "| devices | model | precision | runs |"
FIGURES: dict[str, Callable[[pd.Series], str]] = {
    "runs": lambda errors: str(len(errors)),
    "mean error": lambda errors: f"{100 * errors.abs().mean():.1f} %",
    "median": lambda errors: f"{100 * errors.abs().median():.1f} %",
    "bias": lambda errors: f"{100 * errors.mean():+.1f} %",
    "nine in ten within": lambda errors: f"{100 * errors.abs().quantile(0.9):.1f} %",
    "worst": lambda errors: f"{100 * errors.abs().max():.1f} %",
    "within 15 %": lambda errors: f"{100 * (errors.abs() <= 0.15).mean():.0f} %",
}
"""Text of each column for the errors of a row's runs."""


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    """Published runs with their errors, without sources whose times look simulated."""
    table = pd.read_csv(FOLDER / ERRORS, keep_default_na=False)
    table = table[~table["source"].isin(PublishedRuns.load().simulated)]
    return table.assign(error=1 / table["ratio"] - 1)


def begins(values: pd.Series, names: str) -> pd.Series:
    """Mask of values that begin with one of the names, separated by commas."""
    return values.str.startswith(tuple(names.lower().split(", ")))


@pytest.mark.parametrize("page", ["README.md", "config/accuracy.md"])
def test_errors_by_kind_of_run_cover_all_runs(page: str, project_root: Path, runs: pd.DataFrame) -> None:
    lines = (project_root / page).read_text().partition(HEAD)[2].split("\n\n")[0].splitlines()
    columns = [cell.strip() for cell in (HEAD + lines[0]).split("|")[1:-1]]
    covered = 0
    for line in lines[2:]:
        shown = dict(zip(columns, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))
        experts = {"dense": ["no"], "experts": ["balanced", "natural"]}[shown["model"]]
        mine = begins(runs["device"], shown["devices"]) & begins(runs["precision"], shown["precision"])
        errors = runs.loc[mine & runs["experts"].isin(experts), "error"]
        figures = {name: FIGURES[name](errors) for name in columns[3:]}
        assert {name: shown[name] for name in columns[3:]} == figures, line
        covered += len(errors)
    assert covered == len(runs)
