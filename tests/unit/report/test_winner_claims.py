"""Claims of a publication hold or differ by the numbers of the study."""

from dataclasses import replace

from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.paper import check_claims
from phaze.spec.published import Published


def test_claims_hold_or_differ_by_our_numbers(findings: Findings) -> None:
    claims = findings.claims.set_index("statement")
    area = claims.loc["every best accelerator uses most of the area limit"]
    assert (area["published"], bool(area["holds"])) == ("at least 91.0 %", False)
    assert "not bert-large, megatron-bert and megatron-gpt3-175b" in area["ours"]
    assert claims.loc["no best accelerator has a large global buffer", "holds"]
    assert claims.loc["best accelerators have wide tensor cores", "ours"] == "256 (3)"


def test_a_speedup_agrees_within_ten_percent(
    inputs: Inputs, findings: Findings, published: Published
) -> None:
    means = findings.means.set_index("design")["speedup"]
    assert published.headline is not None
    for factor, holds in ((1.09, True), (1.12, False), (0.92, True), (0.88, False)):
        headline = published.headline.model_copy(update={"common": means["phaze-common"] / factor})
        changed = published.model_copy(update={"headline": headline})
        claims = check_claims(replace(inputs, published=changed), findings.results, findings.memories)
        row = claims[claims["statement"].str.contains("phaze-common accelerator over tpu-v4 expert")].iloc[0]
        assert bool(row["holds"]) is holds


def test_without_a_publication_there_are_no_claims(inputs: Inputs, findings: Findings) -> None:
    bare = replace(inputs, published=None)
    assert check_claims(bare, findings.results, findings.memories).empty
