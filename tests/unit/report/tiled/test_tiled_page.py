"""The page of tiled accelerators, from runs with known numbers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from phaze.report.report import write_report
from phaze.report.tiled import TiledInputs, build_tiled_report
from phaze.report.tiled.checks import check_tiled
from phaze.report.tiled.claims import check_claims
from phaze.spec.published_tiled import PublishedTiled
from phaze.spec.tiled_study import TiledCase, TiledStudy
from phaze.tables import TiledBesides, TiledJobs, TiledLinks, TiledNetworks, TiledRuns

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
        "layer_bytes": 1e9 * tensor, "sent_bytes": 5.0, "received_bytes": 5.0,
    }  # fmt: skip


def _beside(table: str, measured: float) -> dict[str, object]:
    return {
        "table": table, "case": "one", "unit": "a second", "published": 116.4, "palm": 114.3,
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
        {"figure": 7, "setting": f"{n} tasks of 8 MB, kinds in turns", "group": "turns", "seconds": 1.0,
         "other_s": 0.7, "value": 0.06 * n}
        for n in range(1, 6)
    ]  # fmt: skip
    networks += [
        {"figure": 12, "setting": f"{group}, {k}", "group": group, "seconds": 1.0, "other_s": 2.0,
         "value": 1.5 + k}
        for group in ("ring", "broken ring")
        for k in range(2)
    ]  # fmt: skip
    frames = {
        "runs": TiledRuns.check(pd.DataFrame(rows)),
        "jobs": TiledJobs.check(pd.DataFrame(jobs)),
        "links": TiledLinks.check(pd.DataFrame(links)),
        "networks": TiledNetworks.check(pd.DataFrame(networks)),
        "besides": TiledBesides.check(pd.DataFrame([_beside("IV", 109.0), _beside("V", 0.0)])),
    }
    return TiledInputs(STUDY, **{**frames, **changes}, flops=5.12e15, published=PALM)


def test_claims_hold_where_the_runs_have_what_is_printed() -> None:
    claims = check_claims(inputs())
    held = dict(zip(claims["statement"], claims["holds"], strict=True))
    assert held["t-18b on wafer: samples/s of PALM within 20 %"]
    assert held["t-18b on wafer: TP of the fastest split"]
    assert held["on wafer: s-shaped is faster than line"]
    assert held["on wafer: near is faster than far"]
    assert held["on wafer: the best split and mapping is at least 2 times as fast as the worst"]
    assert held["five tasks of 8 MB: the formula is short by"]
    assert claims["ours"].iloc[0] == "7.000 (-5 %)"


def test_measured_runs_are_scaled_by_peak() -> None:
    """1,024 samples in 9.4 s on 256 GPUs of 312 TFLOP/s, on 5.12 PFLOP/s."""
    assert inputs().measured(PALM.wafer["t-18b"]) == pytest.approx(1024 / 9.4 * 5120 / (256 * 312))


def test_checks_find_what_cannot_be() -> None:
    found = inputs()
    assert check_tiled(found)["passed"].all()
    wrong = inputs(runs=found.runs.assign(alone_s=found.runs["time_s"] * 2))
    failed = check_tiled(wrong).set_index("check")["passed"]
    assert not failed["neither traffic nor contention makes a batch faster"]
    fewer = check_tiled(inputs(runs=found.runs.iloc[1:])).set_index("check")["passed"]
    assert not fewer["every combination of a case is simulated"]


def test_the_page_shows_everything(tmp_path: Path) -> None:
    report = build_tiled_report(inputs())
    write_report(report, tmp_path)
    page, text = (tmp_path / "tiled.html").read_text(), (tmp_path / "tiled.md").read_text()
    assert page.count("<svg") == 6
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


def test_without_a_publication_there_are_no_claims() -> None:
    found = inputs()
    frames = found.runs, found.jobs, found.links, found.networks.iloc[:0], found.besides.iloc[:0]
    alone = TiledInputs(found.tiled, *frames, 0.0)
    report = build_tiled_report(alone)
    assert report.tables["tiled-claims"].empty
    assert {section.anchor for section in report.document.sections}.isdisjoint({"networks", "tables"})
