"""Large tables are read only when needed; benchmarks are summed even if some are missing."""

from pathlib import Path

import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.report.inputs import DetailFiles, Only, Slicing, read_times
from phaze.tables import Layers, Schedules, Stages
from tests.unit.report.toy_models import layers
from tests.unit.report.toy_placements import placed

POINT = Slicing("bert-large", "tp1-b2")


def test_details_come_from_the_file_of_their_point_and_shard(tmp_path: Path) -> None:
    stages = placed(POINT, "named")[1]
    Stages.save(stages, tmp_path / "stages/bert-large/tp1-b2/named.parquet")
    Layers.save(layers(POINT), tmp_path / "layers/bert-large/tp1-b2.parquet")
    details = DetailFiles(
        {
            "stages": f"{tmp_path}/stages/{{model}}/{{layout}}/{{shard}}.parquet",
            "layers": f"{tmp_path}/layers/{{model}}/{{layout}}.parquet",
        }
    )
    assert len(details.rows(Stages, POINT, "named")) == len(stages)
    assert len(details.rows(Layers, POINT, "")) == 3
    some = stages["architecture"].iloc[0]
    mine = details.rows(Stages, POINT, "named", Only("architecture", (some,)))
    assert 0 < len(mine) == (stages["architecture"] == some).sum() < len(stages)
    assert details.rows(Stages, POINT, "small-buffer").empty
    assert details.rows(Schedules, POINT, "named").empty


def test_what_is_common_comes_from_one_file_of_a_model_by_point(tmp_path: Path) -> None:
    other = Slicing("bert-large", "tp1-b1")
    stages = pd.concat([placed(point, "common")[1] for point in (POINT, other)])
    Stages.save(stages, tmp_path / "stages/bert-large/common.parquet")
    details = DetailFiles({}, common={"stages": f"{tmp_path}/stages/{{model}}/common.parquet"})
    found = details.rows(Stages, POINT, "common")
    assert set(found["layout"]) == {"tp1-b2"}
    assert details.rows(Schedules, POINT, "common").empty


HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def test_benchmarks_are_summed_by_stage_and_model_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(HEADER + "2.5\t0:00:02\t100.5\t0\t0\t0\t0\t0\t0\t2.0\n")
    (tmp_path / "b.tsv").write_text(HEADER + "1.5\t0:00:01\tNA\t0\t0\t0\t0\t0\t0\t-\n")
    files = [tmp_path / "a.tsv", tmp_path / "b.tsv", tmp_path / "missing.tsv"]
    found = read_times({("place", "bert-large"): files, ("screen", "bert-large"): files[2:]})
    spent = {"jobs": 2, "wall_s": 4.0, "cpu_s": 2.0, "peak_bytes": 100.5 * 2**20}
    assert found.to_dict("records") == [{"model": "bert-large", "stage": "place", **spent}]
    assert read_times({("place", "m"): [tmp_path / "missing.tsv"]}).empty
    (tmp_path / "a.tsv").write_text("s\n")
    with pytest.raises(PhazeError, match=r"a\.tsv: is not a benchmark"):
        read_times({("place", "m"): [tmp_path / "a.tsv"]})
