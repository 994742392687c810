"""Tables are contracts: checked on write and on read, byte-deterministic, never half-written."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from phaze.errors import PhazeError
from phaze.tables import TABLES, Graphs, Screens


def graph() -> pd.DataFrame:
    return pd.DataFrame(
        {"model": "m", "position": [0, 1, 2], "layer": ["embedding", "block", "head"], "count": [1, 4, 1]}
    )


def screens() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": "m",
            "tensor": 1,
            "microbatch": 1,
            "architecture": ["b", "a"],
            "hbm_gib": 32.0,
            "recompute": False,
            "lower_s": [1.0, np.inf],
            "feasible_s": [2.0, np.inf],
            "lower_j": [3.0, np.inf],
            "kept": True,
        }
    )


def test_a_saved_table_reads_back_in_canonical_order(tmp_path: Path) -> None:
    Graphs.save(graph().sample(frac=1, random_state=1), tmp_path / "g.parquet")
    pd.testing.assert_frame_equal(Graphs.load(tmp_path / "g.parquet"), Graphs.check(graph()))


def test_equal_tables_are_equal_bytes_whatever_the_order_and_the_sign_of_zero(tmp_path: Path) -> None:
    frame = screens().assign(lower_s=[0.0, 1.0])
    Screens.save(frame, tmp_path / "a.parquet")
    Screens.save(frame.assign(lower_s=[-0.0, 1.0])[::-1], tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"other": 1}, "unknown columns"),
        ({"position": 0}, "same key"),
    ],
)
def test_a_frame_that_breaks_the_contract_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graphs.check(graph().assign(**change))


def test_rules_between_columns_are_checked() -> None:
    with pytest.raises(ValueError, match="lower bound is not above"):
        Screens.check(screens().assign(lower_s=3.0, feasible_s=2.0))


def test_infinity_is_allowed_only_where_it_has_a_meaning() -> None:
    assert np.isinf(Screens.check(screens())["feasible_s"]).any()
    with pytest.raises(ValueError, match="finite"):
        Screens.check(screens().assign(hbm_gib=np.inf))


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("missing columns ['count']")):
        Graphs.check(graph().drop(columns="count"))


def test_a_refused_frame_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    Graphs.save(graph(), tmp_path / "g.parquet")
    before = (tmp_path / "g.parquet").read_bytes()
    with pytest.raises(ValueError, match="table graphs"):
        Graphs.save(graph().assign(count=-1), tmp_path / "g.parquet")
    assert (tmp_path / "g.parquet").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["g.parquet"]


def test_a_table_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    Graphs.save(graph(), tmp_path / "g.parquet")
    with pytest.raises(PhazeError, match="expected table screens"):
        Screens.load(tmp_path / "g.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "g.parquet").replace_schema_metadata({})
    pyarrow.parquet.write_table(table, tmp_path / "g.parquet")
    with pytest.raises(PhazeError, match="holds no phaze table"):
        Graphs.load(tmp_path / "g.parquet")


def test_a_truncated_file_or_a_flipped_byte_is_an_error_not_a_number(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    Screens.save(pd.concat([screens().assign(tensor=t) for t in range(1, 400)]), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PhazeError, match=r"s\.parquet"):
        Screens.load(path)
    good = Screens.check(pd.concat([screens().assign(tensor=t) for t in range(1, 400)]))
    for position in range(40, len(whole), 97):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            frame = Screens.load(path)
        except (PhazeError, ValueError):
            continue
        pd.testing.assert_frame_equal(frame, good)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_documents_its_columns_and_has_an_empty_form(table: type[Graphs]) -> None:
    assert table.about
    assert all(column.about for column in table.fields().values())
    assert table.check(table.empty()).empty
