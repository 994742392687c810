"""The page of tiled accelerators, from runs with known results."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import floor
from pathlib import Path

import pandas as pd
import pytest

from phaze.pages.document import Items, Sheet
from phaze.pages.page import write_report
from phaze.pages.verdicts import run_checks
from phaze.papers.case_checks import TILED_CHECKS
from phaze.papers.page import build_page
from phaze.papers.palm.build import palm_paper
from phaze.papers.palm.readings import WAFER, TiledInputs, fewest_microbatches, tabulate_readings
from phaze.papers.publications import PublishedTiled
from phaze.spec.tiled_study import ExchangeReading, TiledCase, TiledStudy
from phaze.tables import TiledBesides, TiledJobs, TiledLinks, TiledNetworks, TiledRuns
from tests.unit.papers.parts import part, parts

PALM = PublishedTiled.from_file(Path("config/published/palm-2024.yaml"))
STUDY = TiledStudy(
    published="palm-2024",
    cases={
        "table": TiledCase(
            title="Table", show="table", batches={"t-18b": 1000}, layouts=("line", "s-shaped")
        ),
        "splits": TiledCase(
            title="Splits", show="splits", batches={"t-18b": 1000}, tensor=(2, 8), placed=("near", "far"),
            layouts=("line", "s-shaped"),
        ),
        "picture": TiledCase(title="Picture", show="pipeline", batches={"t-18b": 1000}),
    },
)  # fmt: skip


def run(case: str, layout: str, placed: str, tensor: int, samples_per_s: float) -> dict[str, object]:
    time_s = 1000 / samples_per_s
    return {
        "case": case, "system": "wafer", "model": "t-18b", "layout": layout, "placed": placed,
        "tensor": tensor, "microbatches": 20, "data": 16 // tensor, "stages": 20, "batch": 1000,
        "time_s": time_s, "samples_per_s": samples_per_s, "alone_s": time_s / 2,
        "uncontended_s": time_s / 1.5, "compute_share": 0.5, "model_share": 0.4,
        "link_busy_s": tensor * 1.0, "most_link_share": 0.2,
        "dram_share": 0.3, "most_dram_share": 0.9, "bound_by": "dram", "strategy": "S_PTY",
        "layer_bytes": 1e9 * tensor, "sent_bytes": 5.0, "received_bytes": 5.0, "recomputed": 20,
        "tile_bytes": 1e9, "dram_bytes": 3e11,
    }  # fmt: skip


def _beside(table: str, measured: float) -> dict[str, object]:
    return {
        "table": table, "case": "one", "reading": "so", "unit": "a second", "published": 116.4, "palm": 114.3,
        "measured": measured, "ours": 107.1, "explanation": "why",
    }  # fmt: skip


def inputs(**changes: pd.DataFrame) -> TiledInputs:
    rows = [run("table", "line", "near", 8, 5.0), run("table", "s-shaped", "near", 8, 7.0)]
    for layout, placed, tensor in product(("line", "s-shaped"), ("near", "far"), (2, 8)):
        speed = 4.0 + 2 * (layout == "s-shaped") + (placed == "near") + 2 * (tensor == 2)
        rows.append(run("splits", layout, placed, tensor, speed))
    rows.append(run("picture", "s-shaped", "near", 8, 7.0))
    key = {name: rows[-1][name] for name in list(rows[-1])[:7]}
    kinds = ["forward", "recompute", "backward", "synchronise", "update"]
    jobs = [
        {**key, "resource": 0, "number": k, "kind": kind, "stage": 0, "microbatch": 0, "start_s": 1.0 * k,
         "end_s": k + 1.0, "held_bytes": 1e9}
        for k, kind in enumerate(kinds)
    ]  # fmt: skip
    links = [
        {**key, "link": k, "source_row": 0, "source_column": k, "target_row": 0, "target_column": 1 - k,
         "bytes": 1.0, "busy_share": 0.1 * k}
        for k in range(2)
    ]  # fmt: skip
    networks = [
        {"figure": 7, "reading": reading, "setting": f"{n} tasks of 8 MB, {tasks}", "group": group,
         "seconds": 1.0, "other_s": 0.7, "value": value * n}
        for reading, value in (("longest", 0.06), ("sum", 0.1))
        for tasks, group in (
            ("kinds in turns", "turns"), ("mean of all mixes", "mean"), ("most of all mixes", "most")
        )
        for n in range(1, 6)
    ]  # fmt: skip
    networks += [
        {"figure": 12, "reading": "best", "setting": f"{group}, {k}", "group": group, "seconds": 1.0,
         "other_s": 2.0, "value": 1.5 + k}
        for group in ("ring", "broken ring")
        for k in range(2)
    ]  # fmt: skip
    frames = {
        "tiled_runs": TiledRuns.check(pd.DataFrame(rows)),
        "tiled_jobs": TiledJobs.check(pd.DataFrame(jobs)),
        "tiled_links": TiledLinks.check(pd.DataFrame(links)),
        "tiled_networks": TiledNetworks.check(pd.DataFrame(networks)),
        "tiled_besides": TiledBesides.check(pd.DataFrame([_beside("IV", 109.0), _beside("V", 0.0)])),
    }
    return TiledInputs(STUDY, **{**frames, **changes}, flops=5.12e15, published=PALM)


def test_claims_hold_where_the_runs_have_what_is_printed() -> None:
    claims = palm_paper(inputs()).claims
    held = dict(zip(claims["statement"], claims["holds"], strict=True))
    assert held["t-18b on wafer: samples/s of PALM within 20 %"]
    assert held["t-18b on wafer, 20 microbatches: TP of the fastest split"]
    assert held["on wafer, 20 microbatches: s-shaped is faster than line"]
    assert held["on wafer, 20 microbatches: near is faster than far"]
    assert held[
        "on wafer, 20 microbatches: the best split and mapping is at least 2 times as fast as the worst"
    ]
    assert held["five tasks of 8 MB: the formula is short by"]
    assert claims["ours"].iloc[0] == "7.000 (-5 %)"


def test_measured_runs_are_scaled_by_peak() -> None:
    """1,024 samples in 9.4 s on 256 GPUs of 312 TFLOP/s, on 5.12 PFLOP/s."""
    assert inputs().wafer["measured"]["t-18b"] == pytest.approx(1024 / 9.4 * 5120 / (256 * 312))


def test_checks_find_what_cannot_be() -> None:
    found = inputs()
    assert run_checks(TILED_CHECKS, found)["passed"].all()
    wrong = inputs(tiled_runs=found.tiled_runs.assign(alone_s=found.tiled_runs["time_s"] * 2))
    failed = run_checks(TILED_CHECKS, wrong).set_index("check")["passed"]
    assert not failed["neither traffic nor contention makes a batch faster"]
    fewer = run_checks(TILED_CHECKS, inputs(tiled_runs=found.tiled_runs.iloc[1:])).set_index("check")[
        "passed"
    ]
    assert not fewer["every combination of a case is simulated"]


def test_the_page_shows_everything(tmp_path: Path) -> None:
    report = build_page([palm_paper(inputs())])
    write_report(report, tmp_path)
    page, text = (tmp_path / "papers.html").read_text(), (tmp_path / "papers.md").read_text()
    assert page.count('<figure class="chart"') == 6
    for words in (
        "7.3457",
        "6.983",
        "109.0",
        "-1.7 %",
        "2 (d − 1)/d of the tensor in each direction",
        "4 (d − 1)/d",
    ):
        assert words in text
    assert report.failures == []
    assert "Every reading, with its error" in text


def test_a_reading_has_its_error_over_all_printed_figures_that_it_gives() -> None:
    found = tabulate_readings(inputs()).set_index("reading")
    wafer = found.loc["wafer with 20 microbatches"]
    assert (wafer["figures"], wafer["ours"], wafer["printed"]) == (1, "7.000", "7.346")
    assert wafer["mean_error"] == pytest.approx(1 - 7 / 7.3457)
    assert (wafer["held"], wafer["statements"]) == (4, 4)
    turns = found.loc["kinds in turns, against the longest of the formulas"]
    assert (turns["figures"], turns["worst_error"]) == (2, pytest.approx(0.4))
    assert found.loc["kinds in turns, against the sum of the formulas", "mean_error"] == pytest.approx(1 / 3)
    best = found.loc["best"]
    errors = [abs(ours / printed - 1) for printed in (3.08, 1.23) for ours in (1.5, 2.5)]
    assert (best["figures"], best["mean_error"]) == (2, pytest.approx(sum(errors) / 4))
    assert (best["ours"], best["printed"]) == ("1.500 to 2.500, 1.500 to 2.500", "3.080, 1.230")
    measured = found[found["printed_in"] == "Table IV, measured"]
    assert measured.loc["so", "mean_error"] == pytest.approx(1 - 107.1 / 109)
    assert measured.loc["PALM's own figures", "mean_error"] == pytest.approx(114.3 / 109 - 1)


def test_only_strategies_with_their_best_adapters_are_said_to_be_faster() -> None:
    """Comparing the slowest of one strategy with the fastest of the other gives a gain for either."""
    found = inputs()
    study = STUDY.model_copy(update={"exchanges": {"best": ExchangeReading(compare="slowest-fastest")}})
    other = replace(found, study=study)
    fair, unfair = (tabulate_readings(each).set_index("reading").loc["best"] for each in (found, other))
    assert (fair["statements"], unfair["statements"]) == (4, 0)
    assert "Figure 12, Section V.C" not in set(palm_paper(other).claims["source"])


def test_the_authors_program_is_a_reading_that_is_not_ours() -> None:
    found = tabulate_readings(inputs())
    now, before = (row for _, row in found[found["theirs"] & (found["printed_in"] == WAFER)].iterrows())
    assert now["ours"] == "8.437, 2.065, 1.021"
    assert before["ours"] == "8.381, 2.101, 1.100"
    assert (now["held"], now["statements"], before["statements"]) == (1, 4, 0)
    assert now["worst_error"] == pytest.approx(8.437 / 7.3457 - 1)
    assert "The nearest of the wafer is wafer with 20 microbatches: on" in palm_paper(inputs()).answer


def test_the_page_says_what_the_authors_program_does_not_give_either() -> None:
    """The publication's sentence follows from its figures: no version is within 1 %."""
    program = PALM.program
    assert program is not None
    versions = program.wafer.values()
    off = [m for m, palm in PALM.palm.items() if all(abs(v[m] / palm - 1) > 0.01 for v in versions)]
    other = [m for m, tensor in PALM.best_tensor.items() if program.best_tensor[m] != tensor]
    assert min(program.gaps.values()) < PALM.gap
    (note,) = (note for note in PALM.notes if "The authors' own program" in note)
    assert f"samples/s of {' and '.join(off)} in Table VII" in note
    assert f"fastest TP of {' and '.join(other)} in Figure 10" in note
    paper = palm_paper(inputs())
    assert note in str(part(paper, "How these numbers are made"))
    (table,) = (block for block in parts(paper)["Table"] if isinstance(block, Sheet))
    assert table.rows[0][table.header.index("microbatches for PALM's")] == "12"


