"""Table I of PALM, computed from system files."""

from __future__ import annotations

from collections import Counter

import pytest

from phaze.papers.palm.besides import load_published, ratios_beside
from phaze.papers.publications import PublishedRatio

PUBLISHED = load_published()
PRINTED = PUBLISHED.ratios
OURS = [float(str(row["ours"])) for row in ratios_beside()]
ids = [f"{ratio.system} {ratio.of}" for ratio in PRINTED]


def test_every_ratio_that_is_printed_is_there() -> None:
    """Two for each GPU, three for each tiled accelerator."""
    counts = Counter(ratio.system for ratio in PRINTED)
    assert counts == {"h100": 2, "a100-selene": 2, "grayskull": 3, "dojo-d1": 3, "wse2": 3}


@pytest.mark.parametrize("ratio", PRINTED, ids=ids)
def test_what_the_paper_divides_gives_what_it_prints(ratio: PublishedRatio) -> None:
    """With digits truncated, not rounded: 40/15 is 2.666."""
    if ratio.inputs is None:
        assert ratio.explanation
        return
    scale = 1 if ratio.of == "hops" else 1000
    assert int(ratio.inputs[0] / ratio.inputs[1] * scale) == round(ratio.published * scale)


@pytest.mark.parametrize(("ratio", "ours"), list(zip(PRINTED, OURS, strict=True)), ids=ids)
def test_a_ratio_that_differs_is_explained(ratio: PublishedRatio, ours: float) -> None:
    """Without an explanation our ratio is within rounding of the printed figures."""
    assert ratio.explanation or abs(ours / ratio.published - 1) < 0.015


def test_tiled_accelerators_have_more_sram_for_their_compute_than_gpus() -> None:
    """The paper's conclusion from the table, and that their memory is several hops away."""
    kinds = [PUBLISHED.ratio_readings[ratio.of].kind for ratio in PRINTED]
    by_kind = {(kind, one.system): ours for kind, one, ours in zip(kinds, PRINTED, OURS, strict=True)}
    sram, links = (
        {system: ours for (which, system), ours in by_kind.items() if which == kind}
        for kind in ("sram-to-compute", "links-to-memory")
    )
    assert max(sram["h100"], sram["a100-selene"]) < min(sram["grayskull"], sram["dojo-d1"], sram["wse2"]) / 9
    assert max(links["h100"], links["a100-selene"]) < 1 < min(links[name] for name in ("dojo-d1", "wse2"))


def test_a_row_says_what_is_divided_and_that_palm_simulates_nothing() -> None:
    assert all(row["table"] == "I" and row["reading"] and row["palm"] == 0.0 for row in ratios_beside())
