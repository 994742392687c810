"""Table I of PALM from the files of systems."""

from __future__ import annotations

from collections import Counter

import pytest

from phaze.tiles.ratios import Ratio, table_i

TABLE = table_i()
ids = [f"{ratio.system} {ratio.kind}" for ratio in TABLE]


def test_every_ratio_that_is_printed_is_there() -> None:
    """Two for each GPU, three for each tiled accelerator."""
    counts = Counter(ratio.system for ratio in TABLE)
    assert counts == {"h100": 2, "a100-selene": 2, "grayskull": 3, "dojo-d1": 3, "wse2": 3}


@pytest.mark.parametrize("ratio", TABLE, ids=ids)
def test_what_the_paper_divides_gives_what_it_prints(ratio: Ratio) -> None:
    """With digits cut off, not rounded: 40/15 is 2.666."""
    if ratio.inputs is None:
        assert ratio.explanation
        return
    scale = 1 if ratio.kind == "hops-to-memory" else 1000
    assert int(ratio.inputs[0] / ratio.inputs[1] * scale) == round(ratio.published * scale)


@pytest.mark.parametrize("ratio", TABLE, ids=ids)
def test_a_ratio_that_differs_is_explained(ratio: Ratio) -> None:
    """Without an explanation ours is within what rounding of figures does."""
    assert ratio.explanation or abs(ratio.error) < 0.015


def test_tiled_accelerators_have_more_sram_for_their_compute_than_gpus() -> None:
    """What the paper concludes from the table, and that their memory is hops away."""
    sram = {ratio.system: ratio.ours for ratio in TABLE if ratio.kind == "sram-to-compute"}
    assert max(sram["h100"], sram["a100-selene"]) < min(sram["grayskull"], sram["dojo-d1"], sram["wse2"]) / 9
    links = {ratio.system: ratio.ours for ratio in TABLE if ratio.kind == "links-to-memory"}
    assert max(links["h100"], links["a100-selene"]) < 1 < min(links[name] for name in ("dojo-d1", "wse2"))
