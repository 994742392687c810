"""Answers without computations start without numeric libraries, and jobs of a study with few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANNING = {"pandas", "networkx", "pyomo", "matplotlib", "phaze.spec.study"}
COMPUTING = {*PLANNING, "numpy", "numba", "scipy", "phaze.spec.noun"}
CODE = """
import sys
from phaze.__main__ import main
sys.argv[0] = "phaze"
try:
    main()
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


def heavy(*arguments: str, among: set[str]) -> set[str]:
    """Heavy modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False
    )
    return among & {*done.stderr.split()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plan", "gpt2-xxl", "--gpus", "8xh100"),
        ("plan", "gpt2", "--gpus", "8xh10"),
        ("place", "--model", "gpt2-xxl"),
        ("model", "gpt2", "--system", "h10"),
    ],
)
def test_help_and_misspelt_names_import_nothing_that_computes(arguments: tuple[str, ...]) -> None:
    assert not heavy(*arguments, among=COMPUTING)
    assert heavy(*arguments, among={"typer"}), "else the command did not start"


def test_an_instance_is_placed_without_tables_graphs_and_solvers(tmp_path: Path) -> None:
    nodes = [
        {
            "id": layer, "parameterSize": 1e6, "activationSize": 1e6, "optimalLatencyFw": 1e-3,
            "optimalLatencyBw": 2e-3, "isTensorParallelized": False,
        }
        for layer in range(3)
    ]  # fmt: skip
    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 1e5} for i in range(2)]
    instance = {
        "maxMemoryPerDevice": 1e10, "maxDevices": 4, "bandwidth": 1e10, "mbsInBatch": 8,
        "nodes": {"1": nodes}, "edges": {"1": edges},
        "activationRecomputation": False, "optimizerAlgorithm": "SGD",
    }  # fmt: skip
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(instance))
    assert heavy("place", str(path), among={"phaze.pipeline.cuts"}), "else nothing was placed"
    assert not heavy("place", str(path), among={*PLANNING, "scipy.linalg"})


def test_the_stages_of_a_study_import_no_studies_published_models_and_training_plans() -> None:
    """Compiled functions can be called without SciPy's linear algebra, which can be imported afterwards."""
    code = """
import sys
import estimate, extract, extract_graph, place, schedule, screen
import numpy
from phaze.base.compiled import copy_row
row = numpy.zeros(3)
copy_row(numpy.ones(3), row)
assert row.sum() == 3.0
print(" ".join(sys.modules))
import scipy.linalg
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}"},
    )  # fmt: skip
    imported = set(done.stdout.split())
    assert "phaze.cost.mapper.search" in imported
    assert not imported & {
        "scipy.linalg", "phaze.spec.study", "phaze.spec.huggingface", "phaze.tables.layouts", "pyomo.environ",
    }  # fmt: skip