@pytest.mark.parametrize(
    ("batch", "alone_s", "samples_per_s", "fewest"),
    [(2300, 2138.185044, 1.1238, "22"), (2300, 2138.185044, 3.0, "never"), (2300, 2138.185044, 0.01, "1")],
)
def test_a_printed_throughput_needs_so_many_microbatches(
    batch: int, alone_s: float, samples_per_s: float, fewest: str
) -> None:
    """T-145B in 20 stages: with 21 microbatches work and bubbles alone exceed the printed time."""
    one = pd.Series({"batch": batch, "alone_s": alone_s, "microbatches": 20, "stages": 20})
    assert fewest_microbatches(one, samples_per_s) == fewest
    if fewest == "22":
        work_s = alone_s / batch * 20 / 39
        assert work_s * (22 + 19) / 22 <= 1 / samples_per_s < work_s * (21 + 19) / 21


def test_the_published_column_of_table_vii_is_that_of_table_iv_over_a_sixteenth_of_the_gpus() -> None:
    """With the numerators of the last two rows truncated, as the printed digits show."""
    for model, cut in (("t-18b", False), ("t-76b", True), ("t-145b", True)):
        row, scaled = PALM.gpus[model], PALM.scaled[model]
        figure = floor(row.printed) if cut else row.printed
        assert figure / (int(row.run["gpus"]) / 16) == pytest.approx(scaled, abs=1e-4)


def test_the_constant_of_table_iv_is_fitted_on_runs_that_it_does_not_have() -> None:
    sizes = [
        {(row.run["hidden"], row.run["gpus"]) for row in rows.values()}
        for rows in (PALM.gpus, PALM.other_runs)
    ]
    assert len(sizes[1]) == 4
    assert not sizes[0] & sizes[1]


def test_what_is_missing_stands_on_the_page_with_its_reason() -> None:
    assert part(palm_paper(inputs()), "What is missing") == [Items(PALM.missing)]
    assert "Figure 6" in PALM.missing[0]


def test_without_a_publication_there_are_no_claims() -> None:
    found = inputs()
    none = {name: getattr(found, name).iloc[:0] for name in ("tiled_networks", "tiled_besides")}
    alone = replace(found, **none, flops=0.0, published=None)
    paper = palm_paper(alone)
    assert paper.claims.empty
    assert set(parts(paper)).isdisjoint({"The network alone", "Tables I, IV and V"})
