"""Tables are contracts: validated on write, verified on read, byte-deterministic, never half-written."""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from phaze.base.errors import PhazeError
from phaze.tables import Graphs, Screens, are_among, layouts, places_among, table_name


def graph() -> pd.DataFrame:
    return pd.DataFrame(
        {"model": "m", "position": [0, 1, 2], "layer": ["embedding", "block", "head"], "count": [1, 4, 1]}
    )


def screens() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": "m",
            "layout": "tp1-b1",
            "architecture": ["b", "a"],
            "hbm_gib": 32.0,
            "recompute": False,
            "lower_s": [1.0, np.inf],
            "feasible_s": [2.0, np.inf],
            "lower_j": [3.0, np.inf],
            "kept": True,
        }
    )


@pytest.mark.parametrize("about", ["[1, 2]", '["table", "version"]', "3", "null", '"table"', "{"])
def test_a_file_that_says_nothing_of_itself_is_no_table(tmp_path: Path, about: str) -> None:
    path = tmp_path / "g.parquet"
    table = pyarrow.Table.from_pandas(graph()).replace_schema_metadata({"phaze": about})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(PhazeError, match=r"g\.parquet: cannot be read as table graphs: "):
        Graphs.load(path)
    if about == "{":
        with pytest.raises(PhazeError, match=r"g\.parquet: cannot be read as a table: "):
            table_name(path)
    else:
        assert table_name(path) == ""


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


@pytest.mark.parametrize("version", ["0", "1", "3"])
def test_a_table_of_another_version_is_refused(tmp_path: Path, version: str) -> None:
    path = tmp_path / "g.parquet"
    Graphs.save(graph(), path)
    table = pyarrow.parquet.read_table(path)
    table = table.replace_schema_metadata({"phaze": f'{{"table": "graphs", "version": "{version}"}}'})
    pyarrow.parquet.write_table(table, path)
    message = rf"g\.parquet: .* it holds table graphs of version {version}, expected .*delete"
    with pytest.raises(PhazeError, match=message):
        Graphs.load(path)


def test_a_table_with_other_columns_is_refused_even_where_these_are_not_read(tmp_path: Path) -> None:
    class Older(Graphs):
        columns: ClassVar = {name: Graphs.columns[name] for name in ("layer",)}

    Older.save(graph()[["model", "position", "layer"]], tmp_path / "g.parquet")
    with pytest.raises(
        PhazeError, match=r"g\.parquet: .* it holds columns .*'layer'\], expected .*'count'\]; delete"
    ):
        Graphs.load(tmp_path / "g.parquet", columns=["layer"])


def test_only_the_rows_with_given_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    frame = Screens.check(screens())
    Screens.save(frame, path)
    architecture, columns = frame["architecture"].iloc[0], list(Screens.fields())
    where = {"architecture": [architecture], "model": [frame["model"].iloc[0]]}
    selected = Screens.load(path, columns=columns, where=where)
    expected = frame[frame["architecture"] == architecture].reset_index(drop=True)
    pd.testing.assert_frame_equal(selected, expected)
    assert Screens.load(path, where={"architecture": ["none"]}).empty
    assert Screens.load(path, where={"architecture": []}).empty


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "s.parquet"
    Screens.save(screens(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(PhazeError, match=r"s\.parquet: cannot be read as table screens: .*delete it and run"):
        Screens.load(path)


def test_any_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.parquet"
    Graphs.save(graph(), path)
    content = path.read_bytes()
    for position, byte in enumerate(content):
        path.write_bytes(content[:position] + bytes([byte ^ 1 << position % 8]) + content[position + 1 :])
        with pytest.raises(PhazeError, match=r"g\.parquet: "):
            Graphs.load(path)


def test_columns_that_a_table_does_not_have_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "g.parquet"
    Graphs.save(graph(), path)
    with pytest.raises(ValueError, match=r"table graphs: has no columns \['tensor'\]"):
        Graphs.load(path, columns=["layer", "tensor"])


@pytest.mark.parametrize("table", layouts.TABLES.values(), ids=layouts.TABLES)
def test_every_table_documents_its_columns_and_has_an_empty_form(table: type[Graphs]) -> None:
    assert table.__doc__
    assert all(column.about for column in table.fields().values())
    assert table.check(table.empty()).empty


def test_names_are_looked_up_among_known_ones() -> None:
    """The same result as pandas' own look-up, also with empty inputs."""
    names = pd.Series(["b", "a", "c", "a"], dtype="str")
    for index in (pd.Index(["a", "c"]), pd.Index([], dtype="str")):
        for series in (names, names.iloc[:0]):
            assert are_among(series, index).tolist() == series.isin(index).tolist()
            assert places_among(series, index).tolist() == index.get_indexer(series).tolist()
