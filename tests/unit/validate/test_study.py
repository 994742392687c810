"""Published runs of a study as tables, with fitted constants and predictions of other tools."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.measured import MeasuredStudy, PublishedRuns
from phaze.validate.scoreboard import MEASURED, measured_files
from phaze.validate.study import TOOLS, measured_tables


def test_every_file_of_runs_is_known_and_what_tools_predict_is_among_their_rows() -> None:
    published = PublishedRuns.load()
    assert {path.stem for path in measured_files()} == published.sources.keys()
    default = MeasuredStudy.parse(read_mapping(FOLDER / "config.yaml")["measured"], "measured")
    assert set(default.sources) == published.sources.keys()
    tools = pd.read_csv(FOLDER / TOOLS)
    assert set(tools["tool"]) == published.tools.keys()
    for source, mine in tools.groupby("source"):
        assert set(mine["label"]) <= set(pd.read_csv(MEASURED / f"{source}.csv")["label"])


def test_the_tables_hold_errors_of_ours_and_of_other_tools() -> None:
    found = measured_tables(("simumax-b200-dense", "torchtitan-h100-bf16"))
    runs, scores = found["measured_runs"], found["source_scores"].set_index("source")
    assert len(runs) == scores["rows"]["all"] == 20
    ours = runs[runs["source"] == "simumax-b200-dense"]
    errors = (ours["predicted_s"] / ours["measured_s"] - 1).abs()
    (tool,) = found["tool_errors"].to_dict("records")
    assert tool["ours"] == pytest.approx(errors.mean())
    assert tool["ours"] == pytest.approx(scores["mean_error"]["simumax-b200-dense"])
    assert 0.03 < tool["error"] < 0.06  # as SimuMax says of its own
    assert np.isinf(scores["left_out_error"]).all()  # neither shares a constant with the other
    assert set(found["fitted_constants"]["of"]) == {"h100-80gb", "h200", "h100-96gb"}


def test_a_source_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(PhazeError, match=r"'elsewhere' is not in .*bloom-topology-sweep"):
        measured_tables(("elsewhere",))
