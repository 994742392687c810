"""Answers without computations start without numeric libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLANNING = {"pandas", "networkx", "pyomo", "altair", "phaze.spec.study"}
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plan", "gpt2-xxl", "--gpus", "8xh100"),
        ("plan", "gpt2", "--gpus", "8xh10"),
        ("place", "--model", "gpt2-xxl"),
        ("model", "gpt2", "--system", "h10"),
        ("emit", "none.json", "--for", "megatron"),
        ("compare", "none.csv", "none.json"),
        ("calibrate", "none.csv", "--system", "h100", "-o", "x.yaml"),
        ("certify", "none.json"),
        ("simulate", "none.json"),
        ("simulate", "--runs", "none.csv", "-o", "x.csv"),
        ("read", "none.txt", "--for", "megatron", "--gpus", "8xh100"),
        ("map", "none.json"),
        ("plan", "none.yaml", "--gpus", "8xh100"),
    ],
)
def test_help_and_wrong_names_import_nothing_that_computes(arguments: tuple[str, ...]) -> None:
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
    # Numba brings scipy.linalg whenever it loads a function.
    assert heavy("place", str(path), among={"phaze.formulas.cuts"}), "else nothing was placed"
    assert not heavy("place", str(path), among=PLANNING)


def test_a_plan_is_searched_without_the_slow_parts_of_scipy() -> None:
    code = "import sys, phaze.plan.answer.answer, phaze.validate.intervals; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "phaze.plan.answer.answer" in done.stdout
    assert not {"scipy.stats", "scipy.optimize", "scipy.sparse"} & {*done.stdout.split()}
