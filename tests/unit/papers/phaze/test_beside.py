"""Printed numbers compared with ours, and reasons for differences computed from the tables."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from phaze.layout import Layout
from phaze.pages.document import Sheet
from phaze.papers.page import build_page
from phaze.papers.phaze.beside import (
    Beside,
    accelerators_sheet,
    as_row,
    claims_of,
    peak_flops,
    sizes_sheet,
    utilisation_blocks,
    walk_sheets,
)
from phaze.papers.phaze.build import phaze_paper
from phaze.papers.phaze.build import reasons as reasons_of
from phaze.papers.publications import Published
from phaze.report.findings import Findings
from phaze.report.inputs import Details, Inputs, Only, Slicing
from phaze.tables import Screens, Table
from tests.unit.papers.parts import parts
from tests.unit.report.builder import among


def reasons(beside: Beside, model: str) -> tuple[str, ...]:
    return next(
        (reasons_of(beside, theirs, row) for name, theirs, row in beside.workloads if name == model), ()
    )


def utilisation_table(printed: Beside) -> Sheet:
    *_, sheet = utilisation_blocks(printed)
    assert isinstance(sheet, Sheet)
    return sheet


@pytest.mark.slow
def test_our_row_stands_above_the_printed_one(printed: Beside) -> None:
    sheet = accelerators_sheet(printed)
    assert [row[1] for row in sheet.rows] == ["ours", "paper"] * 3
    assert sheet.rows[1][2:] == ("{2, 512, 256, 256, 256}", "32 MiB", "32 GiB", "{1, 1024, 1}", "4", "stash")
    assert sheet.marked == {0, 2, 4}


def test_printed_utilisations_stand_beside_the_accelerator_that_the_paper_calls_common(
    printed: Beside,
) -> None:
    assert {row[1] for row in utilisation_table(printed).rows} == {"tpu-v4 expert", "tpu-v4", "phaze-common"}


def test_a_study_with_another_baseline_is_not_beside_the_paper(printed: Beside) -> None:
    study = printed.inputs.study
    architectures = study.architectures.model_copy(update={"baseline": "phaze-common"})
    other = replace(printed.inputs, study=study.model_copy(update={"architectures": architectures}))
    assert printed.shares_baseline
    assert not replace(printed, inputs=other).shares_baseline


def test_a_printed_utilisation_implies_a_time_on_the_same_chip(printed: Beside) -> None:
    """On the baseline the chips are equal, so times are in the ratio of utilisations, 8.8 % and 15.9 %."""
    row = next(r for r in utilisation_table(printed).rows if r[:2] == ("bert-large", "tpu-v4 expert"))
    ours, theirs = float(row[2].split()[0]), float(row[3].split()[0])
    assert float(row[5].split()[0]) == pytest.approx(float(row[4].split()[0]) * ours / theirs, rel=0.01)


def test_printed_speedups_are_ratios_of_printed_utilisations(printed: Beside) -> None:
    found = {row[:2]: row[7] for row in utilisation_table(printed).rows}
    assert found["bert-large", "phaze-common"] == f"{88.1 / 15.9:.2f}×"
    assert found["megatron-bert", "tpu-v4"] == f"{22.1 / 13.7:.2f}×"
    assert found["megatron-bert", "tpu-v4 expert"] == "–"


def test_peak_counts_a_multiplication_and_an_addition(inputs: Inputs, published: Published) -> None:
    assert published.common is not None
    assert peak_flops(inputs, as_row(published.common)) == 2 * 2 * 256 * 256 * 1.05e9


def test_a_printed_accelerator_that_was_placed_is_compared_by_time(printed: Beside) -> None:
    assert "24.8 ms here, +0.0 % against ours" in reasons(printed, "bert-large")[0]


def test_a_printed_accelerator_that_is_not_in_the_study_is_named_so(printed: Beside) -> None:
    assert "is not among the architectures of this study" in reasons(printed, "megatron-bert")[0]


def test_a_printed_accelerator_that_the_screen_left_out_is_named_so(printed: Beside) -> None:
    cluster = printed.inputs.cluster
    placements = cluster.placements[~cluster.placements["architecture"].isin(["phaze-common", TWIN])]
    fewer = replace(printed.inputs, clusters={"paper": replace(cluster, placements=placements)})
    assert "left out by the screen" in reasons(replace(printed, inputs=fewer), "bert-large")[0]


TWIN = "2-512-256-256-256-glb32"


@dataclass(frozen=True)
class ScreenedDetails:
    """Details with a screen that excludes the printed accelerator by its bound."""

    others: Details
    lower_s: float

    def rows(self, table: type[Table], point: Slicing, shard: str, only: Only | None = None) -> pd.DataFrame:
        """Return the rows of a table."""
        if table is not Screens:
            return self.others.rows(table, point, shard, only)
        bounds = {
            "lower_s": self.lower_s * Layout.of_key(point.layout).microbatch,
            "feasible_s": np.inf,
            "lower_j": 0.0,
        }
        keys = {"architecture": ["phaze-common", TWIN], "hbm_gib": 32.0, "recompute": False, "kept": False}
        return among(pd.DataFrame({**point._asdict(), **keys, **bounds}), only)


def test_a_printed_accelerator_that_its_bound_excludes_comes_with_the_bound(printed: Beside) -> None:
    cluster, details = printed.inputs.cluster, printed.inputs.details
    placements = cluster.placements[~cluster.placements["architecture"].isin(["phaze-common", TWIN])]
    inputs = replace(
        printed.inputs,
        clusters={"paper": replace(cluster, placements=placements)},
        details=ScreenedDetails(details, lower_s=1.25),
    )
    reason = reasons(replace(printed, inputs=inputs), "bert-large")[0]
    assert "takes at least 1.25 s here" in reason
    assert "the screen excluded it by this bound" in reason


def test_synchronisation_of_the_printed_placement_is_worked_out(printed: Beside) -> None:
    """4 (d - 1)/d weights / bandwidth for {1, 1024, 1}, 157,138,944 parameters of 2 bytes, 4 GiB/s."""
    text = reasons(printed, "bert-large")[1]
    assert "{1, 1024, 1}" in text
    assert f"{4 * 1023 / 1024 * 2 * 157138944 / 2**32 * 1e3:.0f} ms" in text


def test_a_network_too_slow_for_the_printed_utilisation_is_worked_out(printed: Beside) -> None:
    """88.1 % of the peak of 64 chips takes 8.13 ms; 4 (d - 1)/d of the weights in that time are 144 GiB/s."""
    text = reasons(printed, "bert-large")[2]
    assert "implies 8.13 ms for a whole batch" in text
    sent = 4 * 1023 / 1024 * 2 * 157138944
    assert float(text.split("would need ")[1].split()[0]) == pytest.approx(sent / 8.13e-3 / 2**30, rel=2e-3)


def test_a_width_that_was_not_extracted_gives_no_reason(printed: Beside) -> None:
    assert not any("places it as" in text for text in reasons(printed, "megatron-bert"))


def test_nothing_is_said_about_a_workload_that_is_not_printed(printed: Beside) -> None:
    assert reasons(printed, "gpt2-xl") == ()


def test_printed_numbers_are_those_of_the_paper(published: Published, shared_data: Path) -> None:
    """Every number of Tables 2 and 5 and of the headline equals an independent transcription."""
    paper = yaml.safe_load((shared_data / "hardware" / "paper_setup.yaml").read_text())
    for model, row in paper["workloads"].items():
        ours = published.workloads[model]
        assert ours.architecture is not None
        assert ours.placement is not None
        chip, plan = ours.architecture, ours.placement
        assert [chip.num_tc, chip.num_vc, chip.pe_x, chip.pe_y, chip.pe_vc] == row["phaze"][0]
        assert (chip.glb_mib, chip.hbm_gib) == (row["phaze"][1][0], row["hbm_gib"])
        assert [plan.pipeline, plan.data, plan.tensor] == row["placement"]
        assert (plan.microbatch, plan.recompute) == (row["microbatch"], row["recompute"])
    assert set(published.workloads) == set(paper["workloads"])
    mfu = {m: w.mfu.values() for m, w in published.workloads.items() if w.mfu}
    assert {m: [round(100 * v, 6) for v in values] for m, values in mfu.items()} == paper["mfu_percent"]
    assert list(published.headline.values()) == list(paper["headline"].values())[:4]


def test_claims_hold_or_differ_by_our_numbers(printed: Beside) -> None:
    claims = claims_of(printed).set_index("statement")
    area = claims.loc["every best accelerator uses most of the area limit"]
    assert (area["published"], bool(area["holds"])) == ("at least 91.0 %", False)
    assert "not bert-large, megatron-bert and megatron-gpt3-175b" in area["ours"]
    assert claims.loc["no best accelerator has a large global buffer", "holds"]
    assert claims.loc["best accelerators have wide tensor cores", "ours"] == "256 (3)"


def test_a_speedup_agrees_within_ten_percent(
    printed: Beside, findings: Findings, published: Published
) -> None:
    means = findings.means.set_index("design")["speedup"]
    for factor, holds in ((1.09, True), (1.12, False), (0.92, True), (0.88, False)):
        headline = published.headline | {"common": means["phaze-common"] / factor}
        changed = published.model_copy(update={"headline": headline})
        claims = claims_of(replace(printed, published=changed))
        row = claims[claims["statement"].str.contains("phaze-common accelerator over tpu-v4 expert")].iloc[0]
        assert bool(row["holds"]) is holds


def test_what_levels_choose_stands_beside_the_paper(printed: Beside) -> None:
    (chosen,) = walk_sheets(printed)
    assert isinstance(chosen, Sheet)
    printed_choices = {row[1]: row[3] for row in chosen.rows}
    assert (printed_choices["1"], printed_choices["6"], printed_choices["3"]) == (
        "TPUv4", "{2, 512, 256, 256}", "–",
    )  # fmt: skip


def test_printed_sizes_stand_below_ours(printed: Beside, published: Published) -> None:
    (sheet,) = sizes_sheet(printed)
    sizes = {m: w.complexity for m, w in published.workloads.items() if w.complexity}
    models = [row[0] for row in sheet.rows[::2]]
    assert models == [model for model in printed.inputs.study.models if model in sizes]
    assert [row[2] for row in sheet.rows[1::2]] == [str(sizes[model]["layers"]) for model in models]


def test_the_section_says_what_holds_and_why_results_differ(printed: Beside) -> None:
    paper = phaze_paper(printed)
    assert paper.answer.startswith(f"{paper.claims['holds'].sum()} of {len(paper.claims)} claims hold")
    assert any("Why bert-large differs" in title for title in parts(paper))
    assert build_page([paper]).page.count('class="plot"') == 1
