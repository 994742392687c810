"""A study that only partitions and maps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder

pytestmark = pytest.mark.workflow

GRAPH = {"model": "./tiny.yaml", "microbatch": 2, "system": "titan-v-ethernet", "hyper_operators": 6}
MESH = {"kind": "mesh", "sides": [2, 2], "link_gib_per_s": 10}
RANDOM = {"label": "random", "seeds": [1, 2], "sizes": [{"kind": "uniform-dist", "devices": 4}]}
CASE = {"graphs": ["tiny"], "topologies": ["mesh"], "shapes": [[2, 2]]}
MAPS = {
    "tries": 2000,
    "steps": 500,
    "gap_steps": 500,
    "graphs": {"tiny": {"label": "Tiny", **GRAPH}},
    "topologies": {"mesh": {"label": "2 x 2", "sizes": [MESH]}, "random": RANDOM},
    "cases": {
        "by-topology": {
            **CASE,
            "show": "topologies",
            "topologies": ["mesh", "random"],
            "readings": {
                "authors": {"label": "theirs", "partitioner": "paper", "search": "authors"},
                "held": {"label": "messages hold devices", "judge": "held-step"},
            },
        },
        "by-partitioner": {**CASE, "show": "partitioners", "partitioners": ["order", "full"]},
        "throughput": {**CASE, "show": "throughput"},
        "by-k": {**CASE, "show": "clusters", "hyper_operators": [6, 8]},
        "alone": {**CASE, "show": "gaps"},
    },
}


@pytest.fixture(scope="session")
def mapped(prepare: Prepare) -> Folder:
    """Return a folder in which the cases have run."""
    return prepare("mapped", maps=MAPS, models=[])


def test_every_check_of_the_mappings_passes(mapped: Folder) -> None:
    checks = mapped.checks("map-checks")
    assert (checks.set_index("check")["rows"].drop(checks["check"].iloc[-1]) > 0).any()


def test_a_page_of_the_mappings_and_no_other_report(mapped: Folder) -> None:
    written = mapped.pages()
    assert {"papers.html", "papers.md", "mappings.csv", "speed-ups.csv"} <= written
    assert "report.html" not in written


def test_every_way_is_in_the_table_for_every_seed(mapped: Folder) -> None:
    table = mapped.reported("mappings")
    random = table[(table["topology"] == "random") & (table["partitioner"] == "full")]
    assert sorted(random["seed"].unique()) == [1, 2]
    assert (random.groupby("seed")["way"].nunique() == 6).all()


def test_a_reading_by_the_authors_search_has_no_other_way(mapped: Folder) -> None:
    table = mapped.reported("mappings")
    theirs = table[table["partitioner"] == "paper"]
    assert set(theirs["way"]) == {"p2p", "allreduce", "cs-map", "p2p-map"}
    read = mapped.reported("figures-read")
    assert set(read["reading"]) == {"authors", "held"}
    assert set(read["subject"]) == {"mesh", "random"}


def test_other_seeds_map_again_what_they_touch(mapped: Folder, tmp_path: Path) -> None:
    folder = mapped.copy(tmp_path / "study")
    assert folder.stale() == set()
    folder.edit(lambda study: study["maps"]["topologies"]["random"].update(seeds=[1, 3]))
    stale = {path for path in folder.stale() if "random" in path or "mesh" in path or "graphs" in path}
    assert stale
    assert all(path.endswith("random.parquet") for path in stale)


def test_other_maps_leave_the_other_pages(folder: Folder) -> None:
    """They do not depend on models, plans and tiles of the same study."""
    folder.edit(lambda study: study["maps"].update(seed=7))
    pages = {path for path in folder.stale() if path.endswith(".html")}
    assert pages == {"report/papers.html"}
