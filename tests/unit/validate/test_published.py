"""Predictions beside published measurements; one constant is fitted, on Table 1 of SC 2021 (`calibrate`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from phaze.plan.lowered import layer_costs, load_machine
from phaze.validate.rows import meanings
from phaze.validate.table import Accuracy
from phaze.workload.models import library_workload
from tests.unit.validate.measured import FOLDER, SOURCES, korthikanti, palm_table, predict_records, read

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason="published measurements are not in ../shared/data/measured"
    ),
]


@cache
def compared(name: str) -> tuple[pd.DataFrame, Accuracy]:
    system, records = SOURCES[name]
    table, accuracy = predict_records(records(), load_machine(system))
    assert accuracy is not None
    assert set(table["status"]) == {"ok"}
    return table, accuracy


def test_megatron_sc21_table_1() -> None:
    """Narayanan et al., SC 2021, Table 1; Calculon has 9.9 % on these ten rows."""
    table, accuracy = compared("Megatron SC'21 Table 1")
    assert accuracy.rows == 10
    assert accuracy.mean_error <= 0.05
    assert accuracy.worst_error <= 0.10
    beside = palm_table(table).abs()
    assert beside["predicted_error_on_measured"].mean() < beside["palm_error_on_measured"].mean()


def test_korthikanti_times_and_activation_memory() -> None:
    """Korthikanti et al., MLSys 2023, Tables 4 and 5, with nothing refitted."""
    full, first = compared("Korthikanti full recompute")
    cut, second = compared("Korthikanti sequence parallel, selective")
    assert (first.mean_error + second.mean_error) / 2 <= 0.06
    assert max(first.worst_error, second.worst_error) <= 0.10
    assert len(full) == len(cut) == 4


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "share"),
    [
        ("none", False, None),
        ("none", True, "act_rel_seq_pct"),
        ("selective", False, "act_rel_sel_pct"),
        ("selective", True, "act_rel_seqsel_pct"),
    ],
)
def test_korthikanti_activation_memory(recompute: str, sequence_parallel: bool, share: str | None) -> None:
    """Korthikanti et al., MLSys 2023, Figure 7 and Table 2: what is kept, without what recomputing needs."""
    machine = load_machine("a100-selene")
    for record, row in zip(korthikanti(selective=False), read("korthikanti_mlsys23.csv"), strict=True):
        changes = {"recompute": recompute, "sequence_parallel": sequence_parallel, "measured_s": ""}
        table, _ = predict_records([{**record, **changes}], machine)
        published = float(row["act_gib_none"]) * (1.0 if share is None else float(row[share]) / 100)
        kept = table["activation_gib"][0] - table["recompute_gib"][0]
        assert kept == pytest.approx(published, rel=0.10), row["model"]


def test_korthikanti_blocks_with_full_recomputation_keep_their_inputs() -> None:
    """Korthikanti et al., Figure 7: per block; the first device also keeps the embedding's dropout masks."""
    machine = load_machine("a100-selene")
    for record, row in zip(korthikanti(selective=False), read("korthikanti_mlsys23.csv"), strict=True):
        full = meanings({name: str(value) for name, value in record.items()})[0]
        block = layer_costs(library_workload(full.model, full.seq, full.layout), machine)["block"]
        share = block.kept_bytes("full")[0] / block.kept_bytes("none")[0]
        assert share == pytest.approx(float(row["act_rel_full_pct"]) / 100, rel=0.02)


def test_vtrain_multi_node_runs() -> None:
    """Bang et al., MICRO 2024, with nothing refitted."""
    _, accuracy = compared("vTrain")
    assert accuracy.mean_error <= 0.08
    assert accuracy.within_15 >= 0.90
    assert accuracy.rank_correlation > 0.95


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("Megatron SC'21 Table 1", "Narayanan et al., SC 2021, Table 1 (10 rows; fitted)"),
        ("BLOOM topology sweep", "BLOOM's topology sweep, 2022 (26)"),
        ("Megatron-LM H100 2024", "Megatron-LM, 2024 (9; nothing known of what software reaches)"),
    ],
)
def test_errors_are_those_that_the_page_says(name: str, row: str) -> None:
    """Of BLOOM's (BigScience, 2022) and Megatron-LM's (2024) nothing is fitted, and no error is promised."""
    _, found = compared(name)
    page = (Path(__file__).parents[3] / "config/assumptions.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    *_, mean, worst, within, _ = (cell.strip() for cell in line.split("|"))
    assert (mean, worst) == (f"{100 * found.mean_error:.1f} %", f"{100 * found.worst_error:.1f} %")
    assert within == ("all" if found.within_15 == 1 else f"{100 * found.within_15:.0f} %")
    assert re.search(rf"\({found.rows}\b", row)
